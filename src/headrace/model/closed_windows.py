"""Windows that were closed under an older program stay closed when a newer one allows rows to be later.

A window is closed when its end lies further back than the lateness allowed. A program that allows more would take rows
for windows whose results are final, and whose state is gone. So manifests keep the time up to which the windows of a
step were closed when it began to allow more; whoever asks what is closed takes the later of the two.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.model.ids import MIN_TIME
from headrace.model.time import span_us

Rules = Mapping[str, Mapping[str, str]]
LATENESS = "allow_late"
"""The rule of a step with windows that says it."""


def derive_closed(
    closed: Mapping[str, int], before: Rules, now: Rules, times: Mapping[str, int], was: Mapping[str, str]
) -> dict[str, int]:
    """Step → event time up to which windows are closed whatever the program allows.

    ``closed`` and ``before``: of the parent manifest. ``times``: the watermark of each step there. ``was``: step → its
    former name. What the lateness of today closes by itself is left out.

    >>> derive_closed({}, {"w": {"allow_late": "5s"}}, {"w": {"allow_late": "1m"}}, {"w": 90_000_000}, {})
    {'w': 85000000}
    """
    found = {}
    for step, rules in now.items():
        name = step if step in before else was.get(step, step)
        watermark_us = times.get(name, times.get(step, MIN_TIME))
        if LATENESS not in rules or watermark_us == MIN_TIME:
            continue
        late_us, earlier_us = lateness_us(rules), lateness_us(before.get(name, rules))
        upto_us = closed.get(name, MIN_TIME)
        if late_us > earlier_us:
            upto_us = max(upto_us, watermark_us - earlier_us)
        if upto_us > watermark_us - late_us:
            found[step] = upto_us
    return found


def lateness_us(rules: Mapping[str, str]) -> int:
    said = rules.get(LATENESS)
    return 0 if said is None or said == "0s" else span_us(said, what="the lateness", where="a manifest")
