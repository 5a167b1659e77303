"""Spark's exceptions, as errors of our family: without its stacks, and with a next move."""

from __future__ import annotations

from headrace.errors import EpochFailed, HeadraceError, ProgramError


def spark_error(error: BaseException) -> HeadraceError:
    """An exception of Spark itself, without its stack."""
    from pyspark.errors import AnalysisException, ParseException

    text = _first_lines(str(error))
    if isinstance(error, (AnalysisException, ParseException)):
        return ProgramError(
            "Spark does not understand an expression or a source of this program",
            where="building the streaming plan",
            found=text,
            next_move="look at the SQL text named above",
        )
    return EpochFailed(
        "Spark could not run an epoch",
        where="the streaming query",
        found=text,
        next_move="start again: the epoch is replayed whole; --trace shows Spark's own account",
    )


def _first_lines(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip() and not line.strip().startswith(("at ", "File "))]
    return "\n            ".join(lines[:6])[:1500]
