"""The steps and states of an epoch: what was written, what is declared, and how much of each lies in the store."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headrace.errors import StoreError
from headrace.model.job import DeclaredState
from headrace.read.opening import declared_tables, is_nameless, named_tables, open_reader, readable_tables
from headrace.state import layout
from headrace.state.lookup import Layers, open_layers
from headrace.state.manifest import read_manifest
from headrace.state.moments import find_moment
from headrace.state.view import share_of_range

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace.model.report import RunRef
    from headrace.state.manifest import JobState
    from headrace.state.store import StoreFiles as Files
    from headrace.state.view import TableView


class StateInfo(NamedTuple):
    """One state of one step, for a list of what there is."""

    step: str
    state: str
    """Empty where the step keeps a single state that has no name of its own."""
    kind: str
    rows: int
    """Rows in the runs, before merging: at least the number of live entries."""
    size_bytes: int
    """Bytes of the step's runs, divided among its states by their rows."""
    about: bool = False
    """Whether both are told by the share of a range: the state speaks for a part of a run only."""

    old_rows: int = 0
    """Those of them that are of an older type than the program's, and answered as that."""

    @property
    def address(self) -> str:
        return f"{self.step}.{self.state}" if self.state else self.step


def steps_of(state: JobState) -> list[str]:
    """The steps that have written state."""
    return sorted({layout.step_of(name) for name, runs in state.runs.items() if runs})


def readable_steps(state: JobState) -> list[str]:
    """The steps whose state can be read: those that have written some, and those that declare some."""
    declared = (step for step, states in state.manifest.states.items() if declared_tables(states))
    return sorted({*steps_of(state), *declared})


def runs_of(state: JobState, step: str) -> tuple[RunRef, ...]:
    """Everything a step has written: states by key and broadcast states, which have runs of their own."""
    return state.runs_of(step)


def identity_of(ref: RunRef) -> object:
    """What a run is known by whatever range of it is seen: changing the number of shards changes no content."""
    return ref.file or (ref.epoch, ref.crc, ref.size_bytes)


def layers_of(
    files: Files,
    state: JobState,
    step: str,
    was: Mapping[str, tuple[str, ...]] | None = None,
    *,
    only: range | None = None,
) -> Layers:
    """What a step has written, of some key groups ``only``.

    ``was``: table → its former names, where the manifest does not say them.
    """
    states = dict(state.manifest.states.get(step, {}))
    for name, formers in (was or {}).items():
        states[name] = msgspec.structs.replace(states.get(name, DeclaredState("")), was=formers)
    groups = state.manifest.key_groups
    part = range(groups) if only is None else only
    return open_layers(
        files, runs_of(state, step), lo=part.start, hi=part.stop, groups=groups, states=states,
        hidden=state.manifest.hidden.get(step),
    )  # fmt: skip


def former_steps(state: JobState, step: str) -> list[str]:
    """The names that a step has or had, the present one first: older epochs have it under the name that it had then."""
    # Manifests of older versions do not say; there only runs that are files lie under the name of then.
    written = (layout.parse_run(ref.file) for ref in runs_of(state, step) if ref.file)
    names = [step, *state.manifest.former_names.get(step, ())]
    return list(dict.fromkeys([*names, *(layout.step_of(name.step) for name in written if name is not None)]))


def check_step(files: Files, state: JobState, step: str) -> None:
    """StoreError where a step keeps nothing at an epoch; says so where it has another name there."""
    known = readable_steps(state)
    if step in known:
        return
    name = _name_there(files, state, step, known)
    raise StoreError(
        f"no step is called {step!r} at epoch {state.epoch}" if name else f"no step {step!r} keeps state in this store",
        where=files.url,
        expected=name or " or ".join(known) or "a step that keeps state",
        found=step,
        next_move=f"ask for {name}: the step was renamed" if name else "`headrace state STORE` lists steps and states",
    )


def _name_there(files: Files, state: JobState, step: str, known: Sequence[str]) -> str | None:
    """What a step is called at an epoch that a person knows by an older or a newer name."""
    for name, formers in state.manifest.former_names.items():
        if step in formers and name in known:
            return name
    newest = read_manifest(files, *find_moment(files, None))
    return next((name for name in newest.former_names.get(step, ()) if name in known), None)


def list_states(files: Files, state: JobState, step: str) -> Iterator[StateInfo]:
    """Every state of a step, those that were not written yet as well."""
    layers = layers_of(files, state, step)
    written, declared = named_tables(layers), state.manifest.states.get(step, {})
    rows = {name: sum(view.rows for view in layers.views(name)) for name in layers.tables}
    size, total, about = _size_bytes(layers), sum(rows.values()) or 1, not _is_whole(layers)
    for name in readable_tables(layers, declared):
        reader = open_reader(files, layers, name, state.manifest, step, address=name)
        shown = "" if is_nameless(name, written, declared) else name
        shared = name in declared and declared[name].kind == "broadcast"
        kind = "broadcast" if shared else reader.kind
        mine = rows.get(name, 0)
        old = count_old_rows(layers.views(name), declared.get(name))
        yield StateInfo(step, shown, kind, mine, size * mine // total, about, old)


def count_old_rows(views: Sequence[TableView], declared: DeclaredState | None) -> int:
    """How many rows of a state, before merging, are of an older type than the one it has now."""
    return 0 if declared is None else sum(view.rows for view in views if declared.is_older(view.version))


def _is_whole(layers: Layers) -> bool:
    """Whether every run is read as a whole, if by several references: then nothing has to be estimated."""
    covered: Counter[object] = Counter()
    width: dict[object, int] = {}
    for ref, run in layers.runs:
        covered[identity_of(ref)] += ref.hi - ref.lo
        width[identity_of(ref)] = run.hi - run.lo
    return covered == width


def _size_bytes(layers: Layers) -> int:
    """Bytes of the runs, of each its share of the range that it is read through."""
    return sum(
        share_of_range(run.size_bytes, ref.lo - run.lo, ref.hi - run.lo, run.hi - run.lo) for ref, run in layers.runs
    )
