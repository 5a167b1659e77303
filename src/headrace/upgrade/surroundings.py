"""What is around the steps: sources and their offsets, outputs, loops with rows in flight, shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from headrace.model.amounts import count_of
from headrace.model.job import ROW, JobFacts
from headrace.model.order import SOURCE
from headrace.model.report import StagedPart
from headrace.model.row_adapter import RowAdapter
from headrace.model.type_history import derive_change
from headrace.state.manifest import Manifest
from headrace.state.spark_offsets import source_offsets
from headrace.upgrade.lines import Fate, Objection, UpgradeLine
from headrace.upgrade.sample import try_loop
from headrace.upgrade.stored import StoredTables
from headrace.upgrade.types import text_of


def job_lines(before: Manifest, job: JobFacts) -> Iterator[UpgradeLine]:
    shards = (f"{count_of(before.parallelism, 'shard')} → {job.parallelism}",)
    yield UpgradeLine("job", "parallelism", "kept", shards if before.parallelism != job.parallelism else ())


def source_lines(before: Manifest, job: JobFacts) -> Iterator[UpgradeLine]:
    read = source_offsets(before.offsets)
    for name in job.sources:
        kind, was = job.source_kinds.get(name, ""), before.sources.get(name)
        if was is not None and was != kind and name in read:
            yield UpgradeLine(
                "source", name, "refused",
                objection=Objection(
                    f"the source {name!r} is another kind of source than before, whose offsets mean nothing to it",
                    f"{was}, as stored",
                    kind,
                    f"give the new source a name of its own; the offsets of {name!r} stay, in case it comes back",
                ),
            )  # fmt: skip
        elif name in read:
            yield UpgradeLine("source", name, "kept")
        elif name in before.retired:
            yield UpgradeLine("source", name, "new", ("comes back, and goes on where it once ended",))
        else:
            yield UpgradeLine("source", name, "new", ("begins where it says",))
    for name in sorted(set(read) - set(job.sources) - {SOURCE}):
        yield UpgradeLine("source", name, "gone", ("its offsets stay, in case it comes back",))


def output_lines(before: Manifest, job: JobFacts, *, released: bool) -> Iterator[UpgradeLine]:
    """``released``: the outputs of the newest epoch are out, as far as is known."""
    for name, kind in job.sinks.items():
        was = before.sinks.get(name)
        if was is None and _tells(before):
            yield UpgradeLine("output", name, "new", ("takes the rows from now on",))
        elif was is None:
            yield UpgradeLine("output", name, "kept")
        else:
            yield UpgradeLine("output", name, "kept", (f"{was} → {kind}",) if was != kind else ())
    for name in before.sinks:
        if name not in job.sinks:
            notes = ["what it has written stays where it is"]
            if not released and (rows := sum(part.rows for part in before.outputs.get(name, ()))):
                notes.append(f"{count_of(rows, 'row')} of epoch {before.epoch} may still have to go there")
            yield UpgradeLine("output", name, "gone", tuple(notes))


def loop_lines(before: Manifest, job: JobFacts, stored: StoredTables) -> Iterator[UpgradeLine]:
    former = {name: _former_loop(name, before, job) for name in job.loops}
    for name, was in former.items():
        if was is None:
            knows = _tells(before) or bool(before.loops or before.loop_types)
            if (vain := job.loop_was.get(name)) is not None and knows:
                yield _vain_loop(name, vain, before)
            elif _tells(before):
                yield UpgradeLine("loop", name, "new")
            else:
                yield UpgradeLine("loop", name, "kept")
        else:
            yield _loop_line(name, was, before, job, stored)
    for name in before.loops:
        if name not in former.values() and (rows := _rows(before.loops, name)):
            yield _refused_loop(
                name, rows, f"rows wait in the loop {name!r}, which the program does not have",
                f"a loop named {name!r}, or one that says was={name!r}", f"{count_of(rows, 'row')} in flight",
                "let the loop run empty with the old program; or ",
            )  # fmt: skip


def _former_loop(name: str, before: Manifest, job: JobFacts) -> str | None:
    """The name that the store has a loop under; None: it has none."""
    known = {*before.loops, *before.loop_types}
    if name in known:
        return name
    was = job.loop_was.get(name)
    return was if was in known and was not in job.loops else None


def _loop_line(name: str, former: str, before: Manifest, job: JobFacts, stored: StoredTables) -> UpgradeLine:
    rows, was = _rows(before.loops, former), former if former != name else ""
    types = before.loop_types.get(former), job.loop_types.get(name)
    change = derive_change(ROW, types, job.migrations)
    fate: Fate = "renamed" if was else "kept"
    if change.kind == "refused" and rows:
        old, new = map(text_of, types)
        return _refused_loop(
            former, rows, f"rows that wait in the loop {former!r} cannot be read as their new type",
            f"{old}, as they were fed", change.text or new, "give new fields a default, or say "
            "with hr.migrate how the old type becomes the new one; or "
        )  # fmt: skip
    if rows and change.kind != "same":
        adapter = RowAdapter(f"loop {name}", types, change, job.loop_annotations[name])
        trial = try_loop(former, adapter, stored)
        fate = fate if trial.objection is None else "refused"
        return UpgradeLine("loop", name, fate, change.words, was=was, rows=rows, objection=trial.objection)
    return UpgradeLine("loop", name, fate, change.words, was=was, rows=rows or None)


def _vain_loop(name: str, was: str, before: Manifest) -> UpgradeLine:
    known = ", ".join(sorted({*before.loops, *before.loop_types})) or "no loops"
    objection = Objection(
        f"the loop {name!r} is to go on with {was!r}, and the store has no such loop", known, f"was={was!r}",
        "correct was=, or leave it out: the loop begins empty",
    )  # fmt: skip
    return UpgradeLine("loop", name, "refused", objection=objection)


def _refused_loop(name: str, rows: int, what: str, expected: str, found: str, advice: str) -> UpgradeLine:
    objection = Objection(what, expected, found, f"{advice}drop them: --drop {name}")
    return UpgradeLine("loop", name, "refused", rows=rows, objection=objection)


def _rows(loops: Mapping[str, Sequence[StagedPart]], name: str) -> int:
    return sum(part.rows for part in loops.get(name, ()))


def _tells(before: Manifest) -> bool:
    """Whether a manifest names everything around the steps, which those of older versions do not."""
    return bool(before.sources or before.rules)
