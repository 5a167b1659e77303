"""Python workers that are started while Spark still plans a run's first epoch.

The process that workers are forked from imports Headrace and Arrow, and each worker loads the program. Spark would
begin with that when the first epoch's tasks wait for it. So a job without work asks for as many workers as the first
epoch does, on a thread of its own, once per context: workers stay. Whatever becomes of it, epochs do not depend on it.
"""

from __future__ import annotations

import logging
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from headrace.spark import executor

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

log = logging.getLogger("headrace.warming")

_warmed: Final[WeakSet[SparkContext]] = WeakSet()


def warm_workers(session: SparkSession, ship: executor.Ship, count: int) -> Thread | None:
    """Starts workers of this machine, and returns at once; None where they are there, or are other machines'."""
    context = session.sparkContext
    if context in _warmed or not (context.master or "").startswith("local"):
        return None
    _warmed.add(context)
    thread = Thread(target=_warm, args=(session, ship, count), name="headrace-warming", daemon=True)
    thread.start()
    return thread


def _warm(session: SparkSession, ship: executor.Ship, count: int) -> None:
    try:
        # Literal rows need no code to be generated, and come in as many tasks as the machine has places for.
        rows = session.sql(f"SELECT * FROM VALUES {', '.join(f'({number})' for number in range(count))} AS rows(n)")
        rows.mapInArrow(partial(executor.load_task, ship), "n INT").collect()
    except Exception as error:  # the session may end meanwhile; and an epoch says by itself what is wrong
        log.debug("workers were not started ahead: %s", error)
