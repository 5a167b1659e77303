"""Where a long run is killed, one strike after the other, each some epochs further on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from headrace.model.crash import POINTS
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

STRIKES = (
    *(Strike(point, LOSSES.get(point)) for point in POINTS if point not in LATE),
    Strike("released", lose_newest_offsets),
)
"""Those that come in every epoch; `LATE` ones come after them."""
