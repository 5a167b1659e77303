"""Two sides of a difference read as one type: of a state whose type changed in between, the newer one.

What a fold would have rewritten by now is no difference. Values go on from the newest type of their own side through
whatever types the other side says came after it, as `headrace.model.type_history` has it. Functions of the program are
not here: what they alone can read is compared as it is stored, and said to be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from headrace.model.job import DeclaredState, FormerType, derive_version
from headrace.model.type_history import derive_reading, value_part
from headrace.model.type_shape import TypeShape, nameless, type_text
from headrace.read.asked_types import RESULTS
from headrace.state.adapters import Adapters

if TYPE_CHECKING:
    from headrace.state.lookup import Layers


class CommonType:
    """The type that both sides of a state are read as."""

    def __init__(self, state: DeclaredState) -> None:
        """``state``: as the side declares it whose type is the newer one."""
        self._state = state
        self.times = state.times
        self._unread: dict[str, None] = {}

    @property
    def note(self) -> str:
        """What is to be said of values that cannot be read as it; empty where all can."""
        if not self._unread:
            return ""
        new = _words(self._state.kind, self._state.type)
        return f"{' and '.join(self._unread)} becomes {new} with the program only: compared as stored"

    def adapt(self, layers: Layers, step: str, table: str, states: Mapping[str, DeclaredState]) -> Layers:
        """The runs of a step of one side. ``states``: as that side declares them."""
        state = self._led_on(states[table], derive_version(states) + 1)
        versions = {ref.version for ref, _ in layers.runs}
        for version in versions:
            if derive_reading(state, version, fill=True).kind == "refused":
                self._unread[_words(state.kind, state.type_in(version))] = None
        adapters = Adapters(step, {**states, table: state}, rewrites=True, lenient=True)
        if all(adapters.of(table, version) is None for version in versions):
            return layers
        return layers.adapted_by(adapters)

    def _led_on(self, mine: DeclaredState, version: int) -> DeclaredState:
        """A state of one side, with the types that came after its own. ``version``: one that no run of it has."""
        later = [shape for shape in self._types_after(mine) if shape is not None]
        for shape in later:
            formers = (FormerType(mine.since, mine.type), *mine.formers)
            mine, version = replace(mine, type=shape, since=version, formers=formers), version + 1
        return mine

    def _types_after(self, mine: DeclaredState) -> Iterator[TypeShape | None]:
        if _is_same(mine.type, self._state.type):
            return
        types = self._state.types_since(mine.since)
        # Versions of two stores may mean different things: then what came in between is not known.
        yield from types[1:] if _is_same(types[0], mine.type) else (self._state.type,)


def derive_common_type(first: DeclaredState | None, second: DeclaredState | None) -> CommonType | None:
    """None where both sides are read as they are."""
    if first is None or second is None or first.kind != second.kind or first.kind in RESULTS:
        return None
    if first.type is None or second.type is None:
        return None
    if not (first.formers or second.formers or not _is_same(first.type, second.type)):
        return None
    return CommonType(first if first.since > second.since else second)


def _is_same(one: TypeShape | None, other: TypeShape | None) -> bool:
    return one is not None and other is not None and nameless(one) == nameless(other)


def _words(kind: str, shape: TypeShape | None) -> str:
    part = value_part(kind, shape)
    return "unknown" if part is None else type_text(part)
