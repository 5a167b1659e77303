"""Stateful stream processing for Python, on Spark: keyed state, timers, event time and exactly-once epochs.

    import headrace as hr

    class Impression(hr.Record):
        tweet: str
        at: hr.Timestamp
        n: int = 1

    app = hr.App("tweets")
    views = app.read("views", hr.source.files("events/"), Impression, time=Impression.at, out_of_order="5s")
    totals = views.where("n > 0").key_by(Impression.tweet).aggregate(total=hr.sum("n")).named("totals")
    totals.changes().write(hr.sink.files("out/", format="parquet"))

    if __name__ == "__main__":
        app.run()

Importing this package loads nothing: the public names of `headrace.front` come when one of them is asked for, and
pyspark and a JVM when a program runs. A run of Spark has a dozen Python processes, and most need a few modules only.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from headrace.front import *  # noqa: F403
else:
    # Importing a room makes it an attribute of the package, once. This one has the name of a public function, which is
    # what `hr.state` means: so the room is imported here, where its attribute can be removed again.
    import headrace.state  # noqa: F401

    del state  # noqa: F821

    def __getattr__(name: str) -> Any:
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module 'headrace' has no attribute {name!r}")
        found = getattr(import_module("headrace.front"), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *import_module("headrace.front").__all__})
