"""A rewind on Spark: its log is made from an older manifest, and reads again what it had read since."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.model import crash
from tests.checkpoint.keyed_table import KeyedTable

pytestmark = pytest.mark.spark


class Hit(hr.Record):
    page: str
    n: int = 1


def put(folder: Path, number: int, *pages: str) -> None:
    folder.mkdir(exist_ok=True)
    text = "".join(json.dumps({"page": page}) + "\n" for page in pages)
    (folder / f"{number:03d}.json").write_text(text)


class OnlyAppends(type(hr.sink.collect())):  # type: ignore[misc]
    rewinds = frozenset({"hold"})


def counting(folder: Path, held: Any, out: str = "out", table: KeyedTable | None = None) -> hr.App:
    app = hr.App("hits")
    hits = app.read("hits", hr.source.files(folder / "in", format="json", max_files_per_epoch=1), Hit)
    counts = hits.key_by(Hit.page).aggregate(n=hr.count()).named("counts")
    counts.changes().write(hr.sink.files(folder / out, format="json"), name="versions")
    counts.changes().write(held, name="held")
    if table is not None:
        counts.write(table, name="table")
    return app


def versions(folder: Path, out: str = "out") -> Counter[tuple[str, int]]:
    lines = [line for file in (folder / out).glob("part-*") for line in file.read_text().splitlines()]
    return Counter((row["page"], row["n"]) for row in map(json.loads, lines))


def test_a_job_goes_back_dies_on_its_way_and_reads_again_what_it_had_read(spark: Any, tmp_path: Path) -> None:
    store, held, table = tmp_path / "store", OnlyAppends(), KeyedTable("page")

    def run(**how: Any) -> None:
        counting(tmp_path, held, table=table).run(
            until="caught_up", spark=spark, store=store, parallelism=2, plain=True, **how
        )

    for number in range(2):
        put(tmp_path / "in", number, "a", "b")
    run()
    before = hr.Store(store).epoch
    for number in range(2, 5):
        put(tmp_path / "in", number, "a")
    run()
    assert hr.Store(store).state("counts")["a"]["n"] == 5
    assert {page: row.n for page, row in table.rows.items()} == {"a": 5, "b": 2}
    end = hr.Store(store).epoch

    with pytest.raises(hr.HeadraceError, match="cannot be taken back"):
        run(start_from=str(before))

    def die(point: str, epoch: int) -> None:
        if point == "rewind_pinned":
            raise crash.Crash(point)

    with pytest.raises(crash.Crash), crash.planned(die):
        run(start_from=str(before), hold="held")
    put(tmp_path / "in", 5, "a")
    run()
    # Brought back by the state, as what the new timeline begins with.
    assert (1, before, 1) in table.releases
    assert {page: row.n for page, row in table.rows.items()} == {"a": 6, "b": 2}
    found = hr.Store(store)
    assert (found.timeline, found.state("counts")["a"]["n"], found.state("counts")["b"]["n"]) == (1, 6, 2)
    # What was read in three epochs came again in one, exactly as far, and the newest file behind it.
    assert found.epochs()[-2:] == [before + 1, before + 2]
    assert found.at("end-of-timeline-0").epoch == end
    assert versions(tmp_path) == Counter({("a", n): 1 for n in (1, 2, 5, 6)} | {("b", n): 1 for n in (1, 2)})
    assert Counter((row.page, row.n) for row in held.rows) == Counter(
        {("a", n): 1 for n in range(1, 7)} | {("b", n): 1 for n in (1, 2)}
    )

    # Without a hold Spark plans anew, from files that its log knows already.
    (tmp_path / "in" / "002.json").unlink()
    with pytest.raises(hr.HeadraceError, match="no longer have what was read"):
        run(start_from=str(before), hold="all", again=True)
    put(tmp_path / "in", 2, "a")

    fork = counting(tmp_path, OnlyAppends(), out="fork-out")
    fork.run(
        until="caught_up", spark=spark, store=tmp_path / "fork", start_from=f"{store}@{before}", parallelism=1,
        plain=True,
    )  # fmt: skip
    assert hr.Store(tmp_path / "fork").state("counts")["a"]["n"] == 6
    assert max(n for _, n in versions(tmp_path, "fork-out")) == 6
    assert hr.Store(store).timeline == 1

    # A fork that takes an output over begins to give it out where the first job has ended.
    put(tmp_path / "in", 6, "a")
    blue = len(held.rows)
    green = counting(tmp_path, held, out="green-out")
    green.run(
        until="caught_up", spark=spark, store=tmp_path / "green", start_from=f"{store}@{before}", hold="held",
        plain=True,
    )  # fmt: skip
    assert [(row.page, row.n) for row in held.rows[blue:]] == [("a", 7)]
    assert hr.Store(tmp_path / "green").state("counts")["a"]["n"] == 7
