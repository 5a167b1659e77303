"""``hr.Store(…).sql(…)``: one statement over a store, from Python."""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from headrace.read.store import Store
from headrace.snapshots.answers import SqlAnswer
from headrace.snapshots.session import Engine
from headrace.snapshots.sources import StoreSnapshots


@lru_cache(1)
def shared_engine() -> Engine:
    """The engine of this process: columns that one statement has read are there for the next."""
    engine = Engine()
    atexit.register(engine.close)
    return engine


def answer(store: Store, statement: str, parameters: Sequence[Any] = ()) -> SqlAnswer:
    session = shared_engine().session(StoreSnapshots(store))
    try:
        found = session.run(statement, parameters)
        return SqlAnswer(found.table(), found.epoch)
    finally:
        session.close()
