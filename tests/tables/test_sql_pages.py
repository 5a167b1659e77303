"""The statements of the pages about SQL hold: each block is executed, and its queries become steps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import headrace as hr
from headrace.tables.program import SqlProgram, program_of

DOCS = Path(__file__).resolve().parents[2] / "docs"
_BLOCK = re.compile(r"(<!-- sql: a program of its own -->\n)?(?<!needs a module -->\n)```sql\n(.*?)```", re.DOTALL)


def programs_of(page: str) -> list[list[str]]:
    """The blocks of a page: those that build on each other, and those that stand alone."""
    found: list[list[str]] = [[]]
    for alone, text in _BLOCK.findall((DOCS / page).read_text()):
        if alone:
            found.append([text])
        else:
            found[0].append(text)
    return found


@pytest.mark.parametrize("page", ["sql-tutorial.md", "guides/sql-programs.md"])
def test_every_statement_of_a_page_holds(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PG_DSN", "postgresql://nowhere/shop")
    programs = programs_of(page)
    assert sum(map(len, programs)) >= 5
    for number, blocks in enumerate(programs):
        program: SqlProgram = program_of(hr.App(f"page_{number}"))
        for i, block in enumerate(blocks):
            for j, statement in enumerate(program.read(block, page)):
                outcome = program.execute(statement)
                if isinstance(outcome, hr.Stream):
                    outcome.named(f"query_{i}_{j}") if outcome.node.name is None else outcome
