"""Which streams a server takes events for, and of what type these have to be."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.errors import SettingsError
from headrace.ingest import layout
from headrace.model.rows import RowCodec
from headrace.model.values import type_name

MOST_PARTITIONS = 1024


class StreamSpec(msgspec.Struct, frozen=True):
    """A stream that events are taken for."""

    partitions: int = 1
    codec: RowCodec | None = None
    """Of the type that its events have to be of; None: any JSON object."""

    @property
    def type_name(self) -> str | None:
        return None if self.codec is None else type_name(self.codec.type)


class Streams:
    """What a server takes. Without named streams it takes any, and a stream is made by its first event."""

    def __init__(self, named: Mapping[str, StreamSpec] | None = None, default: StreamSpec | None = None) -> None:
        """``default``: what holds for streams that are not named; None: they are not taken."""
        self.named = dict(named or {})
        self.default = default if default is not None or self.named else StreamSpec()

    def find(self, name: str) -> StreamSpec | None:
        return self.named.get(name, self.default)


def parse_stream(text: str) -> tuple[str, int]:
    """``clicks`` or ``clicks:4``: a stream and its partitions.

    >>> parse_stream("clicks:4")
    ('clicks', 4)
    """
    name, colon, count = text.partition(":")
    partitions = int(count) if count.isdecimal() else 0 if colon else 1
    if not layout.is_stream_name(name) or not 1 <= partitions <= MOST_PARTITIONS:
        raise SettingsError(
            "this cannot be a stream",
            where="--stream",
            expected=f"a name ({layout.STREAM_NAMES}), and perhaps how many partitions: clicks:4",
            found=repr(text),
        )
    return name, partitions
