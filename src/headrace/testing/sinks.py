"""Tries to break a sink: `verify_sink`.

The contract of `headrace.sinks.contract.Sink`, made executable. Nothing is visible before the release; a release can be
repeated, by the same process and by the next; one that failed or died between any two parts is completed by the next
one; a driver that was thought dead and wakes up changes nothing any more.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, Final, Literal

import cloudpickle

from headrace.errors import HeadraceError, SinkUnavailable
from headrace.model.batch import Rows
from headrace.model.crash import Crash, planned
from headrace.model.report import StagedPart
from headrace.model.rows import RowCodec, codec_of
from headrace.sinks.contract import Sink
from headrace.testing.staging import Staging, StagingRelease, stage_rows

__all__ = ["SinkTarget", "Staging", "StagingRelease", "stage_rows", "verify_sink"]

Staged = Literal["local", "remote", "inline"]
"""How parts reach a release: as files of this machine, as files elsewhere, or inside the manifest."""

_MEANWHILE_S: Final = 0.3
"""How long a release waits in its middle for another driver, which may itself have to wait for this release."""
_BACK_S: Final = 60.0
"""How long a system that was started again has to become reachable."""
_CALLS_AT_MOST: Final = 200


@dataclass
class SinkTarget:
    """A new, empty place to write to."""

    make: Callable[[], Sink]
    """A sink of this target, as a restarted program would make it; a sink that keeps rows in memory returns itself."""
    read: Callable[[], list[Any]]
    """The rows that are visible there, in any order."""
    stop: Callable[[], None] | None = None
    """Takes the system behind the sink away (ends the server). None: that is not tried."""
    start: Callable[[], None] | None = None
    """Brings it back, with what was in it."""
    failing: Callable[[int], AbstractContextManager[Any]] | None = None
    """``failing(n)``: inside, call number n (from 0) of a release to the system behind finds it unreachable, and all
    after it do. None: that is not tried."""


def verify_sink(
    new_target: Callable[[], SinkTarget],
    row_type: Any,
    rows: Sequence[Any],
    *,
    versions: tuple[Any, Any] | None = None,
    staged: Sequence[Staged] = ("local", "remote", "inline"),
    spark: Any = None,
) -> None:
    """Stages and releases rows in every way an engine may, and raises AssertionError at the first broken promise.

    `rows` are at least six different rows of `row_type`; where the sink keeps one row per key, of different keys.
    `versions` are two different rows of one key for such a sink, the older first: a driver that wakes up too late must
    not bring the older one back. `staged` says how parts lie there: a sink that only calls ``ctx.read`` cannot tell the
    ways apart, so one of them is enough where every release takes its time. `spark` is a session, where the sink asks
    for one.

    What a sink that is *exactly once* has to do to pass:

    - `open_writer` may be called in a pickled copy, by two attempts of one task at the same time, and by attempts that
      never finish. Only the parts that `release` is given count; nothing is visible before.
    - `release` shows each row of the parts once. Called again with the same (timeline, epoch), by this sink or by one
      that was made, bound and started anew, it changes nothing.
    - A release that ends in the middle, by a crash (`Crash`, a BaseException), by `SinkUnavailable` or by any other
      error out of ``ctx.read``, leaves either nothing visible or a part that the next call completes. The error is not
      swallowed, and `SinkUnavailable` stays `SinkUnavailable`. The same sink can be called again at once: it leaves no
      transaction open and connects anew.
    - Timelines are numbers in text: "10" comes after "9". In a newer timeline epoch numbers may come again, with other
      rows, which are shown. What comes of an older timeline or, in the same timeline, of an older epoch than the newest
      that is visible, is skipped, or refused with an error of Headrace. Comparing and writing have to be one step (one
      transaction): another driver may release the same and the next epoch while this release is under way.
    - `release` may come on another thread than `start`; never two at a time in one driver.
    - While the system behind is away, `release` raises `SinkUnavailable` (and so may `start`) within a reasonable time.

    A sink that is *at least once* may show rows again in all of these cases, never fewer and never others.

    >>> import headrace as hr
    >>> class Hit(hr.Record):
    ...     page: str
    >>> def new_target() -> SinkTarget:
    ...     kept = hr.sink.collect()
    ...     return SinkTarget(lambda: kept, lambda: list(kept.rows))
    >>> verify_sink(new_target, Hit, [Hit(f"/{i}") for i in range(6)])
    """
    assert len(rows) >= 6, "the suite needs a few rows"
    ways = {"local": (0, True), "remote": (0, False), "inline": (2**20, True)}
    for way in staged:
        inline_limit_bytes, local = ways[way]
        with tempfile.TemporaryDirectory() as folder:
            staging = Staging(Path(folder), inline_limit_bytes=inline_limit_bytes, local=local, session=spark)
            suite = _Suite(new_target, codec_of(row_type), rows, staging)
            suite.run()
            if way == staged[0]:
                suite.run_others()
                if versions is not None:
                    suite.an_older_version_does_not_come_back(*versions)


class _Suite:
    def __init__(
        self, new_target: Callable[[], SinkTarget], codec: RowCodec, rows: Sequence[Any], staging: Staging
    ) -> None:
        self.new_target = new_target
        self.codec = codec
        self.rows = rows
        self.staging = staging
        third = len(rows) // 3
        self.tasks = [rows[:third], [], rows[third : 2 * third]]
        self.later = [rows[2 * third : -1]]
        self.last = [rows[-1:]]

    def run(self) -> None:
        """What depends on where parts lie."""
        self.an_epoch_is_visible_when_released()
        self.an_epoch_without_rows_has_no_parts()
        parts = self.a_release_can_be_repeated()
        for at in range(parts):
            self.a_release_that_died_is_completed(at)
        self.a_release_that_died_between_files_is_completed()

    def run_others(self) -> None:
        """What does not."""
        self.two_attempts_of_a_task_do_not_meet()
        for cut in range(1, 5):
            self.a_restart_changes_nothing(cut)
        for at in range(2):
            self.a_release_that_failed_is_completed(at)
        self.a_new_timeline_begins_anew()
        self.a_driver_that_wakes_up_late_changes_nothing()
        self.another_driver_may_overtake_a_release()
        self.a_system_that_was_away_gets_everything()
        self.every_call_may_fail()

    # --- what is used by all

    def start(self, target: SinkTarget) -> Sink:
        sink = target.make().bind(self.codec, "out")
        sink.start()
        return sink

    def stage(self, sink: Sink, epoch: int, tasks: Sequence[Sequence[Any]]) -> list[StagedPart]:
        parts = stage_rows(sink, self.codec, self.staging, epoch, tasks)
        assert sum(part.rows for part in parts) == sum(map(len, tasks)), "parts have to tell how many rows they hold"
        return parts

    def expect(self, sink: Sink, target: SinkTarget, *tasks: Sequence[Sequence[Any]], what: str) -> None:
        wanted = Counter(repr(row) for epoch in tasks for task in epoch for row in task)
        found = Counter(repr(row) for row in target.read())
        missing, more = wanted - found, found - wanted
        assert not missing, f"{what}: rows are missing: {list(missing)[:3]}"
        strange = [row for row in more if row not in wanted]
        assert not strange, f"{what}: rows that nobody wrote: {strange[:3]}"
        if sink.guarantee == "exactly once":
            assert not more, f"{what}: rows are there more than once: {list(more)[:3]}"

    def insist(self, sink: Sink, parts: list[StagedPart], ctx: StagingRelease, what: str) -> None:
        """A release as the engine makes it: tried again while the sink says that this may help."""
        until = time.monotonic() + _BACK_S
        while True:
            try:
                sink.release(parts, ctx)
                return
            except SinkUnavailable as error:
                if time.monotonic() > until:
                    raise AssertionError(f"{what}: still {error}") from error
                time.sleep(0.1)

    # --- one driver

    def an_epoch_is_visible_when_released(self) -> None:
        target = self.new_target()
        sink = self.start(target)
        first = self.stage(sink, 0, self.tasks)
        second = self.stage(sink, 1, self.later)
        assert target.read() == [], "rows were visible before their epoch was released"
        sink.release(first, self.staging.release(0))
        self.expect(sink, target, self.tasks, what="after the first epoch")
        _elsewhere(lambda: sink.release(second, self.staging.release(1)))
        self.expect(sink, target, self.tasks, self.later, what="after the second epoch")
        sink.close()

    def an_epoch_without_rows_has_no_parts(self) -> None:
        assert self.stage(self.start(self.new_target()), 0, [[], []]) == [], "no rows, no parts"

    def a_release_can_be_repeated(self) -> int:
        target = self.new_target()
        sink = self.start(target)
        parts = self.stage(sink, 0, self.tasks)
        sink.release(parts, self.staging.release(0))
        sink.release(parts, self.staging.release(0))
        self.expect(sink, target, self.tasks, what="released twice")
        self.start(target).release(parts, self.staging.release(0))
        self.expect(sink, target, self.tasks, what="released again after a restart")
        return len(parts)

    def a_release_that_died_is_completed(self, at: int) -> None:
        target = self.new_target()
        sink = self.start(target)
        parts = self.stage(sink, 0, self.tasks)
        ctx = self.staging.release(0)
        ctx.dies_at = at
        with suppress(Crash):
            sink.release(parts, ctx)
        self._complete(self.start(target), target, parts, f"died at part {at}")

    def a_release_that_died_between_files_is_completed(self) -> None:
        target = self.new_target()
        sink = self.start(target)
        parts = self.stage(sink, 0, self.tasks)
        with suppress(Crash), planned(_die_between_files):
            sink.release(parts, self.staging.release(0))
        self._complete(self.start(target), target, parts, "died between two files")

    def a_release_that_failed_is_completed(self, at: int) -> None:
        what = f"unavailable at part {at}"
        target = self.new_target()
        sink = self.start(target)
        parts = self.stage(sink, 0, self.tasks)
        ctx = self.staging.release(0)
        ctx.unavailable_at = at
        try:
            sink.release(parts, ctx)
        except SinkUnavailable:
            pass
        except Exception as error:
            raise AssertionError(f"{what}: SinkUnavailable became {type(error).__name__}: {error}") from error
        else:
            assert ctx.reads <= at, f"{what}: the error was swallowed"
        self._complete(sink, target, parts, what)

    def _complete(self, sink: Sink, target: SinkTarget, parts: list[StagedPart], what: str) -> None:
        self.insist(sink, parts, self.staging.release(0), what)
        self.expect(sink, target, self.tasks, what=what)
        self.insist(sink, self.stage(sink, 1, self.later), self.staging.release(1), what)
        self.expect(sink, target, self.tasks, self.later, what=f"{what}, one epoch later")

    def a_restart_changes_nothing(self, cut: int) -> None:
        """Every step is done by the sink before it or by a new one; what came before the cut is repeated by neither."""
        target = self.new_target()
        sink = self.start(target)
        staged: dict[int, list[StagedPart]] = {}
        epochs = {0: self.tasks, 1: self.later}
        for number, (verb, epoch) in enumerate((("stage", 0), ("release", 0), ("stage", 1), ("release", 1)), start=1):
            if verb == "stage":
                staged[epoch] = self.stage(sink, epoch, epochs[epoch])
            else:
                sink.release(staged[epoch], self.staging.release(epoch))
            if number == cut:
                if cut % 2:
                    sink.close()
                sink = self.start(target)
        self.expect(sink, target, self.tasks, self.later, what=f"restarted after step {cut} of 4")

    def two_attempts_of_a_task_do_not_meet(self) -> None:
        target = self.new_target()
        sink = self.start(target)
        copies: list[Sink] = [cloudpickle.loads(cloudpickle.dumps(sink)) for _ in range(3)]
        first, second, dying = [copy.open_writer(self.codec, self.staging.task(0, 0)) for copy in copies]
        for row in self.rows:
            for writer in (first, second, dying):
                writer.write(Rows.of_objects(self.codec, [row]))
        second.finish()
        sink.release(first.finish(), self.staging.release(0))
        self.expect(sink, target, [self.rows], what="after two attempts of one task")

    # --- several drivers

    def a_new_timeline_begins_anew(self) -> None:
        target = self.new_target()
        sink = self.start(target)
        first = self.stage(sink, 0, self.tasks)
        sink.release(first, self.staging.release(0, timeline="9"))
        rewound = self.start(target)
        rewound.release(self.stage(rewound, 0, self.later), self.staging.release(0, timeline="10"))
        self.expect(rewound, target, self.tasks, self.later, what="the same epoch of a newer timeline")
        with suppress(HeadraceError):
            sink.release(first, self.staging.release(0, timeline="9"))
        self.expect(rewound, target, self.tasks, self.later, what="an epoch of an older timeline came again")

    def a_driver_that_wakes_up_late_changes_nothing(self) -> None:
        target = self.new_target()
        old = self.start(target)
        parts = self.stage(old, 0, self.tasks)
        new = self.start(target)
        new.release(parts, self.staging.release(0))
        new.release(self.stage(new, 1, self.later), self.staging.release(1))
        with suppress(HeadraceError):
            old.release(parts, self.staging.release(0))
        self.expect(new, target, self.tasks, self.later, what="an older driver released an epoch before the newest")
        self.insist(new, self.stage(new, 2, self.last), self.staging.release(2), "the newer driver goes on")
        self.expect(new, target, self.tasks, self.later, self.last, what="the newer driver went on")

    def another_driver_may_overtake_a_release(self) -> None:
        target = self.new_target()
        old = self.start(target)
        parts, later = self.stage(old, 0, self.tasks), self.stage(old, 1, self.later)
        errors: list[BaseException] = []

        def overtake() -> None:
            try:
                new = self.start(target)
                self.insist(new, parts, self.staging.release(0), "the overtaking driver")
                self.insist(new, later, self.staging.release(1), "the overtaking driver")
            except BaseException as error:
                errors.append(error)

        other = Thread(target=overtake, daemon=True)

        def meanwhile() -> None:
            other.start()
            other.join(_MEANWHILE_S)

        ctx = self.staging.release(0)
        ctx.meanwhile, ctx.meanwhile_at = meanwhile, max(0, len(parts) - 1)
        with suppress(HeadraceError):
            old.release(parts, ctx)
        if ctx.meanwhile is not None:
            other.start()
        other.join(_BACK_S)
        assert not other.is_alive(), "another driver waits for ever for a release that has ended"
        if errors:
            raise errors[0]
        self.expect(old, target, self.tasks, self.later, what="another driver released while this one did")

    def an_older_version_does_not_come_back(self, older: Any, newer: Any) -> None:
        target = self.new_target()
        old = self.start(target)
        parts = self.stage(old, 0, [[older]])
        new = self.start(target)
        new.release(parts, self.staging.release(0))
        new.release(self.stage(new, 1, [[newer]]), self.staging.release(1))
        self.expect(new, target, [[newer]], what="a newer version of a row")
        with suppress(HeadraceError):
            old.release(parts, self.staging.release(0))
        self.expect(new, target, [[newer]], what="an older driver brought an older version back")

    # --- a system that cannot be reached

    def a_system_that_was_away_gets_everything(self) -> None:
        target = self.new_target()
        if target.stop is None or target.start is None:
            return
        sink = self.start(target)
        parts = self.stage(sink, 0, self.tasks)
        target.stop()
        try:
            said = _raises_unavailable(lambda: sink.release(parts, self.staging.release(0)))
            assert said, "a release said nothing while the system behind was away"
            # A start may connect or not.
            _raises_unavailable(lambda: self.start(target))
        finally:
            target.start()
        self._complete(sink, target, parts, "the system behind was away")

    def every_call_may_fail(self) -> None:
        for number in range(_CALLS_AT_MOST):
            target = self.new_target()
            if target.failing is None:
                return
            sink = self.start(target)
            parts = self.stage(sink, 0, self.tasks)
            with target.failing(number):
                failed = _raises_unavailable(partial(sink.release, parts, self.staging.release(0)))
            self._complete(sink, target, parts, f"call {number} failed")
            if not failed:
                return
        raise AssertionError(f"a release still failed at call {_CALLS_AT_MOST}: does failing(n) let n calls pass?")


def _raises_unavailable(call: Callable[[], object]) -> bool:
    """Whether a call says that it should be tried again; anything else it may raise is wrong."""
    try:
        call()
    except SinkUnavailable:
        return True
    except Exception as error:
        raise AssertionError(
            f"while the system behind is away SinkUnavailable is expected, found {type(error).__name__}: {error}"
        ) from error
    return False


def _elsewhere(call: Callable[[], object]) -> None:
    """Makes a call on another thread, as the engine may, and raises here what it raises there."""
    errors: list[BaseException] = []

    def work() -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    thread = Thread(target=work)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def _die_between_files(point: str, epoch: int) -> None:
    if point == "between_files":
        raise Crash(f"between two files of epoch {epoch}")
