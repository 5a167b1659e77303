"""What servers answer, whatever they speak: values as MessagePack, and the epoch they are of.

What no server would answer is an error here, in the words of the server that refused it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from headrace.client.steps import Line, Server, Steps
from headrace.errors import Forbidden, FunctionFailed, HeadraceError, ProgramError, StoreError, Unreachable
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


class WantedEpoch(NamedTuple):
    """Which epoch an answer is to be of: one that is not older than what was seen, or one of the past."""

    seen: Version
    at: str = ""
    """A moment of the past, as people write it; empty: the present."""


Ends = tuple[int | None, int | None]
"""A stretch of time in microseconds; None: without that end."""


class OlderVersion(NamedTuple):
    """An answer has values that were written when their state had another type."""

    version: int
    """The oldest version of the step in which one of them was written."""
    newest: int
    """The version of the step now."""


class AnswerInfo(NamedTuple):
    """What an answer says of itself."""

    version: Version
    age_s: float
    """How old the epoch was when the server answered."""
    watermark_us: int | None = None
    """How far event time had come in the step that was asked about; None: it has none, or none was asked about."""
    older: OlderVersion | None = None
    """None: all values are of the newest type."""

    @property
    def epoch(self) -> int:
        return self.version.epoch


class AnswerFacts(NamedTuple):
    """What an answer said of itself, and when it came."""

    info: AnswerInfo
    at_s: float


Windows = list[tuple[Window, bytes]]
"""Windows of a key, values as MessagePack."""
Next = str | None
"""Where a walk goes on; None: it is over."""
Page = tuple[list[tuple[bytes, bytes]], Next]
"""Keys as they are stored, values as MessagePack."""


class Wire(Protocol):
    """A connection to one server, in the protocol it speaks. One request at a time."""

    server: Server
    line: Line
    reusable: bool
    """Whether another request may follow."""

    def hello(self, timeout_s: float) -> Steps[None]:
        """Says who asks; the first thing on a connection."""

    def get(
        self, address: str, keys: list[bytes], wanted: WantedEpoch, timeout_s: float
    ) -> Steps[tuple[AnswerInfo, list[bytes | None]]]:
        """The values of keys, all of one epoch, as it is ``wanted``."""

    def windows(
        self, address: str, key: bytes, wanted: WantedEpoch, timeout_s: float
    ) -> Steps[tuple[AnswerInfo, Windows]]:
        """All windows of a key that are kept."""

    def range(
        self, address: str, key: bytes, ends: Ends, after: str, count: int, wanted: WantedEpoch, timeout_s: float
    ) -> Steps[tuple[AnswerInfo, tuple[Windows, Next]]]:
        """Some windows of a key that lie between two times, from state and archive."""

    def page(
        self, address: str, prefix: str, after: str, count: int, wanted: WantedEpoch, timeout_s: float
    ) -> Steps[tuple[AnswerInfo, Page]]:
        """Some keys and values, from where the page before ended."""

    def count(self, address: str, wanted: WantedEpoch, timeout_s: float) -> Steps[tuple[AnswerInfo, int]]:
        """How many keys there are."""

    def kind(self, address: str, wanted: WantedEpoch, timeout_s: float) -> Steps[tuple[AnswerInfo, Kind]]:
        """What a state keeps per key."""

    def states(self, wanted: WantedEpoch, timeout_s: float) -> Steps[tuple[AnswerInfo, list[str]]]:
        """The states that may be read."""

    def arrow(self, address: str, wanted: WantedEpoch, timeout_s: float) -> Steps[tuple[AnswerInfo, bytes] | None]:
        """The whole state as an Arrow stream; None where the protocol has none."""

    def wait(self, epoch: int, offsets: Mapping[str, Any], timeout_s: float) -> Steps[AnswerInfo]:
        """Comes back when an epoch is published and sources are read so far; raises `Behind` when not in time."""

    def watch(self, address: str, key: bytes, timeout_s: float) -> Steps[AnswerInfo]:
        """Begins to watch a key; the connection is for nothing else from then on.

        Says from what version on, so that a server which is behind is passed over before it is listened to.
        """

    def watched(self, timeout_s: float) -> Steps[tuple[AnswerInfo, bytes | None] | None]:
        """The value of the watched key, now and after it changed; None where nothing came in time."""


# --- what is no answer


_BY_STATUS: Final[dict[int, type[HeadraceError]]] = {
    400: ProgramError, 401: Forbidden, 403: Forbidden, 422: FunctionFailed,
}  # fmt: skip


def refusal(server: Server, status: int, parts: Mapping[str, Any]) -> HeadraceError:
    """What a server refused for good."""
    told = {name: str(parts.get(name, "")) for name in ("expected", "found", "next_move")}
    where = f"{server}, {parts['where']}" if parts.get("where") else str(server)
    return _BY_STATUS.get(status, StoreError)(str(parts.get("what", "")), where=where, **told)


def all_behind(servers: Sequence[Server], timeout_s: float, last: str) -> Unreachable:
    """Servers answered, and what they said is older than what this client has read before."""
    return Unreachable(
        "no server has come as far as was asked for",
        where=", ".join(map(str, servers)),
        expected=f"within {timeout_s:g}s an answer that is not older than one before, and of what was waited for",
        found=last,
        next_move="look whether the job runs and the server follows its store (`headrace epochs STORE`); where the "
        "store was put back to an earlier epoch on purpose, make a new hr.Client, which has seen nothing yet",
    )


def unreachable(servers: Sequence[Server], timeout_s: float, last: str) -> Unreachable:
    """Nobody answered in time."""
    return Unreachable(
        "no server answered",
        where=", ".join(map(str, servers)),
        expected=f"an answer within {timeout_s:g}s",
        found=last,
        next_move="start one with `headrace serve STORE`, or `headrace run --serve`; look at host, port and TLS",
    )
