"""Taps of users, and the rig that runs a process function over them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import headrace as hr
from headrace.dataflow.functions import declarations
from headrace.model.rows import codec_of
from headrace.operators.process import ProcessOperator
from tests.operators.rig import Rig


class Tap(hr.Record):
    user: str
    n: int
    at: hr.Timestamp


class Total(hr.Record):
    user: str
    n: int


def tap(user: str, n: int = 1, at: int = 0) -> Tap:
    return Tap(user, n, hr.Timestamp(at))


def rig(function: Any, out: Any = Total, **options: Any) -> Rig:
    operator = ProcessOperator("step", function, declarations(type(function)), codec_of(out), key_type=str)
    return Rig(operator, codec_of(Tap), lambda row: row.user, **options)


class Sum(hr.Process[Tap, Total, str]):
    total: hr.ValueState[int]

    def on_event(self, event: Tap, ctx: hr.Context[str]) -> Iterator[Total]:
        self.total.set(self.total.get(0) + event.n)
        yield Total(ctx.key, self.total.get(0))


class Quiet(hr.Process[Tap, Total, str]):
    """Says when a user was quiet for 10 µs; n < 0 takes the timer back."""

    quiet: hr.Timer

    def on_event(self, event: Tap, ctx: hr.Context[str]) -> None:
        if event.n < 0:
            self.quiet.clear()
        else:
            self.quiet.set(hr.Timestamp(int(event.at) + 10))

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Total]:
        assert timer is self.quiet
        assert self.quiet.get() is None
        yield Total(ctx.key, ctx.timestamp)  # type: ignore[arg-type]
