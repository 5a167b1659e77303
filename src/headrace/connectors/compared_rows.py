"""What two targets show, row by row by a key: `compare_rows`.

Rows come as tables of columns, in any order and any number, and are compared as text, each value as it is written by
itself; so a column may have another type on either side, and numbers that are equal are the same whether they are whole
or not. Both sides are cut by the hash of the key, and pieces lie in files of their own once there are many: memory is
bounded by one piece of both. Where several rows have one key, they are held against each other in the order of what
else they hold. Without a key whole rows are, so a row is added or removed, and never changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.text import value_texts

if TYPE_CHECKING:
    import polars as pl

PIECES: Final = 64
_HELD_BYTES: Final = 256 * 2**20
"""Of one side in memory, before its pieces go to files."""
_NUMBER: Final = "headrace_number"
_PIECE: Final = "headrace_piece"
_SECOND: Final = "headrace_second_"
_SIDE: Final = "headrace_side"

Change = Literal["added", "removed", "changed"]


class RowDifference(NamedTuple):
    """A row that is on one side only, or is another one there. Values as text."""

    change: Change
    key: dict[str, str | None]
    before: dict[str, str | None]
    """The columns that differ as the first side has them; of a row that is removed all of them."""
    after: dict[str, str | None]


class RowCounts(NamedTuple):
    """How many rows of two targets are the same, and how many are not."""

    first: int = 0
    """Rows of the first side."""
    second: int = 0
    added: int = 0
    removed: int = 0
    changed: int = 0

    @property
    def same(self) -> bool:
        return not (self.added or self.removed or self.changed)

    def plus(self, other: RowCounts) -> RowCounts:
        return RowCounts(*(a + b for a, b in zip(self, other, strict=True)))


class RowComparison:
    """Two sides, read once; what differs comes piece by piece."""

    def __init__(self, columns: Sequence[str], key: Sequence[str], folder: Path) -> None:
        """``columns``: those that both sides have. ``key``: some of them; empty: whole rows. ``folder``: for files."""
        self._columns = tuple(columns)
        self._key = tuple(key) or self._columns
        self._sides = tuple(_Side(self._columns, self._key, folder / name) for name in ("first", "second"))
        self.counts = RowCounts()
        """Of the pieces that have been compared."""

    def read(self, first: Iterable[pa.Table], second: Iterable[pa.Table]) -> None:
        for side, tables in zip(self._sides, (first, second), strict=True):
            for table in tables:
                side.add(table)

    def differences(self) -> Iterator[RowDifference]:
        for piece in range(PIECES):
            yield from self._compare(*(side.piece(piece) for side in self._sides))

    def _compare(self, first: pl.DataFrame, second: pl.DataFrame) -> Iterator[RowDifference]:
        import polars as pl

        by = [*self._key, _NUMBER]
        rest = [name for name in self._columns if name not in self._key]
        marked = pl.lit(value=True)
        others = [pl.col(name).alias(f"{_SECOND}{name}") for name in rest]
        joined = first.with_columns(marked.alias(_SIDE)).join(
            second.select(*by, *others, marked.alias(f"{_SECOND}{_SIDE}")),
            on=by, how="full", coalesce=True, nulls_equal=True,
        )  # fmt: skip
        here, there = pl.col(_SIDE).is_not_null(), pl.col(f"{_SECOND}{_SIDE}").is_not_null()
        differs = [pl.col(name).ne_missing(pl.col(f"{_SECOND}{name}")) for name in rest]
        changed = here & there & pl.any_horizontal(differs) if differs else pl.lit(value=False)
        kinds = pl.when(~here).then(pl.lit("added")).when(~there).then(pl.lit("removed"))
        found = joined.with_columns(kinds.when(changed).then(pl.lit("changed")).alias(_PIECE)).filter(
            pl.col(_PIECE).is_not_null()
        )
        numbers = dict(found.group_by(_PIECE).len().iter_rows())
        counted = (numbers.get(kind, 0) for kind in ("added", "removed", "changed"))
        self.counts = self.counts.plus(RowCounts(first.height, second.height, *counted))
        for row in found.sort(by).iter_rows(named=True):
            yield _difference(row, self._key, rest)


def _difference(row: dict[str, Any], key: Sequence[str], rest: Sequence[str]) -> RowDifference:
    change: Change = row[_PIECE]
    before = {name: row[name] for name in rest}
    after = {name: row[f"{_SECOND}{name}"] for name in rest}
    if change == "changed":
        differing = [name for name in rest if before[name] != after[name]]
        before, after = ({name: side[name] for name in differing} for side in (before, after))
    return RowDifference(
        change, {name: row[name] for name in key}, {} if change == "added" else before,
        {} if change == "removed" else after,
    )  # fmt: skip


class _Side:
    """The rows of one side, in pieces."""

    def __init__(self, columns: Sequence[str], key: Sequence[str], folder: Path) -> None:
        self._columns = columns
        self._key = key
        self._folder = folder
        self._held: dict[int, list[pl.DataFrame]] = {}
        self._held_bytes = 0
        self._files = 0

    def add(self, table: pa.Table) -> None:
        import polars as pl

        texts = pa.table({name: text_column(table.column(name)) for name in self._columns})
        frame = pl.DataFrame(pl.from_arrow(texts)).with_columns(
            (pl.struct(self._key).hash(seed=1) % PIECES).cast(pl.Int32).alias(_PIECE)
        )
        for (piece,), rows in frame.partition_by(_PIECE, as_dict=True, include_key=False).items():
            self._held.setdefault(int(piece), []).append(rows)
        self._held_bytes += texts.nbytes
        if self._held_bytes > _HELD_BYTES:
            self._spill()

    def _spill(self) -> None:
        import polars as pl

        self._folder.mkdir(parents=True, exist_ok=True)
        for piece, frames in self._held.items():
            pl.concat(frames).write_ipc(self._folder / f"{piece}-{self._files}.arrow")
        self._files += 1
        self._held, self._held_bytes = {}, 0

    def piece(self, number: int) -> pl.DataFrame:
        """The rows of a piece, and which of those of their key each is."""
        import polars as pl

        frames = [pl.read_ipc(path) for path in sorted(self._folder.glob(f"{number}-*.arrow"))]
        frames += self._held.pop(number, [])
        rows = pl.concat(frames) if frames else pl.DataFrame(schema=dict.fromkeys(self._columns, pl.String))
        return rows.sort(self._columns).with_columns(pl.int_range(pl.len()).over(self._key).alias(_NUMBER))


def text_column(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Each value as text. Whole floats are written as whole numbers; what has parts, as JSON."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    kind = array.type
    if pa.types.is_dictionary(kind):
        return text_column(array.dictionary_decode())
    if pa.types.is_floating(kind):
        return pc.replace_substring_regex(value_texts(array), r"\.0$", "")
    if pa.types.is_nested(kind):
        encode = msgspec.json.Encoder(order="sorted").encode
        return pa.array([None if each is None else encode(each).decode() for each in array.to_pylist()], pa.string())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array([None if each is None else each.hex() for each in array.to_pylist()], pa.string())
    return value_texts(array).cast(pa.string())
