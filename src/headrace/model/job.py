"""What the store's side knows of a program: names, numbers and types; of its code only what reads old values."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from headrace.model.archive import Archive
from headrace.model.meaning import KEPT_TABLE, AggregateMeaning, former_name
from headrace.model.migrations import Migration
from headrace.model.time_shape import TimeShape
from headrace.model.type_shape import TypeShape, nameless, with_former_names
from headrace.model.watermarks import TimedSource

VALUE_TABLE: Final = "value"
"""The table of a step that keeps one thing, whose address is that of the step."""
WINDOWS: Final = "windows"
"""Kind of the results of a step by key and window."""
ROW: Final = "row"
"""Kind of the state of a step that keeps one row per key, where something is said of it."""
GIVEN: Final = "given"
"""Kind of the state of a step that keeps the row that each key gave out last, so that it can be taken back."""
RESULT: Final = "result"
"""Kind of an aggregate's result that is stored as it is; what it is made of stands beside it."""
COLUMNS: Final = "rows"
"""Kind of a table of whole rows, as of a join, whose fields are columns."""
WAITING_ROWS: Final = "!waiting"
"""Begins the names of tables of rows that wait for event time to come to theirs."""
INNER: Final = "inner"
"""Kind of a table that a step keeps beside its states, and that nobody can ask for."""


class FormerType(msgspec.Struct, frozen=True, omit_defaults=True):
    """A type that a state had."""

    since: int
    """The first version of the step in which it had it."""
    type: TypeShape | None = None
    became: dict[str, str] | None = None
    """Of aggregates in columns: the name of each → the one that it had next; those that were taken out are not there.
    None: all of them went on under their names."""


