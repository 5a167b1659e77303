"""`files`: a folder whose files Spark reads as they appear.

Every file is read once, whole, in one epoch; Spark remembers its name. So files must be complete when they appear under
their name (write elsewhere, then rename; names that begin with ``.`` or ``_`` are not looked at), and rows appended to
a file later are not seen. All files together are one split: since each is read whole in one epoch, the source's time
is simply the largest seen. Where a folder has several producers, each may be a split (``split=``).

How the three formats are read is in `reads`; how a bad row is put into words is in `errors`.
"""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from headrace.connectors.files.errors import explain_bad_row, local_file
from headrace.connectors.files.parquet_rows import parquet_rows
from headrace.connectors.files.reads import check_fields, csv_read, json_read, parquet_read, read_csv_header
from headrace.connectors.reading import BATCH_ROWS, check_positive
from headrace.connectors.source_contract import (
    SURE,
    BadInput,
    BadRows,
    InputFile,
    Passage,
    Replay,
    Source,
    SparkRead,
    WorkerRows,
)
from headrace.errors import BadRow, ExpressionError, InputLost, ProgramError
from headrace.model.amounts import count_of
from headrace.model.shapes import quoted
from headrace.sql.expr import as_sql, parse, resolve_name, supported

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.model.rows import RowCodec


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
                "split= cannot be the whole file name; name the producer's part",
                where=where,
                expected="a field that names the producer, or SQL over the rows and _metadata.file_name",
                found=f"split={self.text!r}",
                next_move="leave split= out: each file is read whole in one epoch, and time is that of the newest row; "
                "or take the part of the name that is the producer's: "
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
        return self._producer_name(self.text) if plain else None

    def put_into(self, read: SparkRead) -> SparkRead:
        """The same read, with splits."""
        prepare = read.prepare
        if METADATA in parse(self.text).columns:
            # Spark's hidden column is not there any more behind a projection, unless it was asked for by name.
            prepare = (f"{METADATA} AS {METADATA}", *prepare)
        text = self.text
        field = next((name for name in read.columns if text in (name, quoted(name))), None)
        # A field that is absent in the file, or has another name there, counts as it does in the row.
        return replace(read, prepare=prepare, split=self._producer_name(text if field is None else read.columns[field]))

    def _producer_name(self, text: str) -> str:
        return f"coalesce(nullif(CAST({text} AS STRING), ''), '{NOBODY}')"


Format = Literal["json", "csv", "parquet"]

FORMATS: Final = ("json", "csv", "parquet")

# Spark leaves out files that are this much older than the newest one it has seen, and does so silently. Nobody who
# drops an old file into a folder expects that; the list of names it would save is kept in Spark's log anyway.
_MAX_FILE_AGE: Final = "36500d"


_OF_STREAMS: Final = frozenset(
    {"maxFileAge", "maxFilesPerTrigger", "maxBytesPerTrigger", "pathGlobFilter", "recursiveFileLookup"}
)
"""Options that choose among the files of a folder; a file that is named is read."""
EPOCH_BYTES_AT_MOST: Final = 256 * 2**20
"""Bytes of an epoch where no number of files was given, but at least one file: a folder that is full when the job
begins is read in many epochs instead of one that swallows it all."""


