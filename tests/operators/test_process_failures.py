"""What a process function does wrong: told with its place, undone where errors are read, never stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import FunctionFailed, StoreError
from tests.operators.rig import values
from tests.operators.taps import Sum, Tap, Total, rig, tap


class Fragile(hr.Process[Tap, Total, str]):
    total: hr.ValueState[int]
    seen: hr.MapState[int, int]
    trail: hr.ListState[int] = hr.state(max_len=3)
    quiet: hr.Timer
    ends: hr.Timers
    odd: hr.Side[Tap]

    def on_event(self, event: Tap, ctx: hr.Context[str]) -> Iterator[Total]:
        self.total.set(self.total.get(0) + event.n)
        self.seen[event.n] = self.seen.get(event.n, 0) + 1
        self.trail.append(event.n)
        self.ends.add(hr.Timestamp(1000 + event.n))
        self.odd.emit(event)
        yield Total(f"{list(self.trail)} {sorted(self.seen.items())}", self.total.get(0))
        if event.n == 13:
            self.seen.clear()
            self.trail.clear()
            self.quiet.set(hr.Timestamp(5))
            raise ValueError("thirteen")

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Total]:
        yield Total(timer.name, ctx.timestamp)  # type: ignore[arg-type]
        if ctx.timestamp == 1001:
            self.total.clear()
            raise KeyError("timer")


def test_a_failing_function_stops_the_task_and_tells_where() -> None:
    r = rig(Fragile())
    with pytest.raises(FunctionFailed) as caught:
        r.epoch([tap("bob", 13, at=7)])
    failure: Any = caught.value.failure
    assert failure.step == "step"
    assert failure.function == "Fragile.on_event"
    assert failure.error == "ValueError: thirteen"
    assert failure.file == __file__
    assert 'raise ValueError("thirteen")' in Path(__file__).read_text().splitlines()[failure.line - 1]
    assert failure.key == "bob"
    assert '"bob"' in failure.row and "13" in failure.row
    assert "headrace/operators" not in failure.trace
    assert ".errors" in caught.value.next_move


@pytest.mark.parametrize("limit", [1, 1 << 40])
def test_where_errors_are_read_the_failing_call_is_undone_and_its_row_goes_there(limit: int) -> None:
    r = rig(Fragile(), outlets=["errors", "side:odd"], overlay_limit_bytes=limit)
    r.epoch([tap("a", 1, at=3), tap("a", 2, at=3), tap("a", 3, at=3)])
    assert values(r.epoch([tap("a", 13, at=4), tap("a", 4, at=5)])) == [
        Total("[2, 3, 4] [(1, 1), (2, 1), (3, 1), (4, 1)]", 10)
    ]
    assert values(r.out["side:odd"]) == [tap("a", 4, at=5)]
    [failed] = r.out["errors"]
    assert failed.at == 4
    assert failed.value.step == "step" and failed.value.error == "ValueError: thirteen"
    assert (failed.value.key, failed.value.timer) == ("a", "")
    assert b'"n":13' in failed.value.row
    assert r.epoch(watermark=999) == []  # The timer that the failing call set was undone too.


def test_a_failing_timer_has_fired_but_changed_nothing() -> None:
    r = rig(Fragile(), outlets=["errors"])
    r.epoch([tap("a", 1)])
    assert values(r.epoch(watermark=2000)) == []
    [failed] = r.out["errors"]
    assert (failed.value.error, failed.value.key, failed.value.timer) == ("KeyError: 'timer'", "a", "ends")
    assert (failed.value.row, failed.at) == (b"", 1001)
    assert values(r.epoch([tap("a", 5)], watermark=3000))[0].n == 6


def test_returning_a_row_instead_of_yielding_it_is_explained() -> None:
    class Slip(hr.Process[Tap, Total, str]):
        def on_event(self, event: Tap, ctx: hr.Context[str]) -> Any:
            return Total("a", 1)

    with pytest.raises(FunctionFailed, match="yield the row"):
        rig(Slip()).epoch([tap("a")])


def test_a_value_that_does_not_fit_its_declaration_is_found_before_it_is_stored() -> None:
    class Wrong(hr.Process[Tap, Total, str]):
        total: hr.ValueState[int]

        def on_event(self, event: Tap, ctx: hr.Context[str]) -> None:
            self.total.set("many")  # type: ignore[arg-type]

    with pytest.raises(FunctionFailed, match="'total' was given 'many'"):
        rig(Wrong()).epoch([tap("a")])


def test_stored_values_of_another_type_are_the_stores_error_not_the_functions() -> None:
    class Text(hr.Process[Tap, Total, str]):
        total: hr.ValueState[str]

        def on_event(self, event: Tap, ctx: hr.Context[str]) -> None:
            self.total.set(self.total.get("") + "x")

    before = rig(Sum())
    before.epoch([tap("a")])
    after = rig(Text())
    after.runs = before.runs
    with pytest.raises(StoreError, match="does not fit"):
        after.epoch([tap("a")])


def test_open_and_close_run_around_everything_and_their_failures_are_told() -> None:
    calls: list[str] = []

    class Opens(Sum):
        def open(self) -> None:
            calls.append("open")

        def close(self) -> None:
            raise OSError("gone")

    r = rig(Opens())
    r.epoch([tap("a")])
    r.epoch([tap("a")])
    assert calls == ["open"]
    with pytest.raises(FunctionFailed, match="gone") as caught:
        r.operator.close()
    assert ".errors" not in caught.value.next_move


def test_a_state_cannot_be_used_outside_of_a_call() -> None:
    class Early(Sum):
        def open(self) -> None:
            self.total.get()

    with pytest.raises(FunctionFailed, match="on_event and on_timer only"):
        rig(Early())


def test_a_state_stored_as_another_kind_is_refused() -> None:
    class Many(hr.Process[Tap, Total, str]):
        total: hr.MapState[str, int]

        def on_event(self, event: Tap, ctx: hr.Context[str]) -> None: ...

    before = rig(Sum())
    before.epoch([tap("a")])
    after = rig(Many())
    after.runs = before.runs
    with pytest.raises(StoreError, match="another kind"):
        after.epoch([tap("a")])


class Word(hr.Record):
    key: str


@pytest.mark.parametrize("reads_errors", [False, True])
def test_a_text_that_is_returned_is_not_taken_for_rows_of_letters(reads_errors: bool) -> None:
    class Greet(hr.Process[Word, str, str]):
        def on_event(self, event: Word, ctx: hr.Context[str]) -> Any:
            return "hello"

    app = hr.App("greeting")
    events = app.read("events", hr.source.items([]), Word)
    greetings = events.key_by(Word.key).process(Greet())
    greetings.show()
    if reads_errors:
        greetings.errors.show()
    with hr.testing.Harness(app) as h:
        h.push(events, Word("a"))
        if reads_errors:
            h.epoch()
            assert "'hello', which is neither None nor an iterable" in h.take(greetings.errors)[0].error
            assert h.take(greetings) == []
        else:
            with pytest.raises(hr.HeadraceError, match="'hello', which is neither None nor an iterable"):
                h.epoch()
