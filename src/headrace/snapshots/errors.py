"""What DuckDB says of a statement that it cannot answer, as an error with four parts, a code and a place."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from headrace.errors import StatementFailed

SYNTAX: Final = "42601"
UNDEFINED_TABLE: Final = "42P01"
UNDEFINED_COLUMN: Final = "42703"
UNDEFINED_FUNCTION: Final = "42883"
AMBIGUOUS: Final = "42702"
READ_ONLY: Final = "25006"
BAD_VALUE: Final = "22000"
BAD_TEXT: Final = "22P02"
OUT_OF_RANGE: Final = "22003"
OUT_OF_MEMORY: Final = "53200"
CANCELED: Final = "57014"
UNSUPPORTED: Final = "0A000"
FORBIDDEN: Final = "42501"
BAD_SETTING: Final = "22023"
INTERNAL: Final = "XX000"

_CODES: Final = {
    "Parser": SYNTAX,
    "Syntax": SYNTAX,
    "Binder": "42000",
    "Catalog": UNDEFINED_TABLE,
    "Conversion": BAD_TEXT,
    "Out of Range": OUT_OF_RANGE,
    "Invalid Input": BAD_VALUE,
    "Out of Memory": OUT_OF_MEMORY,
    "INTERRUPT": CANCELED,
    "Interrupt": CANCELED,
    "Not implemented": UNSUPPORTED,
    "Permission": FORBIDDEN,
}
_SUBTYPES: Final = {
    "COLUMN_NOT_FOUND": UNDEFINED_COLUMN,
    "AMBIGUOUS_REFERENCE": AMBIGUOUS,
    "NO_MATCHING_FUNCTION": UNDEFINED_FUNCTION,
}
_KIND: Final = re.compile(r"^([A-Za-z ]+?)(?: Error| Exception)?: ")
_CANDIDATES: Final = "\nCandidate bindings: "


def read_only(statement: str) -> StatementFailed:
    return StatementFailed(
        "state can only be read here",
        code=READ_ONLY,
        expected="SELECT, WITH, VALUES, EXPLAIN, SHOW or DESCRIBE",
        found=statement,
        next_move="change state by the program, or by `headrace edit`",
    )


def of_duckdb(error: Exception, statement: str) -> StatementFailed:
    """What a statement failed for. DuckDB is told to give its errors as JSON."""
    text = str(error)
    kind = _KIND.match(text)
    try:
        told = msgspec.json.decode(text[text.index("{") :], type=dict[str, str])
    except (ValueError, msgspec.MsgspecError):
        name = kind[1] if kind else ""
        words, _, candidates = (text[kind.end() :] if kind else text).partition(_CANDIDATES)
        return _failed(words, _CODES.get(name, INTERNAL), None, candidates, statement)
    code = _CODES.get(told.get("exception_type", ""), INTERNAL)
    code = _SUBTYPES.get(told.get("error_subtype", ""), code)
    if code == UNDEFINED_TABLE and told.get("type", "").endswith("Function"):
        code = UNDEFINED_FUNCTION
    place = told.get("position", "")
    words, _, candidates = told.get("exception_message", text).partition(_CANDIDATES)
    return _failed(
        words, code, int(place) if place.isdecimal() else None, candidates or told.get("candidates", ""), statement
    )


def _failed(words: str, code: str, place: int | None, candidates: str, statement: str) -> StatementFailed:
    words, _, hint = words.strip().partition("\n")
    if code == OUT_OF_MEMORY:
        hint = "ask for fewer columns or rows, or let the server have more: --sql-memory-mb"
    if code == CANCELED:
        words, hint = "the statement was canceled", ""
    where = "" if place is None else _spot(statement, place)
    expected = " or ".join(sorted(candidates.replace('"', "").replace(",", " ").split())) if candidates else ""
    return StatementFailed(words, code=code, place=place, where=where, expected=expected, next_move=hint.strip())


def _spot(statement: str, place: int) -> str:
    """Line and column of a character, from 1."""
    before = statement[:place]
    return f"line {before.count(chr(10)) + 1}, column {place - before.rfind(chr(10))}"
