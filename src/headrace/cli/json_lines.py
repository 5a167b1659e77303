"""What ``headrace run --json`` prints: a run for machines, a line of JSON for each thing that happens."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self

    from headrace.foreground import Opening
    from headrace.state.manifest import Manifest


class JsonLines:
    """A run for machines: one line when it starts, one per epoch, one at the end."""

    def __init__(self, opening: Opening) -> None:
        from headrace.progress import RunProgress

        self._opening = opening
        self._progress = RunProgress()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def say(self, text: str) -> None:
        from headrace.cli.show import print_json_line

        newest = self._opening.newest
        where = {"store": self._opening.store, "resumes_at": None if newest is None else newest + 1}
        print_json_line({"event": "says", "text": text, **where})

    def follow(self, waits: Callable[[], list[str]], activity: Callable[[], str]) -> None:
        """The log says what is waited for, on standard error."""

    def still(self, activity: str) -> None:
        self.say(activity)

    def __call__(self, manifest: Manifest) -> None:
        from headrace.cli.epochs import summary
        from headrace.cli.show import print_json_line

        self._progress(manifest)
        print_json_line({"event": "epoch", **summary(manifest, figures=self._progress.catching_up.figures)})

    def summary(self) -> str:
        return self._progress.counts()

    def left(self) -> list[str]:
        return self._progress.standstill.left()

    def end(self, stopped: bool) -> None:
        from headrace.cli.show import print_json_line

        done = self._progress
        totals = {"epochs": done.epochs, "rows_in": done.rows_in, "rows_out": done.rows_out}
        print_json_line({"event": "end", "stopped": stopped, **totals, "waiting": self.left()})
