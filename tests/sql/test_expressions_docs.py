"""The reference of expressions is true: its examples give what it says, and it names every function there is."""

from __future__ import annotations

import re
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.sql.evaluate.expressions import compile_exprs
from headrace.sql.expr import infer
from headrace.sql.functions import FUNCTIONS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "expressions.md").read_text(encoding="utf-8")
ROW = pa.RecordBatch.from_pylist([{"one": 1}])
TABLE = re.compile(r"^\|[^|]+\| Example \| Gives \|\n\|---\|---\|---\|\n((?:\|.*\n)+)", re.MULTILINE)
EXAMPLE = re.compile(r"\| `((?:[^`])+)` \| `([^`]+)` \|$", re.MULTILINE)


def shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "NULL", True: "true", False: "false"}[value]
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, date):
        return value.isoformat()
    return str(value.normalize()) if isinstance(value, Decimal) else repr(value)


EXAMPLES = [
    (sql.replace("\\|", "|"), gives) for table in TABLE.finditer(PAGE) for sql, gives in EXAMPLE.findall(table[1])
]


@pytest.mark.parametrize(("sql", "gives"), EXAMPLES)
def test_an_example_gives_what_the_page_says(sql: str, gives: str) -> None:
    kind = infer(sql, ROW.schema) or pa.int64()
    result = compile_exprs({"r": sql}, ROW.schema, pa.schema([("r", kind)]))(ROW)
    assert shown(result.column(0)[0].as_py()) == gives


def test_every_table_has_its_examples() -> None:
    assert len(EXAMPLES) >= 60


def test_the_page_names_every_function() -> None:
    named = set(re.findall(r"[a-z_0-9]+", " ".join(re.findall(r"`([^`\n]+)`", PAGE.replace("```", ""))).lower()))
    assert sorted(name for name in FUNCTIONS if name != "~" and name not in named) == []
