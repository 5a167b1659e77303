"""What the killed program's sinks hold, and how its store loses what Spark wrote there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

CSV_HEADER = "user,page,at,n"


def written(folder: Path) -> dict[str, list[str]]:
    """Every row of every output, sorted."""
    result: dict[str, list[str]] = {}
    for name in ("visits", "odd"):
        lines = [line for file in folder.glob(f"{name}/**/part-*") for line in file.read_text().splitlines()]
        result[name] = sorted(line for line in lines if line != CSV_HEADER)
    result["totals"] = sorted(
        json.dumps(row, default=str) for file in folder.glob("totals/**/part-*") for row in _rows(file)
    )
    return result


def written_lines(folder: Path, outputs: Iterable[str]) -> dict[str, list[str]]:
    """Every line of outputs that are written as JSON lines, sorted."""
    return {
        name: sorted(line for file in folder.glob(f"{name}/**/part-*") for line in file.read_text().splitlines())
        for name in outputs
    }


def _rows(file: Path) -> list[dict[str, Any]]:
    page = next(part for part in file.parts if part.startswith("page="))
    return [{**row, "page": page} for row in pq.ParquetFile(file).read().to_pylist()]


def lose_newest_offsets(store: Path) -> None:
    """The entry of Spark's log for the epoch it planned last is gone, as if it had never reached the disk."""
    entries = [entry for entry in store.glob("spark/*/offsets/*") if entry.name.isdigit()]
    max(entries, key=lambda entry: int(entry.name)).unlink()


def lose_spark_folder(store: Path) -> None:
    """All that Spark remembers is gone."""
    shutil.rmtree(store / "spark")
