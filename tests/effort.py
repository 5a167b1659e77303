"""How hard tests try: Hypothesis' profiles, how many keys of an operator are looked at alone, how durable files are.

``HYPOTHESIS_PROFILE`` names one. ``check`` is what everybody waits for, so it tries few examples, and the same ones
each time: what it says is about the change at hand, not about luck. ``soak`` tries as many as a machine can in about
``SOAK_SECONDS``, draws anew each time, and prints how to repeat what failed.
"""

from __future__ import annotations

import os
from typing import Final

from hypothesis import HealthCheck, settings

from headrace.testing import operator_trial

CHECK: Final = 40
"""How many examples a test tries that says nothing else."""
CHECK_SECONDS: Final = 12
"""How long all random tests take with that."""


def load_profile(name: str | None = None) -> None:
    """Before any test is imported: a test takes what is in force when it is decorated."""
    # How long an example takes says more about the machine than about the code.
    both = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
    # Examples that failed before are kept for soaking alone: together with the same draws they would be no use.
    settings.register_profile("check", both, max_examples=CHECK, derandomize=True, database=None)
    times = max(1, int(float(os.environ.get("SOAK_SECONDS", "300"))) // CHECK_SECONDS)
    settings.register_profile("soak", both, max_examples=times * CHECK)
    chosen = name or os.environ.get("HYPOTHESIS_PROFILE") or "check"
    settings.load_profile(chosen)
    if chosen == "check":
        # A second key alone, in every way, takes a third of the time and has seldom more to tell than the first.
        operator_trial.ORDERED_KEYS = 1  # type: ignore[misc]


def examples(number: int) -> int:
    """``max_examples`` of a test that is dearer than most, or has more to try: ``number`` of them in ``check``."""
    most: int = settings().max_examples
    return max(1, number * most // CHECK)


def spare_the_disk() -> None:
    """Lets ``os.fsync`` of this process ask nothing of the disk; a handle has to be open all the same.

    A test can let processes die, and no machine: what was written stays written. That it is asked for, and when, tests
    of `headrace.durable` say, and programs that tests start ask for it in earnest.
    """
    os.fsync = os.fstat  # type: ignore[assignment]