class FilesSource(Source):
    kind: ClassVar[str] = "files"
    python: ClassVar[bool] = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        format: Format,
        *,
        glob: str | None,
        recursive: bool,
        max_files_per_epoch: int | None,
        header: bool,
        names: Sequence[str] | None,
        delimiter: str,
        split: Any = None,
    ) -> None:
        if format not in FORMATS:
            raise ProgramError(
                f"source.files cannot read {format!r}",
                where=f'source.files("{os.fspath(path)}")',
                expected="json (one object per line), csv or parquet",
                found=repr(format),
                next_move=f'use hr.source.spark("{format}", path=…) for any other format Spark reads',
            )
        self.path = os.fspath(path)
        self.format = format
        self.glob = glob
        self.recursive = recursive
        self.max_files_per_epoch = check_positive("max_files_per_epoch", max_files_per_epoch, "source.files")
        self.header = header
        self.names = None if names is None else tuple(names)
        self.delimiter = delimiter
        self.splits = None if split is None else FileSplits(split, self.where)

    @property
    def where(self) -> str:
        return f'source.files("{self.path}")'

    def bind(self, codec: RowCodec) -> FilesSource:
        check_fields(codec, self.format, self.where)
        if self.splits is not None:
            self.splits.check(codec)
        return self

    @property
    def has_splits(self) -> bool:
        return self.splits is not None

    def split_of_row(self, codec: RowCodec) -> str | None:
        return None if self.splits is None else self.splits.of_row(codec)

    def spark(self, codec: RowCodec) -> SparkRead:
        self.check_there()
        read = self._read(codec, self._options())
        return read if self.splits is None else self.splits.put_into(read)

    def _read(self, codec: RowCodec, options: dict[str, str]) -> SparkRead:
        if self.format == "json":
            return json_read(codec, self._load_path(), options)
        if self.format == "parquet":
            return parquet_read(codec, self._load_path(), options)
        names = self.names
        if names is None and self.header:
            names = read_csv_header(self._existing(), self.delimiter)
        return csv_read(
            codec,
            self._load_path(),
            options,
            names=names or tuple(codec.schema.names),
            header=self.header,
            delimiter=self.delimiter,
            where=self.where,
        )

    def decoder(self, codec: RowCodec) -> WorkerRows | None:
        return None if self.format != "parquet" or self._is_remote() else parquet_rows(codec)

    def batch_reads(self, codec: RowCodec, passage: Passage) -> list[SparkRead]:
        read = self.spark(codec)
        options = {name: value for name, value in read.options.items() if name not in _OF_STREAMS}
        return [replace(read, options=options, load_path=file.url) for file in passage.files]

    def whole_files(self, codec: RowCodec) -> Callable[[str], Iterator[pa.RecordBatch | BadRows]] | None:
        if self.splits is not None or self._is_remote():
            return None
        if self.format == "parquet":
            return None if (rows := parquet_rows(codec)) is None else rows.read_whole
        return partial(read_json_file, codec) if self.format == "json" else None

    def explain_bad(self, codec: RowCodec, raw: str) -> BadInput:
        return explain_bad_row(codec, raw, self.format)

    def check_replay(self, passage: Passage) -> Replay:
        return find_files(passage)

    def describe(self) -> str:
        split = "" if self.splits is None else f", split by {self.splits.text.replace('`', '')}"
        return f"files {self.path} ({self.format}){split}"

    def listed(self) -> tuple[str, str | None, bool]:
        """What Spark lists for it: a path or pattern, a pattern for names, and whether it looks into all folders."""
        options = self._options()
        return self._load_path(), options.get("pathGlobFilter"), "recursiveFileLookup" in options

    def _options(self) -> dict[str, str]:
        options = {"maxFileAge": _MAX_FILE_AGE}
        if self.max_files_per_epoch is not None:
            options["maxFilesPerTrigger"] = str(self.max_files_per_epoch)
        else:
            options["maxBytesPerTrigger"] = str(EPOCH_BYTES_AT_MOST)
        if self._is_file():
            options["pathGlobFilter"] = _literal_glob(Path(self.path).name)
        elif self.glob is not None:
            options["pathGlobFilter"] = self.glob
        if self.recursive:
            options["recursiveFileLookup"] = "true"
        return options

    def _is_remote(self) -> bool:
        return "://" in self.path

    def _is_file(self) -> bool:
        return not self._is_remote() and Path(self.path).is_file()

    def _load_path(self) -> str:
        if self._is_remote():
            return self.path
        whole = os.path.abspath(self.path)
        # Spark streams folders only, so a single file is its folder with a pattern that fits nothing else.
        return os.path.dirname(whole) if self._is_file() else whole

    def check_there(self) -> None:
        """A pattern and a remote folder are Spark's to find; a plain local path must exist before anything starts."""
        if self._is_remote() or any(sign in self.path for sign in "*?[{"):
            return
        if not Path(self.path).exists():
            raise ProgramError(
                f"there is no folder {self.path}",
                where=self.where,
                expected="an existing folder; it may be empty, new files are picked up",
                found=f"nothing at {os.path.abspath(self.path)}",
                next_move=f"mkdir -p {self.path}, or correct the path",
            )

    def _existing(self) -> list[Path]:
        """Files that are there already, in name order; only where they are on this machine and named plainly."""
        if self._is_remote():
            return []
        root = Path(self.path)
        if root.is_file():
            return [root]
        pattern = self.glob or "*"
        found = root.rglob(pattern) if self.recursive else root.glob(pattern)
        return sorted(path for path in found if path.is_file() and path.name[0] not in "._")


