"""Whether a job can go back, and what becomes of its outputs: decided from facts, without touching anything.

An output is asked for only where rows of it may have gone out behind the epoch. By default it repeats where its sink
can take them back. Where it cannot, somebody has to choose, because rows would be there twice.

An output that holds gives nothing out until the job is past its old end. For that the first epoch of the new timeline
reads exactly what the abandoned epochs had read, and its rows for the output are dropped. So it is refused wherever
that epoch could come to something else than those did.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from headrace.checkpoint.decide import Refuse
from headrace.checkpoint.rewind.request import ALL, RewindRequest
from headrace.connectors.sink_contract import Rewind
from headrace.connectors.source_contract import Replay
from headrace.model.amounts import count_of
from headrace.model.job import JobFacts
from headrace.model.nearest import did_you_mean
from headrace.model.report import TAP
from headrace.state import layout
from headrace.state.lineage import Lineage, is_in
from headrace.state.manifest import Manifest
from headrace.state.record import Branch, StoreRecord
from headrace.state.spark_offsets import source_offsets


@dataclass(frozen=True)
class RewindFacts:
    record: StoreRecord
    start: Manifest
    """The epoch to go back to."""
    newest: layout.ManifestName
    """The newest epoch of the present lineage."""
    end: Manifest
    """How far the job has come. Another than the newest only where a rewind was begun and came to no epoch."""
    lineage: Lineage
    """What leads to the end."""
    between: tuple[Manifest, ...]
    """The epochs behind the start up to the end, as far as they are kept."""
    outputs: Mapping[str, frozenset[Rewind]]
    """Output of the program → what it can do."""
    sources: Mapping[str, Replay]
    """Source → whether it still has what was read behind the start."""
    job: JobFacts
    unrepeatable: Mapping[str, str] = field(default_factory=dict)
    """Output → why no state says what its target should have."""

    @property
    def begun(self) -> Branch | None:
        """The rewind that began the present timeline, as long as that has no epoch."""
        return None if self.newest.timeline == self.record.timeline else self.record.branch(self.record.timeline)


@dataclass(frozen=True)
class GoOn:
    """There is nowhere to go back to: the job goes on as it would."""

    why: str


@dataclass(frozen=True)
class GoBack:
    """Everything is proved."""

    outputs: dict[str, Rewind]
    shown: layout.ManifestName
    """How far outputs that hold have gone out."""
    unproved: tuple[str, ...] = ()
    """What could not be found out about sources, in words."""
    left: tuple[str, ...] = ()
    """Outputs that the program no longer has: what went out of them stays where it is."""


RewindDecision = GoOn | GoBack | Refuse


def decide_rewind(facts: RewindFacts, request: RewindRequest) -> RewindDecision:
    """What to do where somebody asks a job to go back to an epoch of its own store."""
    start = facts.start
    if start.place == facts.newest:
        return GoOn(f"epoch {start.epoch} is the newest, so there is nothing to go back from")
    branch = facts.record.branch(facts.record.timeline)
    if branch is not None and branch.start == start.place and (facts.begun is not None or not request.again):
        return GoOn(f"timeline {branch.timeline} continues epoch {start.epoch} already; --again goes back once more")
    refused = _decide_place(facts) or _decide_sources(facts)
    return refused or _decide_outputs(facts, request)


def _decide_place(facts: RewindFacts) -> Refuse | None:
    start = facts.start
    if start.app != facts.job.app:
        return Refuse(
            "the store belongs to another app", f"app {facts.job.app!r}", f"app {start.app!r}",
            "give this app a store of its own (store=…)",
        )  # fmt: skip
    if is_in(start.place, facts.lineage) or not any(not name.startswith(TAP) for name in facts.outputs):
        return None
    return Refuse(
        f"epoch {start.epoch} of timeline {start.timeline} was abandoned by an earlier rewind",
        "an epoch that leads to the present one: what went out behind it can be taken back or held",
        "an epoch whose own rows were taken back, so outputs would lack them",
        "let a second job go on from there, with outputs of its own: --store NEW --from STORE@SAVEPOINT",
    )


def _decide_sources(facts: RewindFacts) -> Refuse | None:
    lost = {name: replay.why for name, replay in facts.sources.items() if replay.verdict == "lost"}
    if not lost:
        return None
    return Refuse(
        f"the job cannot go back to epoch {facts.start.epoch}: sources no longer have what was read behind it",
        f"everything that epochs {facts.start.epoch + 1} to {facts.end.epoch} read",
        "; ".join(f"{name}: {why}" for name, why in sorted(lost.items())),
        "bring it back, or go back less far; `headrace epochs` and `headrace savepoints` list where to",
    )


def _decide_outputs(facts: RewindFacts, request: RewindRequest) -> RewindDecision:
    choices = request.choices
    named = sorted((choices.repeat | choices.hold) - {ALL})
    for name in named:
        if name not in facts.outputs:
            known = sorted(each for each in facts.outputs if not each.startswith(TAP))
            flag = "--repeat" if name in choices.repeat else "--hold"
            return Refuse(
                f"the program has no output {name!r}", f"{' or '.join(known) or 'an output'}, or {ALL}",
                f"{flag} {name}", did_you_mean(name, known, "`headrace explain` lists the outputs"),
            )  # fmt: skip
    if both := sorted((choices.repeat & choices.hold) - {ALL}):
        return Refuse(
            "an output either repeats or holds", f"--repeat {both[0]} or --hold {both[0]}", "both", "leave one out"
        )
    chosen: dict[str, Rewind] = {}
    open_: list[str] = []
    # Where an unfinished rewind is taken back, nothing went out behind the start.
    outputs = {} if facts.start.place == facts.end.place else facts.outputs
    for name, can in sorted(outputs.items()):
        choice = _chosen(name, can, request)
        if choice is None and not _may_have_gone_out(name, facts):
            continue
        choice = choice or ("repeat" if "repeat" in can else None)
        if choice is None:
            open_.append(name)
        elif choice not in can:
            return _cannot(name, choice, facts.unrepeatable.get(name, ""))
        else:
            chosen[name] = choice
    obstacles = tuple(_find_obstacles(facts))
    if open_:
        return _undecided(facts, open_, obstacles)
    held = [name for name, choice in chosen.items() if choice == "hold"]
    if held and obstacles:
        return _unholdable(facts, held, obstacles)
    shown = {_shown(name, facts) for name in held}
    if len(shown) > 1:
        return Refuse(
            "these outputs cannot be held together", "outputs that have gone out equally far",
            f"{', '.join(held)}, of which the rewind before this one repeats some and holds others",
            "start once without --from, so that the rewind before is finished; then go back",
        )  # fmt: skip
    unproved = tuple(f"{name}: {each.why}" for name, each in sorted(facts.sources.items()) if each.verdict == "unknown")
    gone = {name for each in facts.between for name, parts in each.outputs.items() if parts} - outputs.keys()
    left = tuple(sorted(name for name in gone if not name.startswith(TAP)))
    return GoBack(chosen, shown.pop() if shown else facts.end.place, unproved, left)


def _chosen(name: str, can: frozenset[Rewind], request: RewindRequest) -> Rewind | None:
    """What was asked for: by its name, or for all that are not named and can."""
    choices = request.choices
    if name in choices.repeat:
        return "repeat"
    if name in choices.hold:
        return "hold"
    if ALL in choices.repeat and "repeat" in can:
        return "repeat"
    return "hold" if ALL in choices.hold and "hold" in can else None


def _may_have_gone_out(output: str, facts: RewindFacts) -> bool:
    """Whether rows of an output may have been released behind the start; epochs that are swept may have had some."""
    if facts.begun is not None or len(facts.between) < facts.end.epoch - facts.start.epoch:
        return True
    return any(manifest.outputs.get(output) or output in manifest.held for manifest in facts.between)


def _shown(output: str, facts: RewindFacts) -> layout.ManifestName:
    """How far an output has gone out: one that an unfinished rewind holds, further than that has come."""
    begun = facts.begun
    return begun.shown if begun is not None and output in begun.held_outputs else facts.end.place


def _find_obstacles(facts: RewindFacts) -> Iterator[str]:
    """Why repeating the abandoned epochs as one could come to something else than they did."""
    kept = (facts.start, *facts.between, facts.end)
    others = sorted({manifest.epoch for manifest in kept if manifest.program != facts.job.program})
    if others:
        yield f"the program is another one than that of epoch {others[0]} (in names, types or steps)"
    elif facts.end.program_epoch > facts.start.epoch:
        yield f"the program was another one before epoch {facts.end.program_epoch} (in names, types or steps)"
    yield from facts.job.bound_to_epochs
    for name in sorted(source_offsets(facts.start.offsets).keys() & facts.end.retired.keys()):
        yield f"the source {name!r} was read to its end there, and others went on: one epoch does not read both"
    late = _late_rows(facts.end) - _late_rows(facts.start)
    if late:
        yield f"{count_of(late, 'row')} came late there, and might be in time now"
    edited = {manifest.epoch: f" ({manifest.notes[-1].kind})" for manifest in kept[1:] if manifest.notes}
    if facts.end.edited_epoch > facts.start.epoch:
        # Also where its manifest is swept.
        edited.setdefault(facts.end.edited_epoch, "")
    for epoch, kind in sorted(edited.items()):
        yield f"epoch {epoch} holds a change that a person made{kind}"
    if facts.end.final or facts.end.ending:
        yield f"epoch {facts.end.epoch} ended the input (--until drained), and fired what was still open"
    for name, replay in sorted(facts.sources.items()):
        if replay.verdict == "unknown":
            yield f"the source {name!r} may give other rows now: {replay.why}"


def _late_rows(manifest: Manifest) -> int:
    return sum(counters.get("late", 0) for counters in manifest.counters.values())


def _cannot(name: str, choice: str, reason: str) -> Refuse:
    if choice == "repeat":
        return Refuse(
            f"the output {name!r} cannot take back what went out, so its rows would be there twice", f"--hold {name}",
            f"--repeat {name}" + f"; {reason}" * bool(reason),
            "hold it back; or let a second job begin there, with outputs of its own: --store NEW",
        )  # fmt: skip
    return Refuse(
        f"the output {name!r} cannot be held", f"--repeat {name}", f"--hold {name}", "let it repeat what went out"
    )


def _undecided(facts: RewindFacts, outputs: list[str], obstacles: tuple[str, ...]) -> Refuse:
    reasons = {name: facts.unrepeatable.get(name, "") for name in outputs}
    names = ", ".join(f"{name} ({reason})" if reason else name for name, reason in reasons.items())
    first = f"--hold {' --hold '.join(outputs)}"
    hold = f"{first} gives nothing out until epoch {facts.end.epoch} is passed"
    if obstacles:
        hold = f"holding them is not possible here ({obstacles[0]})"
    return Refuse(
        f"rows went out behind epoch {facts.start.epoch} that cannot be taken back",
        "outputs that can take them back, or a choice for each that cannot",
        names,
        f"{hold}; or let a second job begin there, with outputs of its own: --store NEW --from STORE@MOMENT",
    )


def _unholdable(facts: RewindFacts, held: list[str], obstacles: tuple[str, ...]) -> Refuse:
    return Refuse(
        f"outputs cannot be held: epochs {facts.start.epoch + 1} to {facts.end.epoch}, repeated, may come to other "
        "rows than those that went out",
        "a program, clocks and sources that lead to the same rows again",
        f"{', '.join(held)} held; " + "; ".join(obstacles),
        "let them repeat where their sinks can (--repeat); or let a second job begin there, with outputs of its own: "
        "--store NEW",
    )
