"""What a state is to somebody who edits it: found by its address, with its types, or refused with the reason.

The manifest says what the program declares; nothing is opened here. Values that stand for themselves can be edited:
those of functions, the rows of ``reduce`` and ``latest``, broadcast mappings and timers, and of rolling aggregates the
results that are stored as they are shown. What is made of rows that nobody has any more (windows, joins, horizons,
sketches) cannot be set, because what is stored would no longer be what those rows come to.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, get_args, get_origin

from headrace.edit.edits import Edit
from headrace.errors import ProgramError, StoreError
from headrace.model.ids import MIN_TIME
from headrace.model.job import GIVEN, RESULT, ROW, VALUE_TABLE, DeclaredState
from headrace.model.keys import encode_key, parse_key_text
from headrace.model.time import Timestamp
from headrace.model.time_shape import TIME, TimeShape
from headrace.model.type_json import Encode, key_annotation, value_encoder
from headrace.model.type_shape import TypeShape
from headrace.read.opening import AGGREGATE, WINDOWS, declared_tables, is_nameless
from headrace.state import layout
from headrace.state.format import ENTRIES, VALUE
from headrace.state.manifest import Manifest
from headrace.state.shard import EVENT_DUE, WALL_DUE

_STORED_AS: Final = {
    **dict.fromkeys(("value", "reducing", "aggregating", ROW, AGGREGATE, "broadcast", "timer", "wall_timer"), VALUE),
    **dict.fromkeys(("list", "map", "timers"), ENTRIES),
}
"""Kinds of states that can be edited → the kind of table that holds them."""
_DUE: Final = {"timer": EVENT_DUE, "timers": EVENT_DUE, "wall_timer": WALL_DUE}
_EXACT_RESULTS: Final = frozenset({"count", "sum", "min", "max"})
"""Aggregates whose result is what is stored."""


@dataclass(frozen=True)
class EditTarget:
    """One state that can be edited."""

    address: str
    step: str
    table: str
    declared: DeclaredState
    epoch: int
    """The epoch whose state it is."""
    watermark_us: int
    clock_us: int
    """Event time and wall clock of that epoch: timers must lie behind them."""
    step_has_windows: bool = False
    """Whether states of the step may be of a window, and not of a key."""

    @property
    def kind(self) -> str:
        return self.declared.kind

    @property
    def stored_as(self) -> str:
        """The kind of its table."""
        return _STORED_AS[self.kind]

    @property
    def runs(self) -> str:
        """The name under which manifests list its runs."""
        return layout.broadcast(self.step) if self.kind == "broadcast" else self.step

    @property
    def due_table(self) -> str | None:
        """Of timers the index by time that they stand in."""
        return _DUE.get(self.kind)

    @property
    def due_after_us(self) -> int:
        """A timer of this kind that is set up to this time counts as fired."""
        return self.clock_us if self.kind == "wall_timer" else self.watermark_us

    @property
    def now_us(self) -> int | None:
        """What expired at or before it is gone; None: nothing has."""
        if not self.declared.clock:
            return None
        if self.declared.clock == "wall":
            return self.clock_us
        return None if self.watermark_us <= MIN_TIME else self.watermark_us

    # --- types

    @cached_property
    def key_type(self) -> Any:
        """The annotation of its keys; None: the manifest does not say."""
        return key_annotation(self.declared.key_type, self.declared.key_times)

    @cached_property
    def entry_type(self) -> Any:
        """The same of the names of entries."""
        if self.kind == "list":
            return int
        if self.kind == "timers":
            return Timestamp
        names = None if self.declared.times is None else self.declared.times.names
        return key_annotation(None if self.declared.type is None else self.declared.type.keys, names)

    @property
    def value_shape(self) -> TypeShape | None:
        """The type of a value: of a list or map that of one element."""
        if self.due_table is not None:
            return TypeShape("int")
        shape = self.declared.type
        return shape.items if shape is not None and self.stored_as == ENTRIES else shape

    @property
    def value_times(self) -> TimeShape | None:
        """Where the times of such a value are."""
        if self.due_table is not None:
            return TIME
        times = self.declared.times
        return times.items if times is not None and self.stored_as == ENTRIES else times

    @cached_property
    def encode(self) -> Encode:
        """From JSON to a stored value."""
        return value_encoder(self.value_shape, self.value_times)

    def key(self, edit: Edit, key_type: Any) -> bytes:
        """The stored bytes of the key of an edit. ``key_type``: of keys, where the manifest does not say."""
        return _encode_key(edit.key_text, key_type, edit, "key")

    def entry(self, edit: Edit) -> bytes:
        """The same of the name of an entry of a map."""
        assert edit.entry_text is not None
        return _encode_key(edit.entry_text, self.entry_type, edit, "entry")

    def check_result(self, name: str, edit: Edit) -> TypeShape:
        """The type of a result of a rolling aggregate, if it can be set. Raises ProgramError."""
        told = self.declared.results.get(name)
        field = next((each for each in (self.declared.type or TypeShape("")).fields if each.stored_name == name), None)
        if told is None or field is None:
            raise ProgramError(
                f"the step {self.step!r} has no result {name!r}",
                where=edit.describe(),
                expected=" or ".join(self.declared.results),
                found=name,
                next_move="name the results that are to change; the key's columns are no results",
            )
        if told[0] not in _EXACT_RESULTS or "by" in told[1:]:
            raise ProgramError(
                f"the result {name!r} cannot be set: the store holds partial values of it, not the result",
                where=edit.describe(),
                expected="a result of count, sum, or min and max without by=",
                found=f"a result of {told[0]}",
                next_move="delete the key, and it begins anew; or rewind, and let the rows be read again",
            )
        return field.type


def find_target(manifest: Manifest, address: str, where: str) -> EditTarget:
    """A state by its address. Raises StoreError where there is none, ProgramError where it cannot be edited."""
    step, _, wanted = address.partition(".")
    states = manifest.states.get(step, {})
    table = wanted if wanted in states else None
    if not wanted:
        named = declared_tables(states)
        nameless = [name for name in named if is_nameless(name, (), states)]
        table = nameless[0] if nameless else named[0] if len(named) == 1 else None
    if states and not wanted and not declared_tables(states):
        raise refuse_made_of_rows(address, "rows for its step")
    if table is None or states[table].kind in ("side", "counter"):
        known = sorted(_addresses(manifest))
        raise StoreError(
            f"no state {address!r} is declared in this store",
            where=where,
            expected=" or ".join(known) or "a state; the program declares none",
            found=address,
            next_move="`headrace state STORE` lists steps and states",
        )
    declared = states[table]
    _check_editable(address, step, table, declared, manifest)
    return EditTarget(
        address, step, table, declared, manifest.epoch, manifest.time.steps.get(step, MIN_TIME), manifest.clock_us,
        step_has_windows=any(each.kind == WINDOWS for each in states.values()),
    )  # fmt: skip


def refuse_made_of_rows(address: str, what: str) -> ProgramError:
    """Why something that stands for rows cannot be edited."""
    return ProgramError(
        f"the state {address!r} cannot be edited: it keeps {what}",
        where=f"state {address}",
        expected="values of functions, rows of reduce and latest, results of rolling aggregates, timers, broadcast "
        "mappings",
        found=what,
        next_move="rewind to an epoch before the fault (headrace run APP --from …), and let the input be read again; a "
        "key can be taken out of everything: headrace erase",
    )


def _check_editable(address: str, step: str, table: str, declared: DeclaredState, manifest: Manifest) -> None:
    if table.startswith("!") or declared.kind not in _STORED_AS or (declared.kind == ROW and declared.type is None):
        words = {WINDOWS: "open windows", ROW: "open windows in columns", GIVEN: "what its step gave out last"}
        raise refuse_made_of_rows(address, words.get(declared.kind, "rows for its step"))
    if any(kind == RESULT for kind, *_ in declared.results.values()):
        raise refuse_made_of_rows(address, "what rows that can be taken back came to")
    if declared.type is None and declared.kind not in _DUE:
        raise StoreError(
            f"the type of the state {address!r} is not known",
            where=f"state {address}",
            expected=f"a manifest that says it; epoch {manifest.epoch} was published by an older Headrace",
            next_move="run the job for one epoch with this version, then edit",
        )


def typed_key(text: str, annotation: Any) -> bytes:
    """The stored bytes of a key that somebody wrote. Raises ProgramError where it is none of the annotation."""
    value = parse_key_text(text, annotation)
    parts = get_args(annotation) if get_origin(annotation) is tuple else ()
    if parts and value is not None and (not text.lstrip().startswith("[") or len(value) != len(parts)):
        raise ProgramError(
            "this is not a key of several parts",
            where="key",
            expected=f"a JSON list of {len(parts)} parts",
            found=repr(text),
            next_move='write all parts: ["c1", 3]',
        )
    return encode_key(value)


def _encode_key(text: str, annotation: Any, edit: Edit, what: str) -> bytes:
    try:
        return typed_key(text, annotation)
    except ProgramError as error:
        raise ProgramError(
            f"this is no {what} of the state {edit.state!r}",
            where=edit.describe(),
            expected=error.expected,
            found=text,
            next_move=error.next_move,
        ) from error


def _addresses(manifest: Manifest) -> list[str]:
    return [
        step if is_nameless(name, (), states) else f"{step}.{name}"
        for step, states in manifest.states.items()
        for name in declared_tables(states)
        if name == VALUE_TABLE or not name.startswith("!")
    ]