def _literal_glob(name: str) -> str:
    """A pattern that fits this name alone.

    >>> _literal_glob("a[1].json")
    'a\\\\[1\\\\].json'
    """
    return re.sub(r"([*?\[\]{}\\])", r"\\\1", name)


# --- files that a job reads again


_MS: int = 1_000_000
"""Nanoseconds."""


def find_files(passage: Passage) -> Replay:
    """Looks at every file that was read between two positions. One that was changed since may hold other rows now."""
    gone: list[str] = []
    changed: list[str] = []
    for file in passage.files:
        modified_ms = _modified_ms(file)
        if modified_ms is None:
            gone.append(file.url)
        elif file.modified_ms and modified_ms not in (0, file.modified_ms):
            changed.append(file.url)
    if gone:
        more = f" and {count_of(len(gone) - 1, 'other file')}" if len(gone) > 1 else ""
        return Replay("lost", f"{gone[0]}{more} cannot be found")
    return Replay("unknown", f"{changed[0]} was changed since it was read") if changed else SURE


def _modified_ms(file: InputFile) -> int | None:
    """When a file was last changed; None where it is not there, 0 where that is not told."""
    parts = urlsplit(file.url)
    if parts.scheme in ("", "file"):
        try:
            return Path(unquote(parts.path)).stat().st_mtime_ns // _MS
        except (FileNotFoundError, NotADirectoryError):
            return None
    import fsspec

    # Spark's names of object stores are those of Hadoop.
    url = file.url.replace(f"{parts.scheme}://", f"{parts.scheme.removesuffix('a')}://", 1)
    system, path = fsspec.core.url_to_fs(unquote(url), use_listings_cache=False)
    exists: Any = system.exists(path)
    return 0 if exists else None


# --- rows out of files of JSON lines without Spark, for replays: they read few files and start no JVM


def read_json_file(codec: RowCodec, uri: str) -> Iterator[pa.RecordBatch | BadRows]:
    """The rows of a file, by the name Spark gives it: decoded as the row type's own JSON, as events are by HTTP."""
    path = local_file(uri)
    if path is None or not path.is_file():
        raise InputLost(
            "a file that the job has read is not there any more",
            where=uri,
            next_move="bring it back, or replay epochs whose input is still there",
        )
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        numbered = enumerate(_lines(file), 1)
        while part := list(islice(numbered, BATCH_ROWS)):
            yield from _decode(codec, uri, part)


def _lines(file: Iterable[bytes]) -> Iterator[bytes]:
    return (line.removeprefix(b"\xef\xbb\xbf").strip() for line in file)


def _decode(codec: RowCodec, uri: str, lines: list[tuple[int, bytes]]) -> Iterator[pa.RecordBatch | BadRows]:
    rows, bad = [], []
    for number, line in lines:
        if not line:
            continue
        try:
            row = codec.from_json(line)
            codec.to_arrays([row])
            rows.append(row)
        except BadRow as error:
            reason = str(error.__cause__ or error).splitlines()[0]
            bad.append(BadRows.text(f"{uri}:{number}", line.decode(errors="replace"), reason))
    if rows:
        yield pa.RecordBatch.from_arrays(codec.to_arrays(rows), schema=codec.schema)
    if bad:
        yield BadRows(bad)
