"""The contract of a target that holds one row per key: compared with what a step keeps, and filled from it.

`Sink.keyed` gives one out for a sink that has been started. Its caller (a refill) may be another process than the job,
which may run meanwhile. So every call says which epoch the rows are of (`Position`), and compares that with the epoch
that the target has, in the same step in which it reads or writes: where the job has moved on, nothing was done and the
answer is None. Then the caller asks for the position again, reads the rows of that epoch, and comes back.

1. `compare` comes with the rows of all keys, some at a time; with ``write`` it writes those that are missing or differ.
   A key may come again, with what an epoch made of it meanwhile.
2. `find_extra` comes when all keys have come, and `delete_extra` after it: rows of keys that never came are extra,
   whoever wrote them.
3. `close` comes once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import pyarrow as pa

from headrace.model.report import StagedPart

if TYPE_CHECKING:
    from headrace.connectors.sink_contract import Sink
    from headrace.model.batch import Rows

EXAMPLES: Final = 5
"""So many rows are shown of each kind of difference."""

Position = tuple[int, int] | None
"""Timeline and epoch of the newest rows that a target has of an output; None: it has none."""


class Difference(NamedTuple):
    """A row in which target and state do not agree, as people read it."""

    kind: Literal["missing", "different", "extra"]
    key: str
    target: str = ""
    """The row that is there."""
    state: str = ""
    """The row that should be."""


class Comparison(NamedTuple):
    """How some rows stand against a target, or all of them."""

    rows: int = 0
    missing: int = 0
    different: int = 0
    extra: int = 0
    examples: tuple[Difference, ...] = ()

    @property
    def agrees(self) -> bool:
        return not (self.missing or self.different or self.extra)

    def plus(self, other: Comparison) -> Comparison:
        examples = list(self.examples)
        for each in other.examples:
            if sum(held.kind == each.kind for held in examples) < EXAMPLES:
                examples.append(each)
        return Comparison(
            self.rows + other.rows,
            self.missing + other.missing,
            self.different + other.different,
            self.extra + other.extra,
            tuple(examples),
        )


class KeyedTarget(ABC):
    """What one output of one store has in a target."""

    @abstractmethod
    def position(self) -> Position:
        """The newest epoch that the target has of the output."""

    @abstractmethod
    def compare(self, parts: Sequence[StagedPart], position: Position, *, write: bool) -> Comparison | None:
        """How rows of this position stand against the target; with ``write`` they are there when this returns.

        What is counted is how it was before. None: the target has another position by now, and nothing was done.
        """

    @abstractmethod
    def find_extra(self, position: Position) -> Comparison | None:
        """Rows of keys that never came; None as above."""

    @abstractmethod
    def delete_extra(self, position: Position) -> int | None:
        """Takes such rows away, and says how many; None as above."""

    @abstractmethod
    def close(self) -> None:
        """Nothing more is asked."""


class InlineTask:
    """Stages rows that go no further than this process (a `StageTask`)."""

    epoch = 0
    shard = 0
    uid = "refill"

    def __init__(self, output: str) -> None:
        self.output = output

    def put(self, data: bytes | pa.Buffer, ext: str) -> tuple[str, int]:
        raise AssertionError("all parts travel inline")

    def take_inline(self, size_bytes: int) -> bool:
        return True


class InlineParts:
    """Reads such parts (what a release reads them with)."""

    epoch = 0

    def read(self, part: StagedPart) -> pa.Buffer:
        return pa.py_buffer(part.inline)


def parts_of(sink: Sink, rows: Rows) -> list[StagedPart]:
    """Rows as a sink stages them."""
    assert sink.codec is not None
    writer = sink.open_writer(sink.codec, InlineTask(sink.output))
    writer.write(rows)
    return writer.finish()
