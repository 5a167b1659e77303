"""A third program that is killed: windows over a folder of Parquet files.

Run as ``python -m tests.crash.folder_program FOLDER ROWS PER_EPOCH UNTIL``, like `tests.crash.program`. Workers decode
the files, until they come to one that only Spark reads.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import headrace as hr
from tests.crash.program import prepare
from tests.jvm import UNCOMPILED

OUTPUTS = ("windows", "odd")
ODD_FILE = 3
"""The file whose times have 96 bits."""
SECOND = 1_000_000


class Click(hr.Record):
    page: str
    at: hr.Timestamp
    n: int = 1


def write_input(folder: Path, rows: int, per_file: int) -> None:
    """One file for an epoch; Spark reads older ones first."""
    folder.mkdir(parents=True)
    for number in range(rows // per_file):
        ids = np.arange(number * per_file, (number + 1) * per_file)
        at = pa.array(ids * SECOND, pa.timestamp("us", "UTC"))
        table = pa.table({"page": [f"page-{i % 7}" for i in ids], "at": at, "n": ids % 11})
        path = folder / f"{number}.parquet"
        pq.write_table(table, path, row_group_size=50, use_deprecated_int96_timestamps=number == ODD_FILE)
        os.utime(path, (1_700_000_000 + number,) * 2)


def build(folder: Path) -> hr.App:
    app = hr.App("folder")
    files = hr.source.files(folder / "in", format="parquet", max_files_per_epoch=1)
    clicks = app.read("clicks", files, Click, time=Click.at)
    windows = clicks.key_by(Click.page).window(hr.tumbling("5m")).aggregate(n=hr.count(), total=hr.sum(Click.n))
    windows.named("per_page").write(hr.sink.files(str(folder / "windows"), format="json"), name="windows")
    odd = clicks.where("n % 2 = 1").map(lambda click: click.replace(n=click.n * 10), output=Click)
    odd.write(hr.sink.files(str(folder / "odd"), format="json"), name="odd")
    return app


def main(folder: str, rows: str, per_epoch: str, until: str) -> None:
    prepare()
    store = str(Path(folder) / "store")
    build(Path(folder)).run(until=until, store=store, parallelism=2, master="local[2]", spark=UNCOMPILED, plain=True)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(*sys.argv[1:])
