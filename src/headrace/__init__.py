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

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from headrace.front import *  # noqa: F403
else:

    class _Package(ModuleType):
        """Keeps `hr.state` a function: Python would put the room `headrace.state` there when that is imported."""

        def __setattr__(self, name: str, value: object) -> None:
            if not (name == "state" and isinstance(value, ModuleType)):
                super().__setattr__(name, value)

        def __reduce__(self) -> tuple[Any, ...]:
            # A user's function that names `hr` is shipped with it: by name, as any module is.
            return import_module, (self.__name__,)

    sys.modules[__name__].__class__ = _Package

    def __getattr__(name: str) -> Any:
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module 'headrace' has no attribute {name!r}")
        value = getattr(import_module("headrace.front"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return [*import_module("headrace.front").__all__, "__version__"]
