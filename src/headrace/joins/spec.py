"""What kinds of joins there are, as the graph holds them: frozen data that knows how its operator is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from headrace.model.job import COLUMNS, INNER, DeclaredState
from headrace.model.pairs import PairCodec
from headrace.model.time import format_span
from headrace.model.type_shape import describe_type
from headrace.operators.asked import NO_COLUMNS, columns_of_sides, with_columns
from headrace.operators.spec import StepInfo, StepSpec, StoredType
from headrace.windows.spec import WindowSpec

if TYPE_CHECKING:
    from headrace.operators.asked import Columns
    from headrace.operators.contract import Operator
    from headrace.state.ttl import TTL
    from headrace.windows.context import WindowContext
    from headrace.windows.kinds import Assigner

How = Literal["inner", "left", "right", "full"]
AnyHow = Literal["inner", "left", "right", "full", "semi", "anti"]
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

    def asked(self, info: StepInfo, needed: Columns, *, narrows: bool) -> tuple[Columns, ...]:
        return columns_of_sides(needed if narrows else None, None, *info.taken)

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
    """All pairs of rows that stay, or the newest row of either side."""

    how: How = "inner"
    keep: Keep = "all"
    ttl: TTL | None = None
    on: str | None = None

    def build(self, info: StepInfo) -> Operator:
        from headrace.joins.unbounded import LatestJoinOperator, UnboundedJoinOperator

        left, right = info.taken
        if self.keep == "latest":
            return LatestJoinOperator(info.step, left, right, self.how, self.ttl)
        return UnboundedJoinOperator(info.step, left, right, self.ttl, self.on)

    @property
    def updates(self) -> bool:
        """Whether later results replace earlier ones."""
        return self.keep == "latest"

    def asked(self, info: StepInfo, needed: Columns, *, narrows: bool) -> tuple[Columns, ...]:
        return columns_of_sides(needed if narrows else None, self.on, *info.taken)

    def stored(self, info: StepInfo) -> Mapping[str, StoredType]:
        return _sides(info)

    def rules(self, info: StepInfo) -> Mapping[str, str]:
        return {"rows": "a join without a window", "keep": self.keep, "how": self.how, **_ttl_rule(self.ttl)}

    def tell(self) -> tuple[str, ...]:
        rows = "all rows" if self.keep == "all" else "the newest row"
        where = () if self.on is None else (_condition_text(self.on),)
        return (f"{self.how} join without a window", *where, f"keeps {rows} of either side {_lasting(self.ttl)}")


@dataclass(frozen=True)
class RegularJoin(StepSpec):
    """What all rows of both sides that hold come to, whatever comes and goes."""

    takes_back: ClassVar[bool] = True

    how: AnyHow
    signed: tuple[bool, bool]
    """By side: whether rows may go."""
    unique: tuple[tuple[str, ...] | None, tuple[str, ...] | None]
    """By side: the unique key of its rows, where one is known."""
    single: tuple[bool, bool] = (False, False)
    """By side: whether a key of the join has one row at most."""
    on: str | None = None
    """A further condition: SQL over ``left`` and ``right``."""
    ttl: TTL | None = None

    @property
    def appends(self) -> bool:
        """Whether results never go: so with semi joins of rows that stay."""
        return self.how in ("inner", "semi") and not any(self.signed)

    @property
    def grouping(self) -> Literal["left", "right", "both"]:
        """Which side's unique key is that of results."""
        if self.how in ("semi", "anti") or (self.how in ("inner", "left") and self.single[1]):
            return "left"
        return "right" if self.how in ("inner", "right") and self.single[0] else "both"

    def build(self, info: StepInfo) -> Operator:
        from headrace.joins.regular import RegularJoinOperator

        left, right = info.taken
        return RegularJoinOperator(info.step, left, right, self, info.key_type)

    def asked(self, info: StepInfo, needed: Columns, *, narrows: bool) -> tuple[Columns, ...]:
        if not narrows:
            return None, None
        single = self.how in ("semi", "anti")
        left, right = columns_of_sides(NO_COLUMNS if single else needed, self.on, *info.taken)
        if single:
            left = with_columns(needed, left or ()) if left is not None else None
        return with_columns(left, self.unique[0] or ()), with_columns(right, self.unique[1] or ())

    def stored(self, info: StepInfo) -> Mapping[str, StoredType]:
        return _sides(info)

    def rules(self, info: StepInfo) -> Mapping[str, str]:
        # What is kept are hashes of whole rows, and numbers of partners: other rows have others.
        sides = " and ".join(
            ", ".join(f"{field.name} {field.type}" for field in codec.schema) or "nothing" for codec in info.taken
        )
        where = "" if self.on is None else f", {_condition_text(self.on)}"
        kept = "for every change" if any(self.signed) else "for rows that stay"
        return {"rows": f"a {self.how} join {kept}{where}, of ({sides})", "how": self.how, **_ttl_rule(self.ttl)}

    def tell(self) -> tuple[str, ...]:
        where = () if self.on is None else (_condition_text(self.on),)
        partners = "" if self.how == "inner" else " and who has partners,"
        return (f"{self.how} join without a window", *where, f"keeps all rows of either side{partners} "
                f"{_lasting(self.ttl)}")  # fmt: skip


def _ttl_rule(ttl: TTL | None) -> dict[str, str]:
    return {} if ttl is None else {"ttl": f"{format_span(ttl.span_us)} by the {ttl.clock} clock"}


def _lasting(ttl: TTL | None) -> str:
    return "for ever" if ttl is None else f"for {format_span(ttl.span_us)} by {ttl.clock} clock"


def _condition_text(on: str) -> str:
    return f"where {on.replace('`', '')}"


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

    def asked(self, info: StepInfo, needed: Columns, *, narrows: bool) -> tuple[Columns, ...]:
        return columns_of_sides(needed if narrows else None, None, *info.taken)

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
