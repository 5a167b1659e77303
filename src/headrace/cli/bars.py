"""Progress of what takes long: a bar on a terminal, a line now and then in a log, nothing where a machine reads.

All of it goes to standard error: standard output is for the answer.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from headrace.model.amounts import human_bytes, human_count, span_text

Advance = Callable[[int, int], None]
"""Called from any thread with how much is done, and of how much."""
Amount = Callable[[int], str]

LINE_EVERY_S: Final = 5.0


def byte_bar(title: str, *, quiet: bool = False) -> contextlib.AbstractContextManager[Advance]:
    """Progress in bytes, with the rate and the time that is left. ``quiet``: shows nothing, for ``--json``."""
    return _bar(title, human_bytes, quiet=quiet)


def count_bar(title: str, *, quiet: bool = False) -> contextlib.AbstractContextManager[Advance]:
    """Progress in things that are counted: keys, rows, epochs."""
    return _bar(title, human_count, quiet=quiet)


@contextlib.contextmanager
def waiting_line(title: str, *, quiet: bool = False) -> Iterator[Callable[[Callable[[], str]], None]]:
    """What is waited for: a line that moves on a terminal, a line now and then in a log.

    It gives a function that is called again and again with one that makes the words, which may cost something.
    """
    console = Console(stderr=True, highlight=False)
    if quiet:
        yield lambda words: None
    elif console.is_terminal:
        with console.status(title) as status:
            yield lambda words: status.update(words())
    else:
        spoken = time.monotonic()

        def say(words: Callable[[], str]) -> None:
            nonlocal spoken
            if time.monotonic() - spoken >= LINE_EVERY_S:
                spoken = time.monotonic()
                console.print(words(), soft_wrap=True, markup=False)

        yield say


@contextlib.contextmanager
def _bar(title: str, amount: Amount, *, quiet: bool) -> Iterator[Advance]:
    console = Console(stderr=True, highlight=False)
    if quiet:
        yield lambda done, total: None
    elif console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), _Words(amount))
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task(title, total=None)
            yield lambda done, total: progress.update(task, completed=done, total=total)
    else:
        yield ProgressLines(title, amount, lambda line: console.print(line, soft_wrap=True, markup=False))


class ProgressLines:
    """A line every few seconds: what is quick says nothing."""

    def __init__(
        self, title: str, amount: Amount, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._title = title
        self._amount = amount
        self._say = say
        self._clock = clock
        self._began = self._spoken = clock()

    def __call__(self, done: int, total: int) -> None:
        now = self._clock()
        if now - self._spoken < LINE_EVERY_S:
            return
        self._spoken = now
        rate = done / (now - self._began)
        left_s = (total - done) / rate if rate else None
        self._say(f"{self._title}: {progress_words(done, total, rate, left_s, self._amount)}")


def progress_words(done: int, total: int | None, rate: float | None, left_s: float | None, amount: Amount) -> str:
    """How far something is, how fast it goes, and how long it takes from here.

    >>> progress_words(1_200_000, 5_000_000, 400_000.0, 9.5, human_bytes)
    '1.2 MB of 5.0 MB, 400.0 KB/s, 10 s left'
    """
    words = [amount(done) + (f" of {amount(total)}" if total is not None else "")]
    if rate:
        words.append(f"{amount(round(rate))}/s")
    if left_s is not None and total is not None and done < total:
        words.append(f"{span_text(left_s)} left")
    return ", ".join(words)


class _Words(ProgressColumn):
    def __init__(self, amount: Amount) -> None:
        super().__init__()
        self._amount = amount

    def render(self, task: Task) -> Text:
        total = None if task.total is None else int(task.total)
        return Text(progress_words(int(task.completed), total, task.speed, task.time_remaining, self._amount), "cyan")
