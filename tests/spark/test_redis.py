"""Redis at both ends of a job on real Spark: a stream in, hashes and a stream of dead letters out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import headrace as hr
from tests.services.redis import Redis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class Order(hr.Record):
    shop: str
    cents: int
    at: hr.Timestamp


class Total(hr.Record):
    shop: str
    orders: int
    cents: int


class Totals(hr.Process[Order, Total, str]):
    held: hr.ValueState[Total]

    def on_event(self, order: Order, ctx: hr.Context[str]) -> Iterator[Total]:
        before = self.held.get(Total(ctx.key, 0, 0))
        self.held.set(total := Total(ctx.key, before.orders + 1, before.cents + order.cents))
        yield total


def program(url: str) -> hr.App:
    app = hr.App("orders")
    orders = app.read("orders", hr.source.redis_stream("orders", url=url, time_as="at"), Order, time=Order.at)
    orders.errors.write(hr.sink.redis(url=url, key="dead", as_="stream"), name="dead")
    totals = orders.key_by(Order.shop).process(Totals()).named("totals")
    totals.write(hr.sink.redis(url=url, key="shop:{shop}", as_="hash"), name="shops")
    totals.write(hr.sink.redis(url=url, key="log", as_="stream"), name="log")
    return app


def wait_until(met: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + 90
    while not met():
        assert time.monotonic() < ends, f"in vain: {what}"
        time.sleep(0.05)


def test_a_job_from_redis_to_redis_counts_each_entry_once_over_stops_kills_and_outages(
    spark: SparkSession, store_path: Path, tmp_path: Path
) -> None:
    server = Redis(tmp_path / "redis")
    server.start()
    client = server.client()

    def add(count: int) -> None:
        pipe = client.pipeline(transaction=False)
        for i in range(count):
            pipe.xadd("orders", {"shop": f"s{i % 3}", "cents": i})
        pipe.execute()

    def counted() -> int:
        return sum(int(client.hget(f"shop:s{n}", "orders") or 0) for n in range(3))

    try:
        add(30)
        client.xadd("orders", {"shop": "s0", "cents": "many"})
        run = program(server.url).start(store=store_path, spark=spark, epoch="100ms")
        wait_until(lambda: counted() == 30, "the first orders")
        wait_until(lambda: client.xlen("dead") == 1, "the dead letter")
        server.stop(hard=True)
        server.start()
        wait_until(lambda: bool(client.ping()), "the server after a kill")
        add(30)
        wait_until(lambda: counted() == 60, "orders after the server was killed and started")
        run.stop()
        add(30)
        server.stop()
        server.start()
        program(server.url).run(store=store_path, spark=spark, until="caught_up")
        assert counted() == 90
        assert client.xlen("log") == 90, "each version of a total is logged once"
        [(_, dead)] = client.xrange("dead")
        assert dead[b"step"] == b"orders"
        assert b"cents is no int" in dead[b"error"]
        assert dead[b"row"] == b'{"shop":"s0","cents":"many"}'
        cents = [int(client.hget(f"shop:s{n}", "cents") or 0) for n in range(3)]
        assert cents == [3 * sum(i for i in range(30) if i % 3 == n) for n in range(3)]
    finally:
        client.close()
        server.stop()
