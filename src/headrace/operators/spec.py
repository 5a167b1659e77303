"""What a kind of step says of itself: the bridge between a verb of the user and the operator that runs it.

A spec is frozen data that a verb puts into the graph. The planner asks it what the step needs of the engine and how its
operator is made; nothing else in the planner knows windows from joins. It travels to the workers inside the operator's
builder, so it holds no open file, no session and no operator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

if TYPE_CHECKING:
    from headrace.model.job import DeclaredState
    from headrace.model.rows import RowCodec
    from headrace.model.type_shape import TypeShape
    from headrace.operators.asked import Columns
    from headrace.operators.contract import Operator
    from headrace.state.handles import StateDecl


@dataclass(frozen=True)
class OperatorChoice:
    """Which of several operators runs a step: chosen by the planner, carried by the program."""

    operator: str
    table: str
    """What the operator stores, in words. A step whose stored table is another one is refused at the start."""
    why: str
    """The reason, as part of a sentence."""


@dataclass(frozen=True)
class StepInfo:
    """Where a spec is used: what the graph knows and the spec does not."""

    step: str
    taken: tuple[RowCodec, ...]
    """Types of the rows that come in, one per input; their positions are the ports of `Operator.process`."""
    codec: RowCodec
    """Type of the rows that come out of the main outlet."""
    key_type: Any
    key_fields: tuple[str, ...]
    """Columns of the first input that make the key, part by part; ``key`` where a function makes it; empty where the
    step is over the whole stream."""
    decls: tuple[StateDecl, ...] = ()
    """What the step's function declares."""
    choice: OperatorChoice | None = None
    """The answer of `StepSpec.choose`."""


class StoredType(NamedTuple):
    """What lies in one table of a step."""

    kind: str
    shape: TypeShape | None
    annotation: Any = None
    """Python type of one stored value, or row; None: of accumulators, which have none of their own."""


WALL: Final = "wall"
"""The clock of the machine, as states, windows and triggers name it."""
COMBINED_PORT: Final = 1
"""Where a step of one input takes rows that were combined before the exchange."""


@dataclass(frozen=True)
class CombinedRows:
    """What stands before the exchange of a step, and what travels in place of its rows."""

    codec: RowCodec
    build: Callable[[], Operator]
    """Makes the operator. What it emits has the columns of the codec and, last, the encoded key."""


class StepSpec(ABC):
    """One kind of stateful step. Subclasses are frozen dataclasses beside their operator."""

    takes_back: ClassVar[bool] = False
    """Whether the step takes rows that may go, and gives a whole changelog itself, with what each row takes back."""

    @property
    def uses_watermark(self) -> bool:
        """Whether the step must know the watermark of its own epoch: whatever fires on event time does."""
        return False

    @property
    def uses_wall_clock(self) -> bool:
        """Whether what the step does depends on the wall clock: the same rows may come to something else later."""
        return WALL in self.expiring().values()

    @property
    def in_time_order(self) -> bool:
        """Whether rows are handled in the order of their time, wherever epochs end."""
        return False

    def choose(self, info: StepInfo) -> OperatorChoice | None:
        """Which operator will run the step, where there are several. A pure function, asked once, by the planner."""
        return None

    @abstractmethod
    def build(self, info: StepInfo) -> Operator:
        """Makes the operator that was chosen, once per worker."""

    def combined(self, info: StepInfo) -> CombinedRows | None:
        """How rows are combined before the exchange; None: they travel as they are.

        Not asked where somebody reads late rows, or where another step shares the exchange: both want the rows.
        """
        return None

    def asked(self, info: StepInfo, needed: Columns, *, narrows: bool) -> tuple[Columns, ...]:
        """The columns of each input that the step reads beside its keys, where these of its results are asked for.

        ``narrows``: whether it may keep fewer columns than its rows have. Asking for all is always right.
        """
        return (None,) * len(info.taken)

    def states(self) -> Mapping[str, str]:
        """State name → kind, beyond what the function declares; for people and for queries."""
        return {}

    def declared(self, info: StepInfo) -> Mapping[str, DeclaredState]:
        """States that a reader without the program must know more of than their kind."""
        return {}

    def stored(self, info: StepInfo) -> Mapping[str, StoredType]:
        """Table → its kind and the type of what is stored there, beyond what the function declares.

        Tables whose columns say their types themselves are left out.
        """
        return {}

    def expiring(self) -> Mapping[str, str]:
        """State → the clock by which its entries expire, ``event`` or ``wall``, beyond what the function declares."""
        return {}

    def rules(self, info: StepInfo) -> Mapping[str, str]:
        """What the step does with what it keeps: name of the rule → words that differ where the rule does.

        They stand in manifests, so that a later program that has others can be judged by them.
        """
        return {}

    def tell(self) -> tuple[str, ...]:
        """What ``app.explain()`` says of the step, a note each."""
        return ()
