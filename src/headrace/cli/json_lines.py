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
        self._opening = opening
        from headrace.catching_up import CatchingUp
        from headrace.standstill import Standstill

        self._standstill = Standstill()
        self._catching_up = CatchingUp()
        self._epochs = 0
        self._rows_in = 0
        self._rows_out = 0

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

    def follow(self, lines: Callable[[], list[str]]) -> None:
        """The log says it, on standard error."""

    def __call__(self, manifest: Manifest) -> None:
        from headrace.cli.epochs import summary
        from headrace.cli.show import print_json_line

        self._catching_up(manifest)
        told_of = summary(manifest, figures=self._catching_up.figures)
        self._standstill(manifest)
        self._epochs += 1
        self._rows_in += told_of["rows_in"]
        self._rows_out += told_of["rows_out"]
        print_json_line({"event": "epoch", **told_of})

    def summary(self) -> str:
        from headrace.progress import counts_text

        return counts_text(self._epochs, self._rows_in, self._rows_out)

    def left(self) -> list[str]:
        return self._standstill.left()

    def end(self, stopped: bool) -> None:
        from headrace.cli.show import print_json_line

        totals = {"epochs": self._epochs, "rows_in": self._rows_in, "rows_out": self._rows_out}
        print_json_line({"event": "end", "stopped": stopped, **totals, "waiting": self.left()})
