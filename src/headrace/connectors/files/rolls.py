"""The rolls of one output in the driver: what waits, what is due, and who puts it together.

Noting a roll is quick and happens in the release that makes it due. Putting large files together is not, so a thread
does it beside the epochs; small ones are put together at once. The same thread rolls by time, also when no rows come.

Invariants
- A roll takes only epochs whose release has come to its end: half an epoch never becomes visible.
- What is kept of folders is bounded by what waits, not by how many there ever were.
- What goes wrong in the thread is raised by the next release or by the end; noted rolls are tried again first.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from headrace.connectors.files.claims import Claims
from headrace.connectors.files.folder import Folder, open_folder
from headrace.connectors.files.gathering import Gathering, shape_of
from headrace.connectors.files.roll_plan import Bucket, Roll, RollPart, newest_waiting, plan_roll
from headrace.connectors.files.roll_policy import RollPolicy
from headrace.connectors.files.rolling import RollFolder
from headrace.connectors.sink_contract import Release
from headrace.model.crash import reach
from headrace.model.part_names import hidden_folder, part_name, waiting_name
from headrace.model.report import StagedPart

AT_ONCE_BYTES: Final = 8 * 2**20
"""Rolls up to this size are carried out in the release that makes them due."""
RESTING: Final = 1000
"""Of so many folders in which nothing waits it is remembered what is visible there; of others it is looked up again."""

Key = tuple[int, str]
"""Timeline and bucket."""


class Rolls:
    def __init__(
        self,
        path: str,
        output: str,
        policy: RollPolicy,
        form: Gathering,
        claims_in: Callable[[Folder, str], Claims],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder = open_folder(path)
        self._hands = RollFolder(self._folder, output, form, claims_in(self._folder, output))
        aside = open_folder(path)
        self._aside = RollFolder(aside, output, form, claims_in(aside, output))
        """The same for the thread."""
        self._output = output
        self._policy = policy
        self._clock = clock
        self._buckets: dict[Key, Bucket] = {}
        """Those in which something waits, or of which a roll is noted …"""
        self._resting: OrderedDict[Key, Bucket] = OrderedDict()
        """… and others, those that rest longest first."""
        self._complete: dict[int, int] = {}
        """Timeline → the newest epoch whose release has come to its end."""
        self._found = False
        self._noted: deque[Roll] = deque()
        """Rolls that are noted and not finished, oldest first …"""
        self._taken: list[Roll] = []
        """… and those of them that somebody carries out just now."""
        self._failure: BaseException | None = None
        self._change = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None

    # --- what the sink calls

    def start(self) -> None:
        """Finds what a run before this one left, and goes on with it."""
        with self._change:
            self._find()
            self._wake()

    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        """Lets the parts of an epoch wait, and rolls what is due then. Harmless to repeat."""
        with self._change:
            self._find()
            self._raise_failure()
            self._put(parts, ctx)
            timeline = int(ctx.timeline)
            self._complete[timeline] = max(ctx.epoch, self._complete.get(timeline, -1))
            self._note_due(self._hands)
            self._let_rest({(timeline, part.extra.get("folder", "")) for part in parts})
        self._carry_out(lambda roll: roll.size_bytes <= AT_ONCE_BYTES)
        with self._change:
            self._wake()

    def finish(self) -> None:
        """Everything that was released is visible when this returns."""
        with self._change:
            self._find()
        self.leave()
        with self._change:
            self._closing = False
            # Whatever went wrong aside is tried again here, where it can be told.
            self._failure = None
            for bucket in list(self._buckets.values()):
                self._note(bucket, self._hands)
        self._carry_out(lambda roll: True)

    def leave(self) -> None:
        """Nothing is touched any more when this returns: what waits may be another store's."""
        with self._change:
            self._closing = True
            self._change.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    # --- under the lock

    def _find(self) -> None:
        if self._found:
            return
        self._buckets, rolls = self._hands.find()
        for bucket in self._buckets.values():
            bucket.since_s = bucket.since_s or self._clock()
        for roll in sorted(rolls, key=lambda roll: (roll.timeline, roll.first)):
            self._take_over(roll)
        buckets = list(self._buckets.values())
        for timeline in {bucket.timeline for bucket in buckets}:
            newest = newest_waiting(buckets, timeline)
            if newest >= 0:
                whole = self._hands.is_complete(timeline, newest, buckets)
                self._complete[timeline] = newest if whole else newest - 1
        self._let_rest(list(self._buckets))
        self._found = True

    def _put(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        timeline = int(ctx.timeline)
        for place, part in enumerate(parts):
            if place:
                reach("between_files", ctx.epoch)
            bucket = self._bucket(timeline, part.extra.get("folder", ""))
            if ctx.epoch <= bucket.covered:
                continue
            data = ctx.read(part)
            if ctx.epoch in bucket.single:
                # A program that did not roll began to show this epoch.
                single = part_name(ctx.timeline, ctx.epoch, self._output, place, part.format)
                self._folder.put(f"{bucket.folder}/{single}".lstrip("/"), data, ctx.local_path(part))
                continue
            shape = shape_of(part.format, data)
            name = waiting_name(ctx.timeline, ctx.epoch, place, len(parts), shape, part.format)
            self._folder.put(f"{hidden_folder(self._output, bucket.folder)}/{name}", data, ctx.local_path(part))
            if not bucket.waiting:
                bucket.since_s = self._clock()
            bucket.waiting[name] = RollPart(name, ctx.epoch, place, shape, part.format, part.size_bytes)
        self._folder.settle()

    def _bucket(self, timeline: int, folder: str) -> Bucket:
        key = (timeline, folder)
        found = self._buckets.get(key)
        if found is None:
            found = self._resting.pop(key, None)
            if found is None:
                found = Bucket(timeline, folder)
                self._hands.look(found)
            self._buckets[key] = found
        return found

    def _let_rest(self, keys: Iterable[Key]) -> None:
        """Puts buckets aside that need no attention, and forgets the oldest of those."""
        noted = {(roll.timeline, roll.bucket) for roll in self._noted}
        for key in keys:
            if key in self._buckets and key not in noted and not self._buckets[key].waiting:
                self._resting[key] = self._buckets.pop(key)
        while len(self._resting) > RESTING:
            self._resting.popitem(last=False)

    def _note_due(self, hands: RollFolder) -> None:
        """Notes rolls of all buckets that are due; what an older timeline left is."""
        now_s = self._clock()
        newest_timeline = max(self._complete, default=0)
        for bucket in list(self._buckets.values()):
            complete = self._complete.get(bucket.timeline, -1)
            if bucket.timeline < newest_timeline or self._policy.is_due(bucket, complete, now_s):
                self._note(bucket, hands)

    def _note(self, bucket: Bucket, hands: RollFolder) -> None:
        while True:
            complete = self._complete.get(bucket.timeline, -1)
            roll = plan_roll(bucket, self._output, complete, self._policy.size_bytes)
            if roll is None:
                return
            self._take_over(hands.note(roll))

    def _take_over(self, roll: Roll) -> None:
        """From here on the parts of a roll are its own."""
        bucket = self._buckets.setdefault((roll.timeline, roll.bucket), Bucket(roll.timeline, roll.bucket))
        bucket.covered = max(bucket.covered, roll.last)
        bucket.waiting = {name: part for name, part in bucket.waiting.items() if part.epoch > bucket.covered}
        bucket.since_s = self._clock()
        self._noted.append(roll)

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _take(self, wanted: Callable[[Roll], bool]) -> Roll | None:
        """A roll that nobody carries out yet; whoever is given it does.

        Those of one bucket are carried out one after the other: that a file is visible says that all before it are.
        """
        seen: set[Key] = set()
        for roll in self._noted:
            first = (roll.timeline, roll.bucket) not in seen
            seen.add((roll.timeline, roll.bucket))
            if first and wanted(roll) and not any(roll is each for each in self._taken):
                self._taken.append(roll)
                return roll
        return None

    # --- carrying out

    def _carry_out(self, wanted: Callable[[Roll], bool]) -> None:
        """All such rolls, on the caller's thread."""
        while True:
            with self._change:
                roll = self._take(wanted)
            if roll is None:
                return
            self._finish(roll, self._hands)

    def _finish(self, roll: Roll, hands: RollFolder) -> None:
        """A roll stays noted until it is finished, so that a failure loses none."""
        done = False
        try:
            hands.carry_out(roll)
            done = True
        finally:
            with self._change:
                self._taken = [each for each in self._taken if each is not roll]
                if done:
                    self._noted = deque(each for each in self._noted if each is not roll)
                    self._let_rest([(roll.timeline, roll.bucket)])
                self._change.notify_all()

    def _wake(self) -> None:
        """Lets the thread look for work, if there is any for it."""
        wanted = bool(self._noted) or any(self._policy.due_s(bucket) is not None for bucket in self._buckets.values())
        if wanted and self._thread is None and not self._closing:
            self._thread = threading.Thread(target=self._work, name=f"headrace-roll-{self._output}", daemon=True)
            self._thread.start()
        self._change.notify_all()

    def _work(self) -> None:
        """The thread: large rolls, rolls that a run before this one left, and rolls by time."""
        while True:
            with self._change:
                roll: Roll | None = None
                while roll is None and not self._closing:
                    roll = self._look_for_work()
                    if roll is None:
                        self._change.wait(self._pause_s())
                if roll is None:
                    return
            try:
                self._finish(roll, self._aside)
            except BaseException as error:
                with self._change:
                    self._failure = error

    def _look_for_work(self) -> Roll | None:
        if self._failure is not None:
            # Nothing is tried again until somebody was told.
            return None
        try:
            self._note_due(self._aside)
        except BaseException as error:
            self._failure = error
            return None
        return self._take(lambda roll: True)

    def _pause_s(self) -> float | None:
        """Until a bucket is due by time; None: until something happens."""
        if self._failure is not None:
            return None
        dues = [due for bucket in self._buckets.values() if (due := self._policy.due_s(bucket)) is not None]
        return max(0.01, min(dues) - self._clock()) if dues else None
