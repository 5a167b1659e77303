"""Where a long run is killed, one strike after the other, each some epochs further on."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.crash.files import lose_newest_offsets, lose_spark_folder

LATE = ("base_written", "sweeping", "final_published")
"""Points that come when they come, or only at the end."""


class Strike(NamedTuple):
    """Where the run is killed, and what its store loses before it is resumed."""

    point: str
    lose: Callable[[Path], None] | None = None

    def __str__(self) -> str:
        return self.point if self.lose is None else f"{self.point}-{self.lose.__name__}"


LOSSES = {"between_files": lose_spark_folder}
"""What is lost behind a point. Spark's folder tells the same from `published` to `released`, so any of them would do;
at the others it is left alone."""

SAME_ON_DISK = (
    ("offsets_written", "state_opening", "in_function"),
    ("delta_half_written", "outputs_staged"),
    ("reports_collected", "before_publish", "manifest_written"),
    ("manifest_answer_lost", "published"),
    ("between_sinks",),
    ("between_files",),
    ("released",),
)
"""Points that come in every epoch, by what a restart finds: nothing of the epoch, files that nobody names, all of them
with their reports, a manifest whose outputs are not out, and so on. `LATE` ones come after them."""

IN_CHECK = ("in_function", "delta_half_written", "manifest_written", "published", "between_sinks", "between_files")
"""One of each group. Without a JVM every point is struck in every check (`test_every_point`)."""


def strikes(*, every_point: bool) -> tuple[Strike, ...]:
    """Where drivers are killed with Spark: at one point of each group in a check, at every point in a soak."""
    points = [point for group in SAME_ON_DISK for point in group] if every_point else IN_CHECK
    return (*(Strike(point, LOSSES.get(point)) for point in points), Strike("released", lose_newest_offsets))


STRIKES = strikes(every_point=os.environ.get("HYPOTHESIS_PROFILE") == "soak")
