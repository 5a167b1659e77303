"""A folder is listed by the rules of Spark: what Spark itself would read is the measure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.spark import listing
from headrace.spark.listing import InputFolder, list_folder

pytestmark = pytest.mark.spark

FLAT = ("a.json", "b c%.json", "ü.json", "d.txt", "_e.json", ".f.json", "_metadata", "g._COPYING_", "below/h.json")
BY_DAY = ("day=1/hour=1/a b.json", "day=1/hour=1/_b.json", "day=2/hour=1/c.json", "_tmp/d.json", "_tmp/day=3/e.json")
BY_NAME = ("x 1/a.json", "x 1/below/b.json", "x 2/c.json", "y/d.json", "_x/e.json", "x 3/_below/f.json")


def make(folder: Path, *names: str) -> None:
    for size, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"." * size)


def test_a_listing_has_what_spark_would_read(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, names in (("flat", FLAT), ("by day", BY_DAY), ("by name", BY_NAME)):
        make(tmp_path / name, *names)
    monkeypatch.setattr(listing, "PAGE", 2)
    folders = [
        InputFolder(f"{tmp_path}/flat"),
        InputFolder(f"{tmp_path}/flat", names="*.json"),
        InputFolder(f"{tmp_path}/flat", recursive=True),
        InputFolder(f"{tmp_path}/flat/*.{{json,txt}}"),
        InputFolder(f"{tmp_path}/flat/a.json"),
        InputFolder(f"file:{tmp_path}/by day"),
        InputFolder(f"{tmp_path}/by name", recursive=True),
        InputFolder(f"{tmp_path}/by name/x*", names="[a-c].json"),
    ]
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    files = spark._jvm.org.apache.hadoop.fs.Path(str(tmp_path)).getFileSystem(conf)
    for system in ("no file system", files.getClass().getSimpleName()):
        # The second time as if it could list everything below a folder at once.
        monkeypatch.setattr(listing, "_FLAT", system)
        for folder in folders:
            found = [file for page in list_folder(spark, folder) for file in page]
            options = {"recursiveFileLookup": folder.recursive, "pathGlobFilter": folder.names or "*"}
            read = spark.read.format("binaryFile").options(**options).load(folder.path)
            assert sorted(file.path for file in found) == sorted(read.inputFiles()), folder
            assert found, folder


def test_a_folder_that_is_not_there_is_empty(spark: Any, tmp_path: Path) -> None:
    make(tmp_path, "ab", "cd")
    assert list(list_folder(spark, InputFolder(f"{tmp_path}/none"))) == []
    assert list(list_folder(spark, InputFolder(f"{tmp_path}/none/*"))) == []
    sizes = {
        file.path[-2:]: file.size_bytes for page in list_folder(spark, InputFolder(str(tmp_path))) for file in page
    }
    assert sizes == {"ab": 0, "cd": 1}
