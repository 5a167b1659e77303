"""What kinds of joins there are, as the graph holds them: frozen data that knows how its operator is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from headrace.model.job import COLUMNS, INNER, DeclaredState
from headrace.model.pairs import PairCodec
from headrace.model.time import format_span
from headrace.model.type_shape import describe_type
from headrace.operators.spec import StepInfo, StepSpec, StoredType
from headrace.windows.spec import WindowSpec

if TYPE_CHECKING:
    from headrace.operators.contract import Operator
    from headrace.state.ttl import TTL
    from headrace.windows.context import WindowContext
    from headrace.windows.kinds import Assigner

How = Literal["inner", "left", "right", "full"]
Keep = Literal["all", "latest"]


@dataclass(frozen=True)
class ConnectSpec(StepSpec):
    """Two keyed inputs and a function with a method for each."""

    function: Any

    def build(self, info: StepInfo) -> Operator:
        from headrace.joins.connect import CoProcessOperator

        return CoProcessOperator(info.step, self.function, info.decls, info.codec, key_type=info.key_type)


@dataclass(frozen=True)
class IntervalJoin(StepSpec):
    """Rows whose times lie in a stretch around each other: right − left, both bounds included."""

    outlets: ClassVar[tuple[str, ...]] = ("unmatched_left", "unmatched_right", "late_left", "late_right")
    """What comes out beside the pairs."""

    low_us: int
    high_us: int
    how: How = "inner"

    @property
    def uses_watermark(self) -> bool:
        return True

    def build(self, info: StepInfo) -> Operator:
        from headrace.joins.interval import IntervalJoinOperator

        left, right = info.taken
        return IntervalJoinOperator(info.step, left, right, self.low_us, self.high_us, self.how)

    def stored(self, info: StepInfo) -> Mapping[str, StoredType]:
        return _sides(info)

    def rules(self, info: StepInfo) -> Mapping[str, str]:
        within = f"right from {format_span(self.low_us)} to {format_span(self.high_us)} after left"
        return {"rows": "an interval join", "within": within, "how": self.how}

    def tell(self) -> tuple[str, ...]:
        low, high = format_span(self.low_us), format_span(self.high_us)
        return (
            f"{self.how} join, right from {low} to {high} after left",
            f"keeps left rows for {_span_text(self.high_us)}, right rows for {_span_text(-self.low_us)} of event time",
        )


@dataclass(frozen=True)
class UnboundedJoin(StepSpec):
    """All rows of one key, or the newest of either side."""

    how: How = "inner"
    keep: Keep = "all"
    ttl: TTL | None = None

    def build(self, info: StepInfo) -> Operator:
        from headrace.joins.unbounded import LatestJoinOperator, UnboundedJoinOperator

        kind = UnboundedJoinOperator if self.keep == "all" else LatestJoinOperator
        left, right = info.taken
        return kind(info.step, left, right, self.how, self.ttl)

    @property
    def updates(self) -> bool:
        """Whether later results replace earlier ones."""
        return self.keep == "latest" or self.how != "inner"

    def stored(self, info: StepInfo) -> Mapping[str, StoredType]:
        return _sides(info)

    def rules(self, info: StepInfo) -> Mapping[str, str]:
        ttl = {} if self.ttl is None else {"ttl": f"{format_span(self.ttl.span_us)} by the {self.ttl.clock} clock"}
        return {"rows": "a join without a window", "keep": self.keep, "how": self.how, **ttl}

    def tell(self) -> tuple[str, ...]:
        rows = "all rows" if self.keep == "all" else "the newest row"
        lasting = "for ever" if self.ttl is None else f"for {format_span(self.ttl.span_us)} by {self.ttl.clock} clock"
        return (f"{self.how} join without a window", f"keeps {rows} of either side {lasting}")


@dataclass(frozen=True)
class AsOfJoin(StepSpec):
    """Left rows beside what held on the right side at their time."""

    outlets: ClassVar[tuple[str, ...]] = ("unmatched_left", "late_left", "late_right")

    tolerance_us: int | None = None

    @property
    def uses_watermark(self) -> bool:
        return True

    def build(self, info: StepInfo) -> Operator:
        from headrace.joins.as_of import AsOfJoinOperator

        left, right = info.taken
        return AsOfJoinOperator(info.step, left, right, self.tolerance_us)

    def stored(self, info: StepInfo) -> Mapping[str, StoredType]:
        return _sides(info)

    def rules(self, info: StepInfo) -> Mapping[str, str]:
        tolerance = "any age" if self.tolerance_us is None else format_span(self.tolerance_us)
        return {"rows": "an as-of join", "tolerance": tolerance}

    def tell(self) -> tuple[str, ...]:
        limit = "" if self.tolerance_us is None else f", at most {format_span(self.tolerance_us)} old"
        return (
            f"right side as of each left row's time{limit}",
            "keeps left rows until the watermark has come to them, and the right rows that may still hold",
        )


@dataclass(frozen=True)
class WindowJoin(StepSpec):
    """Rows of one key that lie in the same window."""

    assigner: Assigner
    how: How = "inner"

    @property
    def outlets(self) -> tuple[str, ...]:
        return ("unmatched_left", "unmatched_right", *_lates(self.assigner))

    @property
    def uses_watermark(self) -> bool:
        return WindowSpec(self.assigner).uses_watermark

    def build(self, info: StepInfo) -> Operator:
        from headrace.joins.windowed import WindowJoinOperator

        return WindowJoinOperator(self.assigner, self.how, info)

    def declared(self, info: StepInfo) -> Mapping[str, DeclaredState]:
        return _declared(self.assigner, info)

    def stored(self, info: StepInfo) -> Mapping[str, StoredType]:
        return _pairs(info)

    def rules(self, info: StepInfo) -> Mapping[str, str]:
        return {"rows": "a window join", "how": self.how}

    def tell(self) -> tuple[str, ...]:
        return (f"{self.how} join", *WindowSpec(self.assigner).tell(), "keeps every row until its window goes")


@dataclass(frozen=True)
class CoGroup(StepSpec):
    """A function of the rows that both sides have in a window."""

    assigner: Assigner
    function: Any

    @property
    def outlets(self) -> tuple[str, ...]:
        return _lates(self.assigner)

    @property
    def uses_watermark(self) -> bool:
        return WindowSpec(self.assigner).uses_watermark

    def build(self, info: StepInfo) -> Operator:
        from headrace.joins.windowed import CoGroupOperator

        return CoGroupOperator(self.assigner, self.function, info)

    def declared(self, info: StepInfo) -> Mapping[str, DeclaredState]:
        return _declared(self.assigner, info)

    def stored(self, info: StepInfo) -> Mapping[str, StoredType]:
        return _pairs(info)

    def rules(self, info: StepInfo) -> Mapping[str, str]:
        return {"rows": "a co-group"}

    def tell(self) -> tuple[str, ...]:
        return (*WindowSpec(self.assigner).tell(), "keeps every row until its window goes")


class MapGroups:
    """A plain function of both sides' rows: one row for each key and window."""

    def __init__(self, fn: Callable[[list[Any], list[Any]], Any]) -> None:
        self.fn = fn

    def on_window(self, lefts: list[Any], rights: list[Any], ctx: WindowContext[Any]) -> list[Any]:
        return [self.fn(lefts, rights)]


def _declared(assigner: Assigner, info: StepInfo) -> Mapping[str, DeclaredState]:
    """What windows are kept as; a program that comes back with others is told by it."""
    words = WindowSpec(assigner).windows
    return {"value": DeclaredState("windows", assigner.clock, key=info.key_fields, windows=words)}


def _sides(info: StepInfo) -> Mapping[str, StoredType]:
    """The rows of either side, as they are stored."""
    from headrace.joins.buffered import TABLES

    kinds = (codec.type for codec in info.taken)
    return {table: StoredType(COLUMNS, describe_type(kind), kind) for table, kind in zip(TABLES, kinds, strict=True)}


def _pairs(info: StepInfo) -> Mapping[str, StoredType]:
    """The rows of windows, each beside an empty place for the other side's."""
    from headrace.windows.by_row.row_contents import ROWS_TABLE

    pair = PairCodec(*info.taken).type
    return {ROWS_TABLE: StoredType(INNER, describe_type(pair), pair)}


def _lates(assigner: Assigner) -> tuple[str, ...]:
    return ("late_left", "late_right") if assigner.clock == "event" else ()


def _span_text(us: int) -> str:
    return format_span(max(us, 0))
