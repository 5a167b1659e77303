"""Headrace over Nexmark's streams: one query in SQL. Results go into a folder of files, or into a file of answers.

The folder is written exactly once, at each epoch: Parquet, and where rows are taken back JSON lines that say it. One
epoch takes the files of one; its time is from one published manifest to the next.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

LAUNCHED_AT = time.time()

import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from published import Published  # noqa: E402

import headrace as hr  # noqa: E402

FILES_PER_EPOCH = 2


class Person(hr.Record):
    id: int
    name: str
    email_address: str
    credit_card: str
    city: str
    state: str
    date_time: hr.Timestamp
    extra: str


class Auction(hr.Record):
    id: int
    item_name: str
    description: str
    initial_bid: int
    reserve: int
    date_time: hr.Timestamp
    expires: hr.Timestamp
    seller: int
    category: int
    extra: str


class Bid(hr.Record):
    auction: int
    bidder: int
    price: int
    channel: str
    url: str
    date_time: hr.Timestamp
    extra: str


class Note(hr.Record):
    id: int
    note: str


STREAMS = {"person": Person, "auction": Auction, "bid": Bid}


def program(query: str, text: str, folder: Path) -> tuple[hr.App, hr.Stream[Any]]:
    """The query over the streams that it names, and no others; and its result."""
    app = hr.App("nexmark")
    for name, record in STREAMS.items():
        if re.search(rf"\b{name}\b", text.replace("bid_now", "bid")):
            source = hr.source.files(folder / name, format="parquet", max_files_per_epoch=FILES_PER_EPOCH)
            app.read(name, source, record, time="date_time", out_of_order="1s")
    if "side" in text:
        app.read("side", hr.source.files(folder / "side", format="parquet"), Note)
    if "bid_now" in text:
        app.sql("CREATE VIEW bid_now AS SELECT *, PROCTIME() AS proc_time FROM bid")
    return app, app.sql(text, name=query)


def write_files(result: hr.Stream[Any], folder: Path) -> None:
    """Where rows are taken back, all that comes and goes is written, with its kind."""
    if result.node.kind.rows == "append":
        result.write(hr.sink.files(folder, format="parquet"))
    else:
        result.changes(kind="op").write(hr.sink.files(folder, format="json"))


def rows_that_hold(result: hr.Stream[Any], sink: Any) -> dict[str, list]:
    """The columns of the rows that hold at the end: what was taken back or replaced is gone."""
    names, kind = list(result.node.codec.names), result.node.kind
    rows: Counter[tuple] = Counter()
    if kind.rows == "changelog":
        for sign, row in sink.changes:
            rows[tuple(getattr(row, name) for name in names)] += 1 if sign.startswith("+") else -1
    elif kind.rows == "upsert":
        newest = {tuple(getattr(row, name) for name in kind.key): row for row in sink.rows}
        rows.update(tuple(getattr(row, name) for name in names) for row in newest.values())
    else:
        rows.update(tuple(getattr(row, name) for name in names) for row in sink.rows)
    held = list(rows.elements())
    return {name: [row[place] for row in held] for place, name in enumerate(names)}


def run(options: argparse.Namespace) -> dict:
    text = (options.queries / f"{options.query}.sql").read_text()
    app, result = program(options.query, text, options.input)
    version = f"headrace {hr.__version__}"
    settings = {"parallelism": options.parallelism, "master": f"local[{options.parallelism}]", "plain": True}
    store = options.work / "store"
    if options.answers:
        sink = hr.sink.collect()
        result.write(sink)
        app.run(until="drained", store=str(store), **settings)
        columns = pa.table(rows_that_hold(result, sink), schema=result.node.codec.schema)
        pq.write_table(columns, options.answers)
        return {"version": version}
    out = options.work / "out"
    if options.discard:
        result.write(hr.sink.discard())
    else:
        write_files(result, out)
    epochs = json.loads(options.epochs)
    published = Published(store, len(epochs))
    published.start()
    app.run(until="caught_up", store=str(store), **settings)
    times = published.finish()
    if len(times) < len(epochs):
        raise SystemExit(f"{len(epochs)} epochs were to be published, {len(times)} were")
    steady = times[options.warm - 1 : len(epochs)]
    return {
        "version": version,
        "startup_s": times[0] - LAUNCHED_AT,
        "steady_rows": sum(epochs[options.warm :]),
        "steady_s": steady[-1] - steady[0],
        "written_bytes": sum(file.stat().st_size for file in out.rglob("*") if file.is_file()),
        "steady_epoch_s": [later - earlier for earlier, later in itertools.pairwise(steady)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--query", required=True)
    parser.add_argument("--queries", type=Path, required=True, help="the folder of their texts")
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--epochs", required=True, help="events of each epoch, as a JSON list")
    parser.add_argument("--warm", type=int, required=True, help="epochs before the measured ones")
    parser.add_argument("--answers", type=Path, help="run to the end of all input and write the results into this file")
    parser.add_argument("--discard", action="store_true", help="write the results nowhere")
    parser.add_argument("--work", type=Path, required=True, help="an empty folder")
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--parallelism", type=int, default=2)
    options = parser.parse_args()
    options.result.write_text(json.dumps(run(options)))


if __name__ == "__main__":
    main()
