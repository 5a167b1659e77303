"""What a sink promises to one driver: nothing early, nothing twice, nothing lost, whatever breaks in the middle.

Each function is one promise, tried on a new target; it raises AssertionError where the promise is broken.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import Final

import cloudpickle

from headrace.connectors.sink_contract import Sink
from headrace.errors import SinkUnavailable
from headrace.model.batch import Rows
from headrace.model.crash import Crash, planned
from headrace.model.report import StagedPart
from headrace.testing.sink_trial import SinkTrial

_CALLS_AT_MOST: Final = 200


# --- epochs and restarts


def an_epoch_is_visible_when_released(trial: SinkTrial) -> None:
    target = trial.new_target()
    sink = trial.start(target)
    first = trial.stage(sink, 0, trial.tasks)
    second = trial.stage(sink, 1, trial.later)
    assert target.read() == [], "rows were visible before their epoch was released"
    sink.release(first, trial.staging.release(0))
    trial.expect(sink, target, trial.tasks, what="after the first epoch")
    _elsewhere(lambda: sink.release(second, trial.staging.release(1)))
    trial.expect(sink, target, trial.tasks, trial.later, what="after the second epoch")
    sink.close()


def an_epoch_without_rows_has_no_parts(trial: SinkTrial) -> None:
    assert trial.stage(trial.start(trial.new_target()), 0, [[], []]) == [], "no rows, no parts"


def a_release_can_be_repeated(trial: SinkTrial) -> int:
    target = trial.new_target()
    sink = trial.start(target)
    parts = trial.stage(sink, 0, trial.tasks)
    sink.release(parts, trial.staging.release(0))
    sink.release(parts, trial.staging.release(0))
    trial.expect(sink, target, trial.tasks, what="released twice")
    trial.start(target).release(parts, trial.staging.release(0))
    trial.expect(sink, target, trial.tasks, what="released again after a restart")
    return len(parts)


def a_restart_changes_nothing(trial: SinkTrial, cut: int) -> None:
    """Every step is done by the sink before it or by a new one; what came before the cut is repeated by neither."""
    target = trial.new_target()
    sink = trial.start(target)
    staged: dict[int, list[StagedPart]] = {}
    epochs = {0: trial.tasks, 1: trial.later}
    for number, (verb, epoch) in enumerate((("stage", 0), ("release", 0), ("stage", 1), ("release", 1)), start=1):
        if verb == "stage":
            staged[epoch] = trial.stage(sink, epoch, epochs[epoch])
        else:
            sink.release(staged[epoch], trial.staging.release(epoch))
        if number == cut:
            if cut % 2:
                sink.close()
            sink = trial.start(target)
    trial.expect(sink, target, trial.tasks, trial.later, what=f"restarted after step {cut} of 4")


def two_attempts_of_a_task_do_not_meet(trial: SinkTrial) -> None:
    target = trial.new_target()
    sink = trial.start(target)
    copies: list[Sink] = [cloudpickle.loads(cloudpickle.dumps(sink)) for _ in range(3)]
    first, second, dying = [copy.open_writer(trial.codec, trial.staging.task(0, 0)) for copy in copies]
    for row in trial.rows:
        for writer in (first, second, dying):
            writer.write(Rows.of_objects(trial.codec, [row]))
    second.finish()
    sink.release(first.finish(), trial.staging.release(0))
    trial.expect(sink, target, [trial.rows], what="after two attempts of one task")


# --- a release that ends in the middle


def a_release_that_died_is_completed(trial: SinkTrial, at: int) -> None:
    target = trial.new_target()
    sink = trial.start(target)
    parts = trial.stage(sink, 0, trial.tasks)
    ctx = trial.staging.release(0)
    ctx.dies_at = at
    with suppress(Crash):
        sink.release(parts, ctx)
    trial.complete(trial.start(target), target, parts, f"died at part {at}")


def a_release_that_died_between_files_is_completed(trial: SinkTrial) -> None:
    target = trial.new_target()
    sink = trial.start(target)
    parts = trial.stage(sink, 0, trial.tasks)
    with suppress(Crash), planned(_die_between_files):
        sink.release(parts, trial.staging.release(0))
    trial.complete(trial.start(target), target, parts, "died between two files")


def a_release_that_failed_is_completed(trial: SinkTrial, at: int) -> None:
    what = f"unavailable at part {at}"
    target = trial.new_target()
    sink = trial.start(target)
    parts = trial.stage(sink, 0, trial.tasks)
    ctx = trial.staging.release(0)
    ctx.unavailable_at = at
    try:
        sink.release(parts, ctx)
    except SinkUnavailable:
        pass
    except Exception as error:
        raise AssertionError(f"{what}: SinkUnavailable became {type(error).__name__}: {error}") from error
    else:
        assert ctx.reads <= at, f"{what}: the error was swallowed"
    trial.complete(sink, target, parts, what)


# --- a system that cannot be reached


def a_system_that_was_away_gets_everything(trial: SinkTrial) -> None:
    target = trial.new_target()
    if target.stop is None or target.start is None:
        return
    sink = trial.start(target)
    parts = trial.stage(sink, 0, trial.tasks)
    target.stop()
    try:
        said = _raises_unavailable(lambda: sink.release(parts, trial.staging.release(0)))
        assert said, "a release said nothing while the system behind was away"
        # A start may connect or not.
        _raises_unavailable(lambda: trial.start(target))
    finally:
        target.start()
    trial.complete(sink, target, parts, "the system behind was away")


def every_call_may_fail(trial: SinkTrial) -> None:
    for number in range(_CALLS_AT_MOST):
        target = trial.new_target()
        if target.failing is None:
            return
        sink = trial.start(target)
        parts = trial.stage(sink, 0, trial.tasks)
        with target.failing(number):
            failed = _raises_unavailable(partial(sink.release, parts, trial.staging.release(0)))
        trial.complete(sink, target, parts, f"call {number} failed")
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
