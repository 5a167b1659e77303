"""A sample of a program's input in files: ``sample/SOURCE.jsonl``, or a file per split, ``sample/SOURCE/SPLIT.jsonl``.

JSON lines (``.jsonl``, ``.json``) say times as ISO text; Parquet (``.parquet``) has the columns of the source's type.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import HeadraceError, ProgramError
from headrace.model.nearest import did_you_mean
from headrace.model.values import type_name
from headrace.testing.deliveries import SampleRow

if TYPE_CHECKING:
    from headrace.dataflow.graph import ReadNode

_KINDS: Final = (".jsonl", ".json", ".parquet")


def read_sample(folder: Path, reads: Sequence[ReadNode]) -> list[SampleRow]:
    """All rows of a folder, file by file."""
    sources = {read.name or "": read for read in reads}
    if not folder.is_dir():
        raise ProgramError("there is no such folder", where=str(folder),
                           expected=f"files named after {_source_words(sources)}",
                           next_move="give a folder with a file of rows for each source")  # fmt: skip
    rows: list[SampleRow] = []
    for source, split, file in _files(folder):
        if source not in sources:
            raise ProgramError(
                "the program has no such source",
                where=str(file),
                expected=_source_words(sources),
                found=source,
                next_move=did_you_mean(source, list(sources), "name the file after the source that app.read names"),
            )
        rows += [SampleRow(source, split, row) for row in _rows_of(file, sources[source])]
    if not rows:
        raise ProgramError("the sample has no rows", where=str(folder), expected=f"rows of {_source_words(sources)}",
                           found="none", next_move=f"write SOURCE{_KINDS[0]}, a JSON document per line")  # fmt: skip
    return rows


def _source_words(sources: Any) -> str:
    return " or ".join(sorted(sources))


def _files(folder: Path) -> Iterator[tuple[str, str, Path]]:
    """Source, split and file."""
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            yield from ((path.name, each.stem, each) for each in sorted(path.iterdir()) if each.suffix in _KINDS)
        elif path.suffix in _KINDS:
            yield path.stem, "", path


def _rows_of(file: Path, read: ReadNode) -> list[Any]:
    codec = read.codec
    try:
        if file.suffix == ".parquet":
            import pyarrow.parquet as pq

            table = pq.read_table(file).select(codec.names).cast(codec.schema).combine_chunks()
            return codec.to_objects([column.combine_chunks() for column in table.columns])
        return [codec.from_json(line) for line in file.read_bytes().splitlines() if line.strip()]
    except (HeadraceError, ValueError, KeyError) as error:
        raise ProgramError("the sample does not fit its source", where=str(file), expected=type_name(codec.type),
                           found=str(error), next_move="mend the file, or take the line out") from error  # fmt: skip
