"""Steps that handle rows in the order of their time, as the graph holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.model.job import COLUMNS, WAITING_ROWS
from headrace.model.type_shape import describe_type
from headrace.operators.spec import StepInfo, StepSpec, StoredType

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec
    from headrace.operators.contract import Operator

WAITING_TABLES: Final = (WAITING_ROWS, f"{WAITING_ROWS}_right")
"""Where rows of each input wait, by port."""
WAITING_RULES: Final = f"{WAITING_ROWS}_rules"
"""Where broadcast rows do."""


@dataclass(frozen=True)
class TimeOrder:
    """``process(fn, order=("time", "id"))``: time, and what decides between rows of one time."""

    columns: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ", then ".join(("time", *self.columns))

    def places(self, codec: RowCodec) -> tuple[int, ...]:
        """The columns that rows of an input have, by their position."""
        return tuple(codec.index(name) for name in self.columns if name in codec.names)

    def stored(self, taken: Sequence[RowCodec]) -> dict[str, StoredType]:
        """What waits of inputs that have keys."""
        kinds = [codec.type for codec in taken]
        return {table: StoredType(COLUMNS, describe_type(kind), kind) for table, kind in zip(WAITING_TABLES, kinds)}

    def rules(self) -> dict[str, str]:
        return {"order": str(self)}

    def tell(self) -> tuple[str, ...]:
        return (f"each key's rows in the order of {self}, when the watermark has passed them; keeps rows until then",)


@dataclass(frozen=True)
class OrderedSpec(StepSpec):
    """A function of one keyed stream, or of two that share state, that sees rows in the order of their time."""

    function: Any
    order: TimeOrder

    @property
    def uses_watermark(self) -> bool:
        return True

    @property
    def in_time_order(self) -> bool:
        return True

    def build(self, info: StepInfo) -> Operator:
        from headrace.operators.ordered import OrderedProcessOperator

        return OrderedProcessOperator(
            info.step, self.function, info.decls, info.taken, info.codec, self.order, key_type=info.key_type
        )

    def stored(self, info: StepInfo) -> Mapping[str, StoredType]:
        return self.order.stored(info.taken)

    def rules(self, info: StepInfo) -> Mapping[str, str]:
        return self.order.rules()

    def tell(self) -> tuple[str, ...]:
        return self.order.tell()
