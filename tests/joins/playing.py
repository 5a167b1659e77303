"""Joins in tests: one made from what a case says, rows and results as short text.

Rows of both sides are written ``a1@5``: key a, number 1, time 5 µs; ``_1@5`` has no key. A pair is written ``1+2@9``:
left row 1 beside right row 2, and the time that the result carries; ``1+_@9`` is a left row beside nobody, ``_+2@9`` a
right one. ``-1+_@9`` takes it back. What a co-group sees is written ``a[0,10)=1,2+3``. Rows of the other outlets are
written like rows, with the time that they carry there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

import headrace as hr
from headrace.dataflow.connected import CoGrouped
from headrace.dataflow.graph import KeyedNode
from headrace.model.ids import MAX_TIME
from headrace.model.row_kind import takes_back
from headrace.plan.build import operator_builder
from headrace.testing.rig import EmittedRow, OperatorRig, row_time

ROW = re.compile(r"([a-z_])(\d+)@(-?\d+)")
OUTLETS: Final = ("unmatched_left", "unmatched_right", "late_left", "late_right")
KEYS: Final = (lambda row: row.key, lambda row: row.name)


class Ask(hr.Record):
    key: str | None
    n: int
    at: hr.Timestamp


class Bid(hr.Record):
    """Named otherwise than the left side, so that a join cannot mix them up."""

    at: hr.Timestamp
    name: str | None
    number: int


class Seen(hr.Record):
    key: str | None
    start: int
    end: int
    lefts: list[int]
    rights: list[int]


class Tell(hr.CoWindowProcess[Ask, Bid, Seen, str]):
    def on_window(self, lefts: Sequence[Ask], rights: Sequence[Bid], ctx: hr.WindowContext[str]) -> Iterator[Seen]:
        window = ctx.window
        yield Seen(
            ctx.key, int(window.start), int(window.end), [row.n for row in lefts], [row.number for row in rights]
        )


def asks(text: str) -> list[Ask]:
    return [Ask(key, n, hr.Timestamp(at)) for key, n, at in _rows(text)]


def bids(text: str) -> list[Bid]:
    return [Bid(hr.Timestamp(at), key, n) for key, n, at in _rows(text)]


def _rows(text: str) -> list[tuple[str | None, int, int]]:
    made = [(None if key == "_" else key, int(n), int(at)) for key, n, at in ROW.findall(text)]
    assert len(made) == len(text.split()), f"not all of {text!r} are rows"
    return made


def joined_of(case: dict[str, Any]) -> Any:
    """The step of a case: its ``join`` is Python over the keyed streams ``left`` and ``right``."""
    app = hr.App("cases")
    timed = case.get("timed", ["left", "right"])
    left = app.read("asks", hr.source.items([]), Ask, time=Ask.at if "left" in timed else None)
    right = app.read("bids", hr.source.items([]), Bid, time=Bid.at if "right" in timed else None)
    made = eval(case["join"], {"hr": hr, "left": left.key_by(Ask.key), "right": right.key_by(Bid.name)})
    return (made.process(Tell()) if isinstance(made, CoGrouped) else made).named("step")


def rig_of(case: dict[str, Any], **options: Any) -> OperatorRig:
    """One operator that runs a case, with everything read that comes out of it."""
    node = joined_of(case).node
    assert isinstance(node, KeyedNode)
    timed = case.get("timed", ["left", "right"])
    times = tuple(row_time if side in timed else None for side in ("left", "right"))
    outlets = getattr(node.spec, "outlets", ())
    return OperatorRig(operator_builder(node)(), (Ask, Bid), KEYS, time=times, outlets=outlets, **options)


def inputs(epoch: dict[str, Any]) -> list[tuple[int, Sequence[Any]]]:
    return [(0, asks(epoch.get("left", ""))), (1, bids(epoch.get("right", "")))]


def clocks(epoch: dict[str, Any]) -> dict[str, Any]:
    final = epoch.get("final", False)
    return {"watermark": MAX_TIME if final else epoch.get("watermark"), "clock": epoch.get("clock"), "final": final}


def told(emitted: EmittedRow) -> str:
    """A result, or a row of another outlet, as text."""
    row = emitted.value
    at = "" if emitted.at is None else f"@{emitted.at}"
    back = "-" if emitted.kind is not None and takes_back(np.array([emitted.kind])).any() else ""
    if isinstance(row, Seen):
        assert emitted.at == row.end - 1, f"the time of a result is the last instant of its window: {emitted}"
        return f"{row.key or '_'}[{row.start},{row.end})={_listed(row.lefts)}+{_listed(row.rights)}"
    if isinstance(row, Ask):
        return f"{back}{row.key or '_'}{row.n}{at}"
    if isinstance(row, Bid):
        return f"{row.name or '_'}{row.number}{at}"
    left, right = row.left, row.right
    return f"{back}{'_' if left is None else left.n}+{'_' if right is None else right.number}{at}"


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, sorted(numbers))) or "_"
