"""What servers answer, whatever they speak: values as MessagePack, and the epoch they are of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from headrace.client.steps import Line, Server, Steps
from headrace.model.window import Window
from headrace.read.shape import Kind


class Version(NamedTuple):
    """What an answer is of. Of one store later ones are greater."""

    timeline: int
    epoch: int
    store: str = ""
    """The id of the store; one that is made anew in the same place has another. Empty: the server does not tell."""

    def is_before(self, other: Version) -> bool:
        """Whether it is older than another of the same store."""
        return (self.timeline, self.epoch) < (other.timeline, other.epoch)


Ends = tuple[int | None, int | None]
"""A stretch of time in microseconds; None: without that end."""


class AnswerInfo(NamedTuple):
    """What an answer says of itself."""

    version: Version
    age_s: float
    """How old the epoch was when the server answered."""
    watermark_us: int | None = None
    """How far event time had come in the step that was asked about; None: it has none, or none was asked about."""

    @property
    def epoch(self) -> int:
        return self.version.epoch


class Heard(NamedTuple):
    """What an answer said of itself, and when it came."""

    info: AnswerInfo
    at_s: float


class Values(NamedTuple):
    info: AnswerInfo
    values: list[bytes | None]


class Windows(NamedTuple):
    info: AnswerInfo
    windows: list[tuple[Window, bytes]]


class RangeOfWindows(NamedTuple):
    info: AnswerInfo
    windows: list[tuple[Window, bytes]]
    next: str | None
    """Where the range goes on; None: it is over."""


class Page(NamedTuple):
    info: AnswerInfo
    entries: list[tuple[bytes, bytes]]
    """Keys as they are stored, values as MessagePack."""
    next: str | None
    """Where the walk goes on; None: it is over."""


class Wire(Protocol):
    """A connection to one server, in the protocol it speaks. One request at a time."""

    server: Server
    line: Line
    reusable: bool
    """Whether another request may follow."""

    def hello(self, timeout_s: float) -> Steps[None]:
        """Says who asks; the first thing on a connection."""

    def get(self, address: str, keys: list[bytes], seen: Version, timeout_s: float) -> Steps[Values]:
        """The values of keys, all of one epoch, which is not older than ``seen``."""

    def windows(self, address: str, key: bytes, seen: Version, timeout_s: float) -> Steps[Windows]:
        """All windows of a key that are kept."""

    def range(
        self, address: str, key: bytes, ends: Ends, after: str, count: int, seen: Version, timeout_s: float
    ) -> Steps[RangeOfWindows]:
        """Some windows of a key that lie between two times, from state and archive."""

    def page(self, address: str, prefix: str, after: str, count: int, seen: Version, timeout_s: float) -> Steps[Page]:
        """Some keys and values, from where the page before ended."""

    def count(self, address: str, seen: Version, timeout_s: float) -> Steps[tuple[AnswerInfo, int]]:
        """How many keys there are."""

    def kind(self, address: str, seen: Version, timeout_s: float) -> Steps[tuple[AnswerInfo, Kind]]:
        """What a state keeps per key."""

    def states(self, seen: Version, timeout_s: float) -> Steps[tuple[AnswerInfo, list[str]]]:
        """The states that may be read."""

    def arrow(self, address: str, seen: Version, timeout_s: float) -> Steps[tuple[AnswerInfo, bytes] | None]:
        """The whole state as an Arrow stream; None where the protocol has none."""

    def wait(self, epoch: int, offsets: Mapping[str, Any], timeout_s: float) -> Steps[AnswerInfo]:
        """Comes back when an epoch is published and sources are read so far; raises `Behind` when not in time."""

    def watch(self, address: str, key: bytes, timeout_s: float) -> Steps[AnswerInfo]:
        """Begins to watch a key; the connection is for nothing else from then on.

        Says from what version on, so that a server which is behind is passed over before it is listened to.
        """

    def watched(self, timeout_s: float) -> Steps[tuple[AnswerInfo, bytes | None] | None]:
        """The value of the watched key, now and after it changed; None where nothing came in time."""
