"""`redis_stream`: entries of Redis streams, each read exactly once.

The description and its checks; `reader` plans and reads, `positions` knows what positions mean,
`entries` makes rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from headrace.connectors.reading import check_positive
from headrace.connectors.redis.entries import EntryFields
from headrace.connectors.redis.positions import EARLIEST, LATEST, id_text
from headrace.connectors.redis.server import check_url, shown_url
from headrace.connectors.source_contract import SURE, Passage, Replay, Source
from headrace.errors import ProgramError
from headrace.model.shapes import is_record_class, split_optional
from headrace.model.time import Timestamp, timestamp
from headrace.model.values import type_name

if TYPE_CHECKING:
    from headrace.connectors.redis.reader import RedisStreamReader
    from headrace.model.rows import RowCodec

Lost = Literal["fail", "skip"]
_ID = re.compile(r"\d+(-\d+)?")


class RedisStreamSource(Source):
    kind: ClassVar[str] = "redis_stream"
    python: ClassVar[bool] = True

    def __init__(
        self,
        streams: str | Sequence[str],
        url: str,
        *,
        start: str | datetime | Timestamp,
        field: str | None,
        id_as: str | None,
        time_as: str | None,
        stream_as: str | None,
        max_per_epoch: int | None,
        lost: Lost,
    ) -> None:
        self.streams = (streams,) if isinstance(streams, str) else tuple(streams)
        self.where = f"source.redis_stream({', '.join(map(repr, self.streams))})"
        self.url = check_url(url, self.where)
        self.start = _read_start(start, self.where)
        self.fields = EntryFields(field, id_as, time_as, stream_as)
        self.max_per_epoch = check_positive("max_per_epoch", max_per_epoch, self.where)
        self.lost = lost
        if lost not in ("fail", "skip"):
            raise self._wrong(f"lost cannot be {lost!r}", '"fail" or "skip"', repr(lost), 'leave it out for "fail"')
        if not self.streams or len(set(self.streams)) < len(self.streams) or not all(self.streams):
            raise self._wrong("each stream is read once", "different names", repr(streams), "give each name once")

    def _wrong(self, what: str, expected: str, found: str, next_move: str) -> ProgramError:
        return ProgramError(what, where=self.where, expected=expected, found=found, next_move=next_move)

    @property
    def has_splits(self) -> bool:
        return True

    def bind(self, codec: RowCodec) -> RedisStreamSource:
        fields = self.fields
        if fields.payload is None and not is_record_class(codec.type):
            raise self._wrong(
                f"the fields of an entry make no {type_name(codec.type)}",
                "a Record, whose fields are those of the entry",
                type_name(codec.type),
                'read a Record, or name the field that holds a JSON document: field="payload"',
            )
        for option, name, kinds in (
            ("id_as", fields.id_as, (str,)),
            ("stream_as", fields.stream_as, (str,)),
            ("time_as", fields.time_as, (Timestamp, datetime)),
        ):
            if name is not None:
                self._check_taken(codec, option, name, kinds)
        if len(set(fields.field_names)) < len(fields.field_names):
            raise self._wrong("a field can take one thing only", "different fields", ", ".join(fields.field_names), "")
        return self

    def _check_taken(self, codec: RowCodec, option: str, name: str, kinds: tuple[Any, ...]) -> None:
        codec.index(name, where=f"{self.where}, {option}=")
        kind = codec.annotations[name]
        if split_optional(kind)[0] not in kinds:
            expected = " or ".join("hr.Timestamp" if each is Timestamp else each.__name__ for each in kinds)
            raise self._wrong(
                f"{option}={name!r} names a field of another type",
                f"{name}: {expected}",
                f"{name}: {type_name(kind)}",
                "change the field's type, or name another one",
            )

    def reader(self, codec: RowCodec) -> RedisStreamReader:
        from headrace.connectors.redis.reader import RedisStreamReader

        return RedisStreamReader(
            codec,
            self.url,
            self.streams,
            start=self.start,
            fields=self.fields,
            max_per_epoch=self.max_per_epoch,
            skip_lost=self.lost == "skip",
        )

    def check_replay(self, passage: Passage) -> Replay:
        from headrace.connectors.redis.reader import find_losses

        losses = find_losses(self.url, {stream: (passage.start or {}).get(stream) for stream in self.streams})
        return Replay("lost", losses[0]) if losses else SURE

    def describe(self) -> str:
        return f"redis stream {', '.join(self.streams)} at {shown_url(self.url)}"


def _read_start(start: Any, where: str) -> str:
    """Where to start, as the constant that the first position holds: a word, or the id of the first entry to read."""
    if isinstance(start, str) and (start in (EARLIEST, LATEST) or _ID.fullmatch(start)):
        return start if "-" in start or not start.isdigit() else f"{start}-0"
    try:
        at = int(start) if isinstance(start, int) and not isinstance(start, bool) else int(timestamp(start))
    except (ProgramError, AttributeError, TypeError, ValueError) as error:
        raise ProgramError(
            "invalid start= of a stream",
            where=where,
            expected='"earliest", "latest", the id of an entry ("1700000000000-0"), or a time',
            found=repr(start),
            next_move='leave start= out for "earliest"',
        ) from error
    # A millisecond that has begun before the time asked for may hold entries from before it.
    return id_text((max(0, -(-at // 1000)), 0))