class DeclaredState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A state as the program declares it; kept in manifests, so that a store can be read without the program."""

    kind: str
    clock: str = ""
    """``wall`` or ``event`` where entries expire."""
    was: tuple[str, ...] = ()
    """The names it had before, the newest first: runs written then hold it under those."""
    results: dict[str, list[Any]] = {}
    """Of aggregates: result → its kind and what else finishes its accumulator (`headrace.read.finishing`)."""
    key: tuple[str, ...] = ()
    """With results: names of the columns that hold the key, part by part."""
    archive: Archive | None = None
    """Of windows: where they go when they are closed."""
    pane: bool = False
    """Of windows: whether results say if they come before, at or after the end of theirs."""
    windows: str = ""
    """Of windows: how they are cut, in words; a program that cuts them in another way may have to be refused."""
    meanings: dict[str, AggregateMeaning] = {}
    """Of aggregates: result → what it is of."""
    times: TimeShape | None = None
    """Where the times of a value are: of a map or list of all of it, of windows and aggregates of a row of results."""
    key_times: TimeShape | None = None
    """The same of keys."""
    type: TypeShape | None = None
    """Of what is stored: of a list or map as a whole, of aggregates a record of their accumulators. None: unknown, in
    stores of older versions; or stored in columns that say it themselves."""
    key_type: TypeShape | None = None
    """Of keys: those of the step, or of a broadcast mapping."""
    since: int = 0
    """The version of the step in which the type became this one. Runs say in which version they were written."""
    formers: tuple[FormerType, ...] = ()
    """The types it had before, the newest first."""
    ttl_us: int = 0
    """How long entries live, where a function declares it …"""
    refresh: str = ""
    """… and what begins the span anew: ``create``, ``write`` or ``read``."""

    @property
    def read_as(self) -> tuple[object, ...]:
        """What decides whether a program reads what is stored as it was meant."""
        return self.kind, self.results, self.key

    @property
    def kept_as(self) -> tuple[object, ...]:
        """What decides, beyond the code of functions, what the same rows come to."""
        return (*self.read_as, self.windows, self.meanings, self.clock, self.ttl_us, self.refresh)

    def type_in(self, version: int) -> TypeShape | None:
        """The type of values in runs of a version of the step."""
        return self.types_since(version)[0]

    def is_older(self, version: int) -> bool:
        """Whether values of a version are of another type than the newest, or have one in between to go through."""
        types = self.types_since(version)
        known = [nameless(each) for each in types if each is not None]
        return any(each != known[-1] for each in known)

    def aggregates_since(self, version: int) -> dict[str, str] | None:
        """Of aggregates in columns: the names that columns of a version have → the present ones.

        Those that were taken out since are not there. None: all columns have the present names.
        """
        names: dict[str, str] | None = None
        since = self.since
        for former in self.formers:
            if version >= since:
                break
            if former.became is not None:
                later = names
                names = {
                    was: name if later is None else later[name]
                    for was, name in former.became.items()
                    if later is None or name in later
                }
            since = former.since
        return names

    def types_since(self, version: int) -> tuple[TypeShape | None, ...]:
        """The type that values of a version have, and those that came after it, up to the newest."""
        types = [self.type]
        since = self.since
        for former in self.formers:
            if version >= since:
                break
            types.append(former.type)
            since = former.since
        return tuple(reversed(types))


Rules = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class JobFacts:
    """One compiled program, as coordinator, recovery and maintenance see it."""

    app: str
    program: str
    """Fingerprint."""
    parallelism: int
    key_groups: int
    levels: int
    timed: tuple[TimedSource, ...]
    step_sources: Mapping[str, tuple[str, ...]]
    ttl: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Step → state that expires → its clock, ``wall`` or ``event``."""
    states: Mapping[str, Mapping[str, DeclaredState]] = field(default_factory=dict)
    """Step → state → what the program declares."""
    tables: Mapping[str, str] = field(default_factory=dict)
    """Step → what it stores, in words, where that depends on the operator the planner chose."""
    sources: tuple[str, ...] = ()
    """All sources, by name."""
    loops: tuple[str, ...] = ()
    """All loops, by name."""
    was: Mapping[str, str] = field(default_factory=dict)
    """Step → its former name."""
    loop_was: Mapping[str, str] = field(default_factory=dict)
    """Loop → its former name."""
    loop_types: Mapping[str, TypeShape] = field(default_factory=dict)
    """Loop → the type of its rows."""
    loop_annotations: Mapping[str, Any] = field(default_factory=dict)
    """The same as Python has it."""
    annotations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Step → state → the Python type of one stored value, where values are stored by themselves."""
    migrations: tuple[Migration, ...] = ()
    """Functions of the program's that lead from old types to new ones."""
    bound_to_epochs: tuple[str, ...] = ()
    """What would come to something else if rows of several epochs came in one, or at another time; in words."""
    rules: Rules = field(default_factory=dict)
    """Step → what it does with what it keeps: name of the rule → words for it."""
    source_kinds: Mapping[str, str] = field(default_factory=dict)
    """Source → its kind: its offsets are in the words of that."""
    sinks: Mapping[str, str] = field(default_factory=dict)
    """Output → the kind of its sink."""


States = Mapping[str, Mapping[str, DeclaredState]]
"""Step → state → what the program declares."""


def derive_states(declared: States, before: States, was: Mapping[str, str]) -> dict[str, dict[str, DeclaredState]]:
    """What a program declares, with all the names and types its states ever had; nothing of steps that it lacks.

    ``before``: the same of the last published epoch; ``was`` maps a renamed step to its former name. A state is found
    under an old name long after the program has stopped to mention it, and in an old type long after the program has
    stopped to write it: keys that nobody touched still lie there.
    """
    states: dict[str, dict[str, DeclaredState]] = {}
    for step, mine in declared.items():
        known = before.get(step) or before.get(was.get(step, ""), {})
        mine = _with_kept_columns(mine, known)
        version = derive_version(known)
        states[step] = _not_below(
            version, {name: _with_history(name, state, known, version) for name, state in mine.items()}
        )
    return states


def derive_version(states: Mapping[str, DeclaredState]) -> int:
    """The version of a step: one more with every program that changes the type of any of its states."""
    return max((state.since for state in states.values()), default=0)


def _with_history(name: str, state: DeclaredState, known: Mapping[str, DeclaredState], version: int) -> DeclaredState:
    names = list(state.was)
    for former in [*state.was, name]:
        if former in known:
            names += known[former].was
    before = next((known[each] for each in (name, *state.was) if each in known), None)
    if before is not None:
        state = _with_types(state, before, version)
        state = msgspec.structs.replace(state, archive=_with_keys(state.archive, before.archive))
    was = tuple(each for each in dict.fromkeys(names) if each != name)
    return msgspec.structs.replace(state, was=was)


