"""What stands behind a shell: the names it offers, and the answers it gives.

The shell calls all of it on one thread, and `close` once, at its end. `execute` gets one statement without its
semicolon and raises `HeadraceError` for a mistake in it; the session stays usable. Names are asked for while a person
types: they must come at once, and without starting anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa


class ShellColumn(NamedTuple):
    """A column as the shell shows it."""

    name: str
    type: str
    note: str = ""
    """What else is known: a key, the event time."""


@dataclass(frozen=True)
class ShellAnswer:
    """What a statement came to: rows that are there, or a line of words.

    ``schema`` is None where there are no rows. ``batches`` is read once, while it is shown.
    """

    schema: pa.Schema | None = None
    batches: Iterable[pa.RecordBatch] = ()
    message: str = ""


class Changes(NamedTuple):
    """What came since the last look: rows in order, each with its sign where the answer corrects itself."""

    rows: pa.Table
    signs: Sequence[str] | None = None
    """``+I -U +U -D``; None: each row stands for itself."""


class LiveAnswer(Protocol):
    """What a statement comes to over time. `stop` may be called at any moment, and is called in the end."""

    @property
    def schema(self) -> pa.Schema: ...
    @property
    def key(self) -> Sequence[str] | None:
        """Columns by which a row replaces an earlier one; None: there are none."""

    @property
    def as_changelog(self) -> bool:
        """Whether changes are asked for as they come, instead of the table that they make."""

    def changes(self) -> Iterator[Changes]:
        """A look a few times a second, also when nothing came. Ends when no more can come; raises what ended it."""

    def status(self) -> str:
        """Rate, watermark and what else says how far it is: one line."""

    def stop(self) -> None: ...


class ShellSession(Protocol):
    """What is asked."""

    @property
    def title(self) -> str:
        """What stands before the prompt."""

    def tables(self) -> Sequence[str]: ...
    def columns(self, table: str) -> Sequence[ShellColumn]:
        """Of a table or view; an unknown one is a HeadraceError that names the nearest."""

    def functions(self) -> Sequence[str]:
        """Names that may stand before a parenthesis."""

    def execute(self, text: str) -> ShellAnswer | LiveAnswer: ...
    def close(self) -> None: ...
