"""Sales, written to Redis in each of its shapes and read back: for tests of the sink."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import headrace as hr
from headrace.connectors.sink_contract import Sink
from headrace.model.rows import codec_of
from tests.services.redis import Redis


class Sale(hr.Record):
    shop: str
    n: int
    note: str | None = None


CODEC = codec_of(Sale)
SALES = [Sale(f"s{i}", i, "x" if i % 2 else None) for i in range(9)]


def sale(fields: dict[bytes, bytes]) -> Sale:
    note = fields.get(b"note")
    return Sale(fields[b"shop"].decode(), int(fields[b"n"]), None if note is None else note.decode())


READERS: dict[str, Callable[[Any, str], list[Sale]]] = {
    "string": lambda client, name: [CODEC.from_json(client.get(key)) for key in client.keys(f"{name}:*")],
    "hash": lambda client, name: [sale(client.hgetall(key)) for key in client.keys(f"{name}:*")],
    "stream": lambda client, name: [sale(fields) for _, fields in client.xrange(name)],
}


def new_sink(server: Redis, shape: Any, name: str, **options: Any) -> Sink:
    key = name if shape == "stream" else f"{name}:{{shop}}"
    given = {"key": key, "guard": f"guard-{name}", **options}
    return hr.sink.redis(url=server.url, as_=shape, **given)


def bound(server: Redis, shape: Any, name: str, codec: Any = CODEC, **options: Any) -> Sink:
    sink = new_sink(server, shape, name, **options).bind(codec, "out")
    sink.start()
    return sink
