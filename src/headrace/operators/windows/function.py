"""A user's WindowProcess at work: called for each window that fires, its states bound to the key and the window.

What a function raises stops the task, or, where the step's ``errors`` are read, becomes a row there; then what the
failing call did to states and side outputs is undone, and the window has fired all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from headrace.errors import StoreError
from headrace.model.batch import Rows
from headrace.model.rows import codec_of
from headrace.operators.binding import BoundState, bind_declarations, value_codecs
from headrace.operators.contract import SIDE, Outlet
from headrace.operators.failures import READ_ERRORS, function_failed
from headrace.operators.keyed import key_decoder
from headrace.operators.windows.assigners import Window
from headrace.operators.windows.context import Pane, WindowContext
from headrace.operators.windows.held import WindowName
from headrace.operators.windows.scoped import ScopedStates

if TYPE_CHECKING:
    from headrace.operators.contract import TaskInfo
    from headrace.operators.spec import StepInfo
    from headrace.state.shard import ShardState

KeepFailed = Callable[..., None]


class WindowFunction:
    """One WindowProcess of one step."""

    bound: BoundState
    scoped: ScopedStates
    state: ShardState

    def __init__(self, function: Any, info: StepInfo) -> None:
        # A copy: handles are put into it, and the object in the user's program must stay as it is, to be shipped again.
        self.function = copy(function)
        self._step = info.step
        self._by_key = tuple(decl for decl in info.decls if decl.scope == "key")
        self._by_window = tuple(decl for decl in info.decls if decl.scope == "window")
        self._codecs = value_codecs(info.decls, info.step)
        self._side_codecs = {decl.name: codec_of(decl.args[0]) for decl in info.decls if decl.kind == "side"}
        self.context: WindowContext[Any] = WindowContext(key_decoder(info.key_type))

    def call_plain(self, name: str) -> None:
        """``open`` or ``close``, where the function has it."""
        method = getattr(self.function, name, None)
        if method is not None:
            try:
                method()
            except Exception as error:
                raise function_failed(error, step=self._step, function=method) from error

    def begin(self, task: TaskInfo, state: ShardState, watermark: int, outlets: Mapping[str, Outlet]) -> None:
        self.state = state
        context = self.context
        context.now = task.clock_us  # type: ignore[assignment]
        context.epoch = task.epoch
        context.watermark = watermark  # type: ignore[assignment]
        context.timestamp = task.clock_us  # type: ignore[assignment]
        self.bound = bind_declarations(self._by_key, self._codecs, state, task, watermark, context)
        self.scoped = ScopedStates(self._by_window, self._codecs, state, task.epoch, "")
        self.bound.entries.extend(self.scoped.columns)
        for side in self.bound.sides:
            if SIDE + side.name in outlets:
                side._rows = []
        vars(self.function).update(self.bound.by_name)
        vars(self.function).update(self.scoped.by_name)

    def reach(self, watermark: int) -> None:
        """The watermark of the epoch's end is known."""
        self.context.watermark = watermark  # type: ignore[assignment]

    def call(
        self, slot: int, name: WindowName, home: WindowName, pane: Pane, at_us: int, rows: Sequence[Any],
        keep_failed: KeepFailed | None,
    ) -> list[Any]:  # fmt: skip
        """The rows that the function gives for a window. ``keep_failed``: where a failing call is told, not raised."""
        self._bind(slot, name, home)
        context = self.context
        context.pane = pane
        context.timestamp = at_us  # type: ignore[assignment]
        on_window = self.function.on_window
        result = None
        saved = None if keep_failed is None else self.bound.save(slot)
        try:
            result = on_window(rows, context)
            return [] if result is None else list(result)
        except StoreError:
            raise
        except Exception as error:
            if isinstance(error, TypeError) and result is not None and not isinstance(result, Iterable):
                error = _not_rows(result)
            if keep_failed is None or saved is None:
                raise function_failed(
                    error, step=self._step, function=on_window, key=context.key, way_out=READ_ERRORS
                ) from error
            self.bound.restore(slot, saved)
            keep_failed(error, on_window, None, at_us, key=context.key)
            return []

    def _bind(self, slot: int, name: WindowName, home: WindowName) -> None:
        for handle in self.bound.handles:
            handle._slot = slot
        self.scoped.bind(slot, home)
        self.context._move(self.state.names[slot])
        self.context.window = Window(*name)  # type: ignore[arg-type]

    def give_sides(self, outlets: Mapping[str, Outlet], *, timed: bool) -> None:
        """Sends on what the function emitted to its side outputs."""
        for side in self.bound.sides:
            if side._rows:
                rows, times = side._rows, side._times
                side._rows, side._times = [], []
                outlet = outlets[SIDE + side.name]
                outlet(Rows.of_objects(self._side_codecs[side.name], rows, times if timed else None))

    def counters(self) -> dict[str, int]:
        return {counter.name: counter.count for counter in self.bound.counters if counter.count}


def _not_rows(result: Any) -> TypeError:
    return TypeError(
        f"it returned {type(result).__name__} {result!r:.100}, which is neither None nor an iterable of rows: "
        "yield the row, or return a list"
    )
