"""Values read as the type that a reader asks for, whatever the type they were stored as, as far as rules lead there.

Who asks without a type is answered in the version that a value was written in. Functions of the program are not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from headrace.model.job import DeclaredState, FormerType, derive_version
from headrace.model.type_shape import describe_type
from headrace.model.values import check_storable
from headrace.state.adapters import Adapters

if TYPE_CHECKING:
    from headrace.state.lookup import Layers

RESULTS: Final = ("aggregate", "windows")
"""Kinds of states that are asked for in the type of their results, which is not that of what is stored."""


def adapt_to(layers: Layers, table: str, states: Mapping[str, DeclaredState], value: Any, address: str) -> Layers:
    """The runs of a step, with the values of a table as the type that was asked for."""
    declared = states[table]
    if declared.kind in RESULTS or declared.type is None:
        return layers
    check_storable(value, where=f"state {address}")
    newest = derive_version(states) + 1
    formers = (FormerType(declared.since, declared.type), *declared.formers)
    asked = replace(declared, type=describe_type(value), since=newest, formers=formers)
    adapters = Adapters(address.partition(".")[0], {**states, table: asked}, lenient=True)
    if all(adapters.of(table, ref.version) is None for ref, _ in layers.runs):
        return layers
    return layers.adapted_by(adapters)
