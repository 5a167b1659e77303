"""Puts a bad row of a file into words: which file, which line, what is wrong with it.

Spark knows the file and the text of a row, not its line, because it reads files in pieces. So the line is looked up
when a bad row stops the job, by reading the file again; this happens once and may take as long as reading a file takes.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import msgspec

from headrace.connectors.source_contract import BadInput
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec


class _RawLine(msgspec.Struct):
    """The JSON text that `SparkRead.raw` makes of a bad row."""

    file: str | None = None
    text: str | None = None
    reason: str | None = None


def explain_bad_row(codec: RowCodec, raw: str, format: str) -> BadInput:
    """Never raises: what cannot be found out is left out."""
    try:
        told = msgspec.json.decode(raw, type=_RawLine)
    except msgspec.DecodeError:
        return BadInput(where="", text=raw, reason="the row could not be decoded")
    text = told.text or ""
    reason = told.reason or "the row could not be decoded"
    path = local_file(told.file or "")
    where = str(path) if path is not None else (told.file or "")
    found = None if path is None or format == "parquet" else find_line(path, text, codec.encoded_names.values())
    if found is not None:
        number, text = found
        where = f"{where}:{number}"
    if format == "json":
        reason = _json_reason(codec, text) or reason
    return BadInput(where=where, text=text, reason=reason)


def _json_reason(codec: RowCodec, text: str) -> str | None:
    """What our own decoder says of the line: it names the field and both types, which Spark does not."""
    try:
        codec.from_json(text.encode())
    except HeadraceError as error:
        return str(error.__cause__ or error).splitlines()[0]
    return None


def local_file(uri: str) -> Path | None:
    """The path behind the name Spark gives a file, if it is on this machine.

    >>> local_file("file:///data/a%20b.json")
    PosixPath('/data/a b.json')
    >>> local_file("s3a://bucket/a.json") is None
    True
    """
    parts = urlsplit(uri)
    if not uri or parts.scheme not in ("", "file"):
        return None
    return Path(unquote(parts.path))


def find_line(path: Path, raw_text: str, fields: Collection[str]) -> tuple[int, str] | None:
    """Number and text of the first line with this row.

    Spark has the text of a line only when it could not parse it; otherwise `raw_text` is the row as Spark would write
    it. So when no line is equal, one that says the same counts: the same cells, or the same values of the fields.
    """
    try:
        exact = next(((n, line) for n, line in _numbered_lines(path) if line == raw_text), None)
        if exact is not None:
            return exact
        tests = _same_objects(raw_text, fields) or [_same_cells(raw_text)]
        found = (next(((n, line) for n, line in _numbered_lines(path) if same(line)), None) for same in tests)
        return next((line for line in found if line is not None), None)
    except (OSError, EOFError):
        return None


def _same_cells(raw_text: str) -> Callable[[str], bool]:
    wanted, bare = _cells(raw_text), raw_text.replace('"', "")
    # Splitting into cells is slow; lines that differ in more than quotes need not be split.
    return lambda line: line.replace('"', "") == bare and _cells(line) == wanted


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []


def _same_objects(raw_text: str, fields: Collection[str]) -> list[Callable[[str], bool]]:
    """Compares all values, and where no line has the same, single values alone: Spark writes some that are inside of
    lists, maps and records in a form of its own."""
    wanted = _object(raw_text)
    if wanted is None:
        return []

    def same(line: str, agree: Callable[[Any, Any], bool]) -> bool:
        given = _object(line)
        return given is not None and all(agree(wanted.get(name), given.get(name)) for name in fields)

    return [partial(same, agree=_same_value), partial(same, agree=_same_single_value)]


def _object(line: str) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.DecodeError:
        return None


def _same_value(one: Any, other: Any) -> bool:
    """`one` is of Spark, which leaves out what is null or unknown to it."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(_same_value(value, other.get(name)) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same_value, one, other))
    return _same_single_value(one, other)


def _same_single_value(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    if isinstance(one, (dict, list)) or isinstance(other, (dict, list)):
        return True
    return bool(one == other) or str(one) == str(other)


def _numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    with _open(path) as file:
        for number, line in enumerate(file, start=1):
            text = line.decode("utf-8", errors="replace")
            yield number, text.removeprefix("\ufeff").rstrip("\r\n") if number == 1 else text.rstrip("\r\n")


def _open(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]
    return path.open("rb")
