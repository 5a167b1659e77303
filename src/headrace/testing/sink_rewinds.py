"""What a sink promises when its job goes back: what the abandoned timeline made visible is gone, for good.

Each function is one promise, tried on a new target; it raises AssertionError where the promise is broken. Sinks that
cannot forget, and those that show rows and keep none, are not tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import count

from headrace.connectors.sink_contract import Sink
from headrace.errors import HeadraceError
from headrace.model.crash import Crash, planned
from headrace.testing.sink_trial import SinkTarget, SinkTrial


def forgets(trial: SinkTrial) -> bool:
    """Whether there is anything to try."""
    sink = trial.start(trial.new_target())
    return "repeat" in sink.rewinds and not sink.in_process


def what_is_abandoned_is_forgotten(trial: SinkTrial) -> None:
    target, sink = _with_two_epochs(trial)
    sink.forget(trial.staging.forget(0, 1))
    trial.expect(sink, target, trial.tasks, what="after going back to the first epoch")
    trial.start(target).forget(trial.staging.forget(0, 1))
    trial.expect(sink, target, trial.tasks, what="after going back twice")
    _go_on(trial, target)


def all_of_a_timeline_can_be_forgotten(trial: SinkTrial) -> None:
    target, sink = _with_two_epochs(trial)
    sink.forget(trial.staging.forget(-1, 1))
    trial.expect(sink, target, what="after going back behind the first epoch")
    rewound = trial.start(target)
    trial.insist(rewound, trial.stage(rewound, 0, trial.last), trial.staging.release(0, timeline="1"), "going on")
    trial.expect(rewound, target, trial.last, what="after the first epoch of the new timeline")


def two_timelines_are_looked_at_before_either_is_forgotten(trial: SinkTrial) -> None:
    target, sink = _with_two_epochs(trial)
    sink.forget(trial.staging.forget(0, 1))
    _go_on(trial, target)
    rewound = trial.start(target)
    both = [trial.staging.forget(-1, 1, timeline="1"), trial.staging.forget(0, 1)]
    for abandoned in both:
        abandoned.next_timeline = "2"
        rewound.check_forget(abandoned)
    for abandoned in both:
        rewound.forget(abandoned)
    trial.expect(rewound, target, trial.tasks, what="after going back behind the beginning of a timeline")


def an_abandoned_driver_that_wakes_up_changes_nothing(trial: SinkTrial) -> None:
    target = trial.new_target()
    old = trial.start(target)
    old.release(trial.stage(old, 0, trial.tasks), trial.staging.release(0))
    parts = trial.stage(old, 1, trial.later)
    trial.start(target).forget(trial.staging.forget(0, 1))
    with suppress(HeadraceError):
        old.release(parts, trial.staging.release(1))
    trial.expect(old, target, trial.tasks, what="an abandoned driver released an epoch")
    _go_on(trial, target)


def forgetting_again_leaves_the_new_timeline(trial: SinkTrial) -> None:
    target, sink = _with_two_epochs(trial)
    sink.forget(trial.staging.forget(0, 1))
    _go_on(trial, target)
    trial.start(target).forget(trial.staging.forget(0, 1))
    trial.expect(sink, target, trial.tasks, trial.last, what="forgetting again after the new timeline has begun")


def a_death_while_forgetting_is_made_good(trial: SinkTrial) -> None:
    for at in count():
        points = count()

        def die(point: str, epoch: int, at: int = at, points: Iterator[int] = points) -> None:
            if point == "forgetting" and next(points) == at:
                raise Crash(f"while forgetting, at point {at}")

        target, sink = _with_two_epochs(trial)
        try:
            with planned(die):
                sink.forget(trial.staging.forget(0, 1))
            died = False
        except Crash:
            died = True
        trial.start(target).forget(trial.staging.forget(0, 1))
        trial.expect(sink, target, trial.tasks, what="died while forgetting, and forgot again")
        _go_on(trial, target)
        if not died:
            return


def _with_two_epochs(trial: SinkTrial) -> tuple[SinkTarget, Sink]:
    target = trial.new_target()
    sink = trial.start(target)
    sink.release(trial.stage(sink, 0, trial.tasks), trial.staging.release(0))
    sink.release(trial.stage(sink, 1, trial.later), trial.staging.release(1))
    return target, trial.start(target)


def _go_on(trial: SinkTrial, target: SinkTarget) -> None:
    rewound = trial.start(target)
    trial.insist(rewound, trial.stage(rewound, 1, trial.last), trial.staging.release(1, timeline="1"), "going on")
    trial.expect(rewound, target, trial.tasks, trial.last, what="the new timeline goes on")