def _with_kept_columns(
    mine: Mapping[str, DeclaredState], known: Mapping[str, DeclaredState]
) -> dict[str, DeclaredState]:
    """The same states; columns of kept rows, which go by the words of expressions, say what those were before.

    An aggregate whose expression means something else never comes here under its old name: the program is refused.
    """
    kept, now, before = mine.get(KEPT_TABLE), mine.get(VALUE_TABLE), known.get(VALUE_TABLE)
    if kept is None or kept.type is None or now is None or before is None:
        return dict(mine)
    former: dict[str, str] = {}
    for name, meaning in now.meanings.items():
        was = former_name(name, meaning, before.meanings, now.meanings)
        old = {} if was is None else dict(before.meanings[was].kept_columns())
        former |= {column: old[part] for part, column in meaning.kept_columns() if old.get(part, column) != column}
    fields = tuple(
        msgspec.structs.replace(each, was=(former[each.name],)) if each.name in former else each
        for each in kept.type.fields
    )
    return {**mine, KEPT_TABLE: msgspec.structs.replace(kept, type=msgspec.structs.replace(kept.type, fields=fields))}


def _with_keys(archive: Archive | None, before: Archive | None) -> Archive | None:
    """An archive with the names that the columns of its key had in files of older programs."""
    if archive is None or before is None or archive.path != before.path:
        return archive
    keys = dict.fromkeys((*archive.former_keys, before.key, *before.former_keys))
    return msgspec.structs.replace(archive, former_keys=tuple(key for key in keys if key != archive.key))


def _with_types(state: DeclaredState, before: DeclaredState, version: int) -> DeclaredState:
    """A state with the types it had before."""
    old, new = before.type, state.type
    since, formers = before.since, before.formers
    if old is not None and new is not None and old != new:
        if nameless(old) != nameless(new):
            since, formers = version + 1, (FormerType(before.since, old), *before.formers)
        else:
            # The program may have stopped to mention former names that values of an older version still have.
            new = with_former_names(new, old)
    became = _became(state, before)
    if became is not None:
        since, formers = version + 1, (FormerType(before.since, old, became), *before.formers)
    return msgspec.structs.replace(state, type=new, since=since, formers=formers)


def _became(state: DeclaredState, before: DeclaredState) -> dict[str, str] | None:
    """The names that aggregates in columns had → those they have; None where all of them keep theirs."""
    if state.kind != WINDOWS or state.type is not None or before.type is not None or not before.results:
        return None
    former = {name: former_name(name, each, before.results, state.results) for name, each in state.meanings.items()}
    became = {was: name for name, was in former.items() if was is not None}
    return None if became == {name: name for name in before.results} else became


def _not_below(version: int, states: dict[str, DeclaredState]) -> dict[str, DeclaredState]:
    """The same states, with a version of the step that is no less, whatever state the program gave up.

    Runs are labelled with the version, so one that was used must not come to mean another type.
    """
    if not states or derive_version(states) >= version:
        return states
    name, state = next(iter(states.items()))
    formers = (FormerType(state.since, state.type), *state.formers)
    return {**states, name: msgspec.structs.replace(state, since=version, formers=formers)}


def without_states(states: Mapping[str, DeclaredState], names: Collection[str]) -> dict[str, DeclaredState]:
    """What is left of the states of a step."""
    return _not_below(derive_version(states), {name: state for name, state in states.items() if name not in names})


def without_former_types(states: Mapping[str, DeclaredState], oldest: int) -> dict[str, DeclaredState]:
    """The states of a step whose oldest run is of this version: types that no run has any more are forgotten."""
    return {
        name: state if not state.formers else msgspec.structs.replace(state, formers=_formers_from(state, oldest))
        for name, state in states.items()
    }


def _formers_from(state: DeclaredState, oldest: int) -> tuple[FormerType, ...]:
    return state.formers[: len(state.types_since(oldest)) - 1]
