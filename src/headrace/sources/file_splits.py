"""What tells the files of one producer from those of another: ``files(…, split=…)``.

A file is read whole in one epoch, so files hold each other back no longer than that, and all of a folder are one split:
its time is the newest seen. Where several producers write into one folder, each at its own pace, every one of them is a
split: a field of its rows, or SQL over what stands in the files and over ``_metadata`` (Spark's columns about the file,
``file_name`` and ``file_path``), says which.

What it deliberately does not do: make every file a split. A file that was read says nothing any more, and time would
stand at the oldest for ever.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import ExpressionError, ProgramError
from headrace.model.expr import as_sql, parse, resolve_name, supported
from headrace.model.shapes import quoted

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec
    from headrace.sources.contract import SparkRead

METADATA: Final = "_metadata"
NOBODY: Final = "(none)"
"""The split of rows for which the expression is null or empty."""
_ONE_FILE: Final = frozenset({"_metadata.file_name", "_metadata.file_path", "_metadata", "input_file_name()"})


class FileSplits:
    """The ``split=`` of a files source."""

    def __init__(self, said: Any, where: str) -> None:
        try:
            self.text = as_sql(said)
        except ProgramError as error:
            error.where = where
            raise
        self._where = where
        if self.text.replace("`", "").lower() in _ONE_FILE:
            raise ProgramError(
                "a file cannot be a split of its own",
                where=where,
                expected="what its producer is told by: a field of the rows, or SQL over them and _metadata.file_name",
                found=f"split={self.text!r}",
                next_move="leave split= out: each file is read whole in one epoch, and time is that of the newest row; "
                "or take the part of the name that tells the producer: "
                "split=\"regexp_extract(_metadata.file_name, '^([a-z]+)-', 1)\"",
            )

    def check(self, codec: RowCodec) -> None:
        """Refuses names that neither the rows nor the file have."""
        known = [*codec.schema.names, *codec.encoded_names.values(), METADATA]
        for name in sorted(parse(self.text, self._where).columns):
            resolve_name(name, known, self._where, self.text)

    def of_row(self, codec: RowCodec) -> str | None:
        """SQL over the fields of a row that gives its split; None where only the file tells it."""
        try:
            plain = METADATA not in parse(self.text).columns and supported(self.text, codec.schema) is None
        except ExpressionError:
            return None
        return self._named(self.text) if plain else None

    def put_into(self, read: SparkRead) -> SparkRead:
        """The same read, with splits."""
        prepare = read.prepare
        if METADATA in parse(self.text).columns:
            # Spark's hidden column is not there any more behind a projection, unless it was asked for by name.
            prepare = (f"{METADATA} AS {METADATA}", *prepare)
        text = self.text
        field = next((name for name in read.columns if text in (name, quoted(name))), None)
        # A field that is absent in the file, or has another name there, counts as it does in the row.
        return replace(read, prepare=prepare, split=self._named(text if field is None else read.columns[field]))

    def _named(self, text: str) -> str:
        return f"coalesce(nullif(CAST({text} AS STRING), ''), '{NOBODY}')"
