"""Every case: in one epoch, row by row, and shuffled with crashes, what comes out folds to the answer of all rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import duckdb
import pytest

from tests.tables.playing import Case, expected, load_cases, open_oracle, play, play_shuffled

CASES = load_cases(Path(__file__).parent / "cases")


@pytest.fixture(scope="module")
def oracle() -> Iterator[duckdb.DuckDBPyConnection]:
    connection = open_oracle()
    yield connection
    connection.close()


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_folded_result_is_the_answer_however_rows_are_cut(case: Case, oracle: duckdb.DuckDBPyConnection) -> None:
    answer = expected(case, oracle)
    assert play(case, row_by_row=False) == answer
    assert play(case, row_by_row=True) == answer
    if not case.arrival:
        seed = crc32(case.name.encode())
        assert play_shuffled(case, seed) == answer, f"shuffled by seed {seed}"
