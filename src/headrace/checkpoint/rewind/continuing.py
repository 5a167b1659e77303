"""A copy of a savepoint in which the job itself goes on, because its original is lost.

A copy has the id of its original, by which sinks know the job. Usually a job that starts in one gets an id of its own,
since nobody can see from there whether the original still runs. Where a person says that it is gone the id stays, and
so does what sinks know of the job: an epoch that is out already is no new one, and a driver of before that wakes up is
shut out.

What the original gave out behind the copied epoch is known to the targets alone, so they are asked. Where one has
later epochs than the copy, the job is as good as going back from there: a new timeline begins, behind all that any
target has, and each of these outputs takes back what it has.

What a restart sees if everything dies right after:

1. Every target has said what it has, and can do what it has to.    Nothing has happened.
2. The record names the new timeline, where there is to be one.     A copy still, which knows who has to forget.
3. Sinks forget, one after the other.                               The same; they can forget again.
4. The record says that the store is no copy any more.              An ordinary store; the job goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import methodcaller
from typing import Any, NamedTuple

import msgspec

from headrace.checkpoint.release import Releaser
from headrace.checkpoint.rewind.request import ForgetContext
from headrace.checkpoint.sparklog import drop_spark_logs
from headrace.checkpoint.twins import find_original
from headrace.connectors.sink_contract import Sink
from headrace.errors import Refused
from headrace.model import crash
from headrace.model.report import TAP
from headrace.state import layout
from headrace.state.record import Branch, CopiedFrom, StoreRecord, read_record
from headrace.state.store import StoreFiles


class _Ahead(NamedTuple):
    """An output whose target has epochs that the copy lacks."""

    output: str
    timeline: int
    epoch: int

    @property
    def words(self) -> str:
        return f"{self.output} has epoch {self.epoch} of timeline {self.timeline}"


def continue_copy(
    store: StoreFiles, releaser: Releaser, sinks: Mapping[str, Sink], *, clock: Callable[[], float], mark: str
) -> list[str]:
    """Makes a copy the job's own store; tells what was done, a line each. Of a store that is no copy nothing.

    ``sinks``: by output, and started. Raises Refused where the original is still there, or where rows that are out
    could not be taken back.
    """
    record = read_record(store)
    copied = None if record is None else record.copied_from
    if record is None or copied is None:
        return []
    if (original := find_original(store, copied.url)) is not None:
        raise _living(store, original.url, copied)
    begun = record.branch(record.timeline) if record.timeline != copied.timeline else None
    if begun is None:
        ahead = _find_ahead(store, record, copied, sinks)
        repeated, overwritten = _split(store, copied, ahead, sinks)
        timeline = max([record.timeline, *(each.timeline for each in ahead)]) + bool(ahead)
    else:
        # What is left of an attempt that died: some of them may have forgotten already.
        timeline, overwritten = begun.timeline, []
        left = {each.output: each for each in _find_ahead(store, record, copied, sinks)}
        repeated = [left.get(output, _Ahead(output, copied.timeline, copied.epoch)) for output in begun.outputs]
    forgets = [
        (each.output, context) for each in repeated for context in _forgets(each, copied, timeline, record, releaser)
    ]
    for output, context in forgets:
        releaser.insist(output, methodcaller("check_forget", context))
    crash.reach("rewind_proved", copied.epoch)
    if begun is None and timeline != record.timeline:
        branch = _branch(copied, timeline, repeated, round(clock() * 1e6), mark)
        record = msgspec.structs.replace(record, timeline=timeline, branches=(*record.branches, branch))
        store.write(layout.STORE_RECORD, msgspec.json.encode(record))
        crash.reach("rewind_sealed", copied.epoch)
    for output, context in forgets:
        releaser.insist(output, methodcaller("forget", context))
        crash.reach("rewind_forgetting", copied.epoch)
    if timeline != copied.timeline:
        drop_spark_logs(store, keep="")
        store.delete(layout.RELEASED)
    store.write(layout.STORE_RECORD, msgspec.json.encode(msgspec.structs.replace(record, copied_from=None)))
    crash.reach("rewind_recorded", copied.epoch)
    return list(_lines(copied, timeline, repeated, overwritten))


def _find_ahead(store: StoreFiles, record: StoreRecord, copied: CopiedFrom, sinks: Mapping[str, Sink]) -> list[_Ahead]:
    ahead = []
    for output, sink in sorted(sinks.items()):
        if output.startswith(TAP) or sink.guarantee != "exactly once" or sink.in_process:
            # It takes every epoch that comes.
            continue
        position = sink.released(record.store_id)
        if position == "unknown":
            raise Refused(
                f"nobody can tell what the target of the output {output!r} has of the lost original",
                where=store.url,
                expected="sinks that know the newest epoch they have of a job (`Sink.released`)",
                found=sink.describe(),
                next_move="start without --original-lost: then the copy becomes a fork, with an id of its own",
            )
        if position is not None and position > (copied.timeline, copied.epoch):
            ahead.append(_Ahead(output, *position))
    return ahead


def _split(
    store: StoreFiles, copied: CopiedFrom, ahead: list[_Ahead], sinks: Mapping[str, Sink]
) -> tuple[list[_Ahead], list[_Ahead]]:
    """Outputs that take back what they have; and those whose rows will be replaced by their keys."""
    repeated = [each for each in ahead if "repeat" in sinks[each.output].rewinds]
    others = [each for each in ahead if each not in repeated]
    doubled = [each for each in others if sinks[each.output].changelog_key is None]
    if doubled:
        raise Refused(
            f"rows went out behind epoch {copied.epoch} that cannot be taken back",
            where=store.url,
            expected="targets that have nothing behind the copy, that can take it back, or that keep one row per key",
            found="; ".join(each.words for each in doubled),
            next_move="give these outputs a new target; or start without --original-lost: then the copy becomes a fork "
            "with an id of its own, and gives out once more what the original gave out since",
        )
    return repeated, others


def _forgets(
    each: _Ahead, copied: CopiedFrom, timeline: int, record: StoreRecord, releaser: Releaser
) -> list[ForgetContext]:
    """The newest timeline first, and whole, but for the one that is continued."""
    return [
        ForgetContext(
            str(past), copied.epoch if past == copied.timeline else -1, each.epoch, str(timeline), each.output,
            record.store_id, releaser.session,
        )
        for past in range(min(each.timeline, timeline - 1), copied.timeline - 1, -1)
    ]  # fmt: skip


def _branch(copied: CopiedFrom, timeline: int, repeated: list[_Ahead], at_us: int, mark: str) -> Branch:
    """The new timeline. What was abandoned is lost, so the copied epoch stands for its end."""
    outputs: dict[str, Any] = {each.output: "repeat" for each in repeated}
    return Branch(
        timeline=timeline, from_timeline=copied.timeline, from_epoch=copied.epoch, end_timeline=copied.timeline,
        end_epoch=copied.epoch, outputs=outputs, shown_timeline=copied.timeline, shown_epoch=copied.epoch,
        asked=copied.savepoint, at_us=at_us, mark=mark,
    )  # fmt: skip


def _lines(copied: CopiedFrom, timeline: int, repeated: list[_Ahead], overwritten: list[_Ahead]) -> list[str]:
    lines = [f"this copy of {copied.url}@{copied.savepoint} goes on as the job itself, behind epoch {copied.epoch}"]
    if repeated:
        names = ", ".join(each.words for each in repeated)
        lines.append(f"timeline {timeline} begins; taken back, and given out anew: {names}")
    if overwritten:
        names = ", ".join(each.words for each in overwritten)
        lines.append(
            f"rows of lost epochs stay until their keys come again: {names}; `headrace refill APP.PY OUTPUT "
            "--delete-extra` brings the target to what the state says"
        )
    return lines


def _living(store: StoreFiles, original: str, copied: CopiedFrom) -> Refused:
    return Refused(
        "the original of this copy is still there, and two stores would go on under one id",
        where=store.url,
        expected="--original-lost for a copy whose original is gone",
        found=f"the store {original}",
        next_move=f"go back in the original: --store {original} --from {copied.savepoint}; or start without "
        "--original-lost: then the copy becomes a fork; or, if the original is to be given up, delete it first",
    )
