"""The rows that strings or hashes of Redis show: all whose keys, and fields, fit the templates of a sink."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from headrace.connectors.redis.keyed import pattern_of

if TYPE_CHECKING:
    from headrace.connectors.redis.sink import RedisSink

_KEYS_AT_ONCE: Final = 1_000


def read_shown(sink: RedisSink) -> Iterator[pa.Table]:
    """Some keys at a time, with the fields of the type; a key may come twice where Redis moves keys meanwhile."""
    assert sink.codec is not None
    form, names = sink.form, [sink.codec.encoded_names[name] for name in sink.codec.names]
    cursor, seen = 0, set[bytes]()
    while True:
        cursor, keys = _ask(
            sink, lambda client, at=cursor: client.scan(at, pattern_of(form.key), _KEYS_AT_ONCE, form.shape)
        )
        fresh = [key for key in keys if key not in seen]
        seen.update(fresh)
        if fresh:
            rows = _rows(sink, fresh)
            columns = [pa.array([_text(row.get(name)) for row in rows], pa.string()) for name in names]
            yield pa.table(columns, names=list(sink.codec.names))
        if not cursor:
            return


def _rows(sink: RedisSink, keys: Sequence[bytes]) -> list[dict[str, Any]]:
    form = sink.form
    if form.shape == "string":
        values = _ask(sink, lambda client: client.mget(keys))
        return [_document(sink, value) for value in values if value is not None]
    hashes = _ask(sink, lambda client: _hashes(client, keys))
    if form.field is None:
        return [{name.decode(): value for name, value in fields.items()} for fields in hashes if fields]
    return [_document(sink, value) for fields in hashes for value in fields.values()]


def _hashes(client: Any, keys: Sequence[bytes]) -> list[dict[bytes, bytes]]:
    pipeline = client.pipeline(transaction=False)
    for key in keys:
        pipeline.hgetall(key)
    return list(pipeline.execute())


def _document(sink: RedisSink, value: bytes) -> dict[str, Any]:
    decode = msgspec.json.decode if sink.form.format == "json" else msgspec.msgpack.decode
    found = decode(value)
    # What is no record is its only column.
    return found if isinstance(found, dict) else {next(iter(sink.codec.names)) if sink.codec else "": found}


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return msgspec.json.encode(value, order="sorted").decode()


def _ask(sink: RedisSink, request: Any) -> Any:
    try:
        return request(sink.connected())
    except Exception as error:
        raise sink.in_words(error, f"output {sink.output}") from error
