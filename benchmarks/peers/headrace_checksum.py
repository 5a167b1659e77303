"""Adds up what a Headrace job has counted, read from its store: shows whether each row was counted exactly once.

A process of its own, so that reading all keys is no part of the job whose time and memory are measured.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from headrace_program import Totals

from headrace.read.store import Store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="an empty folder")
    parser.add_argument("--result", type=Path, required=True)
    options = parser.parse_args()
    counts = [totals.count for _, totals in Store(options.store).state("count_sum.totals", Totals).scan()]
    # A key that counted n rows has emitted 1, 2, … n.
    found = {"rows": sum(counts), "checksum": sum(count * (count + 1) // 2 for count in counts)}
    options.result.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
