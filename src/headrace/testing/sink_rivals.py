"""What a sink promises where several drivers meet: who is older changes nothing any more, and nobody waits for ever.

The same for several stores: none takes the epochs of another for its own.

A driver that was thought dead may wake up, and its release may be under way while the next one releases the same epoch.
Each function is one promise, tried on a new target; it raises AssertionError where the promise is broken.
"""

from __future__ import annotations

from contextlib import suppress
from threading import Thread
from typing import Any, Final

from headrace.errors import HeadraceError
from headrace.testing.sink_trial import BACK_S, SinkTrial

_MEANWHILE_S: Final = 0.3
"""How long a release waits in its middle for another driver, which may itself have to wait for this release."""


def a_new_timeline_begins_anew(trial: SinkTrial) -> None:
    target = trial.new_target()
    sink = trial.start(target)
    first = trial.stage(sink, 0, trial.tasks)
    sink.release(first, trial.staging.release(0, timeline="9"))
    rewound = trial.start(target)
    rewound.release(trial.stage(rewound, 0, trial.later), trial.staging.release(0, timeline="10"))
    trial.expect(rewound, target, trial.tasks, trial.later, what="the same epoch of a newer timeline")
    with suppress(HeadraceError):
        sink.release(first, trial.staging.release(0, timeline="9"))
    trial.expect(rewound, target, trial.tasks, trial.later, what="an epoch of an older timeline came again")


def a_driver_that_wakes_up_late_changes_nothing(trial: SinkTrial) -> None:
    target = trial.new_target()
    old = trial.start(target)
    parts = trial.stage(old, 0, trial.tasks)
    new = trial.start(target)
    new.release(parts, trial.staging.release(0))
    new.release(trial.stage(new, 1, trial.later), trial.staging.release(1))
    with suppress(HeadraceError):
        old.release(parts, trial.staging.release(0))
    trial.expect(new, target, trial.tasks, trial.later, what="an older driver released an epoch before the newest")
    trial.insist(new, trial.stage(new, 2, trial.last), trial.staging.release(2), "the newer driver goes on")
    trial.expect(new, target, trial.tasks, trial.later, trial.last, what="the newer driver went on")


def another_driver_may_overtake_a_release(trial: SinkTrial) -> None:
    target = trial.new_target()
    old = trial.start(target)
    parts, later = trial.stage(old, 0, trial.tasks), trial.stage(old, 1, trial.later)
    errors: list[BaseException] = []

    def overtake() -> None:
        try:
            new = trial.start(target)
            trial.insist(new, parts, trial.staging.release(0), "the overtaking driver")
            trial.insist(new, later, trial.staging.release(1), "the overtaking driver")
        except BaseException as error:
            errors.append(error)

    other = Thread(target=overtake, daemon=True)

    def meanwhile() -> None:
        other.start()
        other.join(_MEANWHILE_S)

    ctx = trial.staging.release(0)
    ctx.meanwhile, ctx.meanwhile_at = meanwhile, max(0, len(parts) - 1)
    with suppress(HeadraceError):
        old.release(parts, ctx)
    if ctx.meanwhile is not None:
        other.start()
    other.join(BACK_S)
    assert not other.is_alive(), "another driver waits for ever for a release that has ended"
    if errors:
        raise errors[0]
    trial.expect(old, target, trial.tasks, trial.later, what="another driver released while this one did")


def another_store_is_shown_or_refused(trial: SinkTrial) -> None:
    """Every store counts its epochs from the same number, so a number alone does not say that rows are there."""
    target = trial.new_target()
    one = trial.start(target)
    one.release(trial.stage(one, 0, trial.tasks), trial.staging.release(0))
    two = trial.start(target)
    ctx = trial.staging.release(0)
    ctx.job = "another"
    what = "the same epoch of another store"
    try:
        trial.insist(two, trial.stage(two, 0, trial.last), ctx, what)
        others = [trial.last]
    except HeadraceError:
        others = []
    trial.expect(one, target, trial.tasks, *others, what=f"{what} was {'released' if others else 'refused'}")
    trial.insist(one, trial.stage(one, 1, trial.later), trial.staging.release(1), f"{what} came, and the first went on")
    trial.expect(one, target, trial.tasks, trial.later, *others, what=f"{what} came, and the first went on")


def an_older_version_does_not_come_back(trial: SinkTrial, older: Any, newer: Any) -> None:
    target = trial.new_target()
    old = trial.start(target)
    parts = trial.stage(old, 0, [[older]])
    new = trial.start(target)
    new.release(parts, trial.staging.release(0))
    new.release(trial.stage(new, 1, [[newer]]), trial.staging.release(1))
    trial.expect(new, target, [[newer]], what="a newer version of a row")
    with suppress(HeadraceError):
        old.release(parts, trial.staging.release(0))
    trial.expect(new, target, [[newer]], what="an older driver brought an older version back")
