"""Real targets say how far a lost job had come in them, so that a copy of it can go on under its id."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pytest

import headrace as hr
from headrace.errors import Refused
from headrace.state.copying import copy_savepoint
from headrace.state.savepoints import read_savepoint
from headrace.state.store import LocalStore
from headrace.testing import Harness
from tests.services.messages import read_messages
from tests.services.redis import Redis
from tests.sinks.delta_rows import rows_of
from tests.sinks.postgres_tables import query

if TYPE_CHECKING:
    from tests.services.kafka import Broker


class Sale(hr.Record):
    shop: str
    cents: int


Shown = Callable[[], list[tuple[str, int]]]


def check(path: Path, new_sink: Callable[[], Any], shown: Shown, *, behind: str, appends: bool = False) -> None:
    """``behind``: what becomes of the epochs that the target has behind the copy: ``refused``, ``taken back`` or
    ``replaced``."""

    def start(name: str, **how: Any) -> tuple[Harness, Any]:
        app = hr.App("sales")
        sales = app.read("sales", hr.source.items([]), Sale)
        last = sales.key_by(Sale.shop).reduce(lambda old, new: new).named("last")
        (last.changes() if appends else last).write(new_sink(), name="table")
        return Harness(app, store=path / name, sinks=True, **how), sales

    def sell(h: Harness, sales: Any, *rows: Sale) -> None:
        h.push(sales, *rows)
        h.epoch()

    def copy(name: str, to: str) -> None:
        store = LocalStore(path / name)
        copy_savepoint(store, read_savepoint(store, to), LocalStore(path / to))

    h, sales = start("store")
    with h:
        sell(h, sales, Sale("a", 1), Sale("b", 1))
        h.savepoint("first")
        copy("store", "first")
    shutil.move(path / "store", path / "lost")
    h, sales = start("first", original_lost=True)
    with h:
        sell(h, sales, Sale("a", 2))
        assert ("a", 2) in shown() and len(hr.Store(h.store).epochs()) == 2
        h.savepoint("second")
        copy("first", "second")
        rows = shown()
        sell(h, sales, Sale("a", 3), Sale("c", 3))
    shutil.rmtree(path / "first")
    if behind == "refused":
        with pytest.raises(Refused, match="rows went out behind epoch 1") as refused:
            start("second", original_lost=True)
        assert refused.value.found == "table has epoch 2 of timeline 0"
        return
    h, sales = start("second", original_lost=True)
    with h:
        assert shown() == (rows if behind == "taken back" else [("a", 3), ("b", 1), ("c", 3)])
        sell(h, sales, Sale("a", 4))
        assert ("a", 4) in shown() and ("a", 3) not in shown()


@pytest.mark.parametrize(
    ("how", "behind"),
    [({}, "refused"), ({"key": "shop"}, "replaced"), ({"key": "shop", "undo": "1h"}, "taken back")],
    ids=["rows", "keys", "keys with former rows"],
)
def test_a_table_of_postgres(dsn: str, tmp_path: Path, how: dict[str, Any], behind: str) -> None:
    def shown() -> list[tuple[str, int]]:
        return sorted(query(dsn, "SELECT shop, cents FROM lost"))  # type: ignore[arg-type]

    check(tmp_path, lambda: hr.sink.postgres("lost", dsn=dsn, **how), shown, behind=behind, appends=not how)


@pytest.mark.parametrize(("undo", "behind"), [(None, "replaced"), ("1h", "taken back")])
def test_keys_of_redis(redis_server: Redis, tmp_path: Path, undo: Any, behind: str) -> None:
    name = uuid.uuid4().hex

    def shown() -> list[tuple[str, int]]:
        with redis_server.client() as client:
            rows = [json.loads(client.get(key)) for key in client.keys(f"{name}:*")]
        return sorted((row["shop"], row["cents"]) for row in rows)

    def new_sink() -> Any:
        return hr.sink.redis(key=f"{name}:{{shop}}", url=redis_server.url, undo=undo)

    check(tmp_path, new_sink, shown, behind=behind)


def test_a_topic(kafka: Broker, tmp_path: Path) -> None:
    topic = f"t-{uuid.uuid4().hex[:12]}"

    def shown() -> list[tuple[str, int]]:
        rows = [json.loads(message.value() or b"") for message in read_messages(kafka.bootstrap, topic)]
        return sorted((row["shop"], row["cents"]) for row in rows)

    check(
        tmp_path,
        lambda: hr.sink.kafka(topic, brokers=kafka.bootstrap, create=True),
        shown,
        behind="refused",
        appends=True,
    )


def test_a_table_of_delta(tmp_path: Path) -> None:
    lake = tmp_path / "lake"

    def shown() -> list[tuple[str, int]]:
        table = rows_of(deltalake.DeltaTable(lake))
        return sorted(zip(table["shop"].to_pylist(), table["cents"].to_pylist()))

    check(tmp_path, lambda: hr.sink.delta(lake), shown, behind="taken back", appends=True)
