"""The first rows of each key, as the graph holds them: how many, in what order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from headrace.model.job import COLUMNS
from headrace.model.type_shape import describe_type
from headrace.operators.spec import CombinedRows, StepInfo, StepSpec, StoredType

if TYPE_CHECKING:
    from headrace.operators.asked import Columns
    from headrace.operators.contract import Operator


Ties = Literal["broken", "shared", "dense"]


@dataclass(frozen=True)
class OrderColumn:
    """A column by which rows are put in order."""

    name: str
    descending: bool = False
    nulls_last: bool = False

    def __str__(self) -> str:
        # As in Spark, null stands before all values where nobody says otherwise, so last where the order is turned.
        usual = self.nulls_last is self.descending
        nulls = "" if usual else " nulls last" if self.nulls_last else " nulls first"
        return f"{self.name}{' desc' * self.descending}{nulls}"


@dataclass(frozen=True)
class TopSpec(StepSpec):
    """The first rows of each key; rows leave them when others come, and come back when those go."""

    takes_back: ClassVar[bool] = True

    most: int
    order: tuple[OrderColumn, ...]
    signed: bool
    """Whether rows may go."""
    unique: tuple[str, ...] | None
    """The unique key of rows, where one is known: it decides between rows of one place."""
    rank: str | None = None
    """The column with the place of a row."""
    ties: Ties = "broken"
    """What rows that are equal by the order are to each other: told apart by their unique key and other columns, or in
    one place, behind which places go on with a gap or without."""
    newest: bool = False
    """Whether the newest row by event time comes first, before any column is asked."""

    def build(self, info: StepInfo) -> Operator:
        from headrace.operators.changelogs.top import TopOperator

        return TopOperator(info.step, info.taken[0], info.codec, self, info.key_type)

    def combined(self, info: StepInfo) -> CombinedRows | None:
        from headrace.operators.changelogs.first_rows import leave_first_rows

        return None if self.signed else leave_first_rows(self, info)

    def asked(self, info: StepInfo, needed: Columns, *, narrows: bool) -> tuple[Columns, ...]:
        if needed is None or not narrows:
            return (None,)
        return ((needed - {self.rank or ""}).union(self.unique or (), (column.name for column in self.order)),)

    def stored(self, info: StepInfo) -> Mapping[str, StoredType]:
        from headrace.operators.changelogs.top import ROWS_TABLE

        kind = info.taken[0].type
        return {ROWS_TABLE: StoredType(COLUMNS, describe_type(kind), kind)}

    def rules(self, info: StepInfo) -> Mapping[str, str]:
        columns = ", ".join(f"{field.name} {field.type}" for field in info.taken[0].schema)
        order = ", ".join(map(str, self.order)) or "time"
        kept = "all rows" if self.signed else f"the first {self.most} by {order}"
        ties = "" if self.ties == "broken" or self.signed else f", {self.ties} places"
        return {"rows": f"{kept} of each key{ties}, of ({columns})"}

    def tell(self) -> tuple[str, ...]:
        order = ", ".join(map(str, self.order))
        kept = "all rows of a key, because the first may go" if self.signed else "these rows"
        return (f"the first {self.most} by {order}", f"keeps {kept}")


@dataclass(frozen=True)
class SinkRowsSpec(TopSpec):
    """The step that the planner puts before a sink that finds rows by another key than theirs.

    Rows of one key of the sink come from several shards. They are brought together and kept, so that what goes from one
    shard never deletes what has come from another. Where several rows hold for one key, the newest is shown.
    """

    of: str = ""
    """The output."""

    def tell(self) -> tuple[str, ...]:
        return (f"keeps the rows of each key of {self.of}, of which the newest by event time is there",)
