"""Functions that await: order, capacity, timeouts, retries, failures, and what a task that was given up leaves behind.

Nothing here sleeps: requests wait for each other, for a gate that the test opens, or for a clock that the test moves.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import FunctionFailed
from headrace.model.requests import RequestPlan
from headrace.model.rows import codec_of
from headrace.operators.asynchronous import AsyncOperator
from headrace.operators.requests import LoopFactory
from headrace.testing.rig import EmittedRow, OperatorRig, values

WAIT_S = 60.0
"""Longer than anything here takes, so that a mistake ends a test instead of the day."""


class Ask(hr.Record):
    n: int
    at: int = 0


class Got(hr.Record):
    n: int


class Gates:
    """Lets the test decide which requests are answered; the requests run on the operator's loop."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.cancelled: list[int] = []
        self.most = 0
        self._running = 0
        self._events: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Event]] = {}
        self._arrived = threading.Condition()

    async def ask(self, row: Ask) -> Got:
        event = asyncio.Event()
        self._running += 1
        self.most = max(self.most, self._running)
        with self._arrived:
            self.asked.append(row.n)
            self._events[row.n] = (asyncio.get_running_loop(), event)
            self._arrived.notify_all()
        try:
            await event.wait()
        except asyncio.CancelledError:
            self.cancelled.append(row.n)
            raise
        finally:
            self._running -= 1
        return Got(row.n)

    def await_asked(self, count: int) -> list[int]:
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.asked) >= count, WAIT_S)
            return sorted(self.asked)

    def open(self, n: int) -> None:
        with self._arrived:
            assert self._arrived.wait_for(lambda: n in self._events, WAIT_S), f"{n} was never asked"
            loop, event = self._events[n]
        loop.call_soon_threadsafe(event.set)

    def open_in_turn(self, order: list[int]) -> threading.Thread:
        """Answers one after the other, beside the task that waits for them."""
        thread = threading.Thread(target=lambda: [self.open(n) for n in order], daemon=True)
        thread.start()
        return thread


def operator(fn: Any, *, factory: LoopFactory = asyncio.new_event_loop, **options: Any) -> AsyncOperator:
    return AsyncOperator("ask", RequestPlan(fn, **options), codec_of(Ask), codec_of(Got), loop_factory=factory)


@pytest.fixture
def rig_of() -> Iterator[Any]:
    made: list[OperatorRig] = []

    def make(operator: AsyncOperator, **options: Any) -> OperatorRig:
        made.append(OperatorRig(operator, Ask, **options))
        return made[-1]

    yield make
    for rig in made:
        rig.operator.close()


def asks(*numbers: int) -> list[Ask]:
    return [Ask(n, at=100 + n) for n in numbers]


def numbers(rows: list[EmittedRow]) -> list[int]:
    return [row.n for row in values(rows)]


async def give_back(row: Ask) -> Got:
    return Got(row.n)


def test_each_row_gives_one_with_the_time_of_the_row_it_was_made_for(rig_of: Any) -> None:
    rig = rig_of(operator(give_back))
    assert rig.epoch(asks(1, 2), asks(3)) == [EmittedRow(Got(1), 101), EmittedRow(Got(2), 102), EmittedRow(Got(3), 103)]


def test_rows_without_time_stay_without(rig_of: Any) -> None:
    rig = rig_of(operator(give_back), time=None)
    assert rig.epoch(asks(1)) == [EmittedRow(Got(1), None)]


@pytest.mark.parametrize(("ordered", "expected"), [(True, [1, 2, 3]), (False, [3, 1, 2])])
def test_ordered_output_waits_for_the_oldest_and_unordered_goes_as_it_comes(
    rig_of: Any, ordered: bool, expected: list[int]
) -> None:
    gates = Gates()
    rig = rig_of(operator(gates.ask, ordered=ordered))
    gates.open_in_turn([3, 1, 2])
    assert numbers(rig.epoch(asks(1, 2, 3))) == expected


def test_never_more_requests_at_once_than_the_capacity(rig_of: Any) -> None:
    gates = Gates()
    rig = rig_of(operator(gates.ask, capacity=3))
    gates.open_in_turn(list(range(10)))
    assert numbers(rig.epoch(asks(*range(7)), asks(*range(7, 10)))) == list(range(10))
    assert gates.most == 3


def test_requests_of_several_batches_overlap(rig_of: Any) -> None:
    gates = Gates()
    rig = rig_of(operator(gates.ask, capacity=2))
    # The first is answered only after the last has been asked, so the second batch must not wait for the first.
    gates.open_in_turn([2, 1])
    assert numbers(rig.epoch(asks(1), asks(2))) == [1, 2]


def test_open_and_close_run_once_on_the_loop_of_the_requests(rig_of: Any) -> None:
    class Client(hr.AsyncFunction[Ask, Got]):
        loops: list[Any] = []

        async def open(self) -> None:
            self.loops.append(asyncio.get_running_loop())

        async def call(self, row: Ask) -> Got:
            self.loops.append(asyncio.get_running_loop())
            return Got(row.n)

        async def close(self) -> None:
            self.loops.append(asyncio.get_running_loop())

    rig = rig_of(operator(Client()))
    assert numbers(rig.epoch(asks(1))) == [1]
    assert numbers(rig.epoch(asks(2))) == [2]
    rig.operator.close()
    assert len(Client.loops) == 4
    assert len(set(map(id, Client.loops))) == 1
    rig.operator.open()  # for the fixture to close


def test_operators_of_one_step_share_what_it_opened() -> None:
    opened: list[int] = []

    class Client(hr.AsyncFunction[Ask, Got]):
        async def open(self) -> None:
            opened.append(1)

        async def call(self, row: Ask) -> Got:
            return Got(row.n)

        async def close(self) -> None:
            opened.append(-1)

    plan = RequestPlan(Client())
    both = [AsyncOperator("ask", plan, codec_of(Ask), codec_of(Got)) for _ in range(2)]
    for each in both:
        each.open()
    both[0].close()
    assert opened == [1]
    both[1].close()
    assert opened == [1, -1]


# --- what goes wrong


async def fail_on_two(row: Ask) -> Got:
    if row.n == 2:
        raise ValueError("two is too much")
    return Got(row.n)


def test_a_failing_row_stops_the_task_with_step_function_and_row(rig_of: Any) -> None:
    rig = rig_of(operator(fail_on_two))
    with pytest.raises(FunctionFailed) as caught:
        rig.epoch(asks(1, 2, 3))
    for words in ("step ask", "fail_on_two", "two is too much", '"n":2', "test_asynchronous.py", ".errors"):
        assert words in str(caught.value)


def test_a_task_fails_at_once_and_not_when_the_rest_is_answered(rig_of: Any) -> None:
    gates = Gates()

    async def ask(row: Ask) -> Got:
        return await fail_on_two(row) if row.n == 2 else await gates.ask(row)

    rig = rig_of(operator(ask))
    with pytest.raises(FunctionFailed):
        rig.epoch(asks(1, 2, 3))
    gates.open_in_turn([5])
    assert numbers(rig.epoch(asks(5))) == [5], "the next task begins with nothing of the one before"


def test_where_errors_are_read_failing_rows_go_there_with_their_time(rig_of: Any) -> None:
    rig = rig_of(operator(fail_on_two), outlets=["errors"])
    assert numbers(rig.epoch(asks(1, 2, 3))) == [1, 3]
    [failed] = rig.out["errors"]
    assert (failed.value.step, failed.value.row, failed.at) == ("ask", b'{"n":2,"at":102}', 102)
    assert "two is too much" in failed.value.error


def test_a_row_of_the_wrong_type_is_told_with_its_step(rig_of: Any) -> None:
    async def wrong(row: Ask) -> Any:
        return "no row"

    with pytest.raises(hr.HeadraceError) as caught:
        rig_of(operator(wrong)).epoch(asks(1))
    assert "Got" in str(caught.value)


def test_a_request_that_cancels_itself_fails_instead_of_hanging(rig_of: Any) -> None:
    async def gives_up(row: Ask) -> Got:
        raise asyncio.CancelledError

    with pytest.raises(FunctionFailed, match="cancelled"):
        rig_of(operator(gives_up)).epoch(asks(1))


def test_a_request_that_would_end_the_loop_fails_instead_of_hanging(rig_of: Any) -> None:
    async def leaves(row: Ask) -> Got:
        raise SystemExit(3)

    with pytest.raises(FunctionFailed, match="SystemExit"):
        rig_of(operator(leaves)).epoch(asks(1))


# --- time, moved by hand


class HandLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next thing that is due, as soon as nothing else is left to do."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        return self.now


class _Jumping(selectors.DefaultSelector):
    def __init__(self, loop: HandLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        if timeout is not None and timeout > 0:
            ready = super().select(0)
            if not ready:
                self._loop.now += timeout
            return ready
        return super().select(timeout)


async def never(row: Ask) -> Got:
    await asyncio.Event().wait()
    return Got(row.n)


def test_a_request_without_an_answer_ends_after_its_timeout(rig_of: Any) -> None:
    rig = rig_of(operator(never, factory=HandLoop, timeout_us=3_600_000_000))
    with pytest.raises(FunctionFailed, match="no answer within timeout='1h'"):
        rig.epoch(asks(1))


def test_a_timeout_of_the_functions_own_is_told_as_its_own(rig_of: Any) -> None:
    async def impatient(row: Ask) -> Got:
        raise TimeoutError("the service was busy")

    with pytest.raises(FunctionFailed, match="the service was busy"):
        rig_of(operator(impatient)).epoch(asks(1))


class Flaky:
    """Fails some times, then answers; notes the loop's clock of each try."""

    def __init__(self, failures: int, error: type[Exception] = ConnectionError) -> None:
        self.failures = failures
        self.error = error
        self.at: list[float] = []

    async def __call__(self, row: Ask) -> Got:
        self.at.append(asyncio.get_running_loop().time())
        if len(self.at) <= self.failures:
            raise self.error("not yet")
        return Got(row.n)


def test_a_request_is_made_again_with_growing_pauses(rig_of: Any) -> None:
    flaky = Flaky(failures=3)
    rig = rig_of(operator(flaky, factory=HandLoop, retry=hr.retry(3, "100ms")))
    assert numbers(rig.epoch(asks(1))) == [1]
    pauses = [round(later - earlier, 3) for earlier, later in zip(flaky.at, flaky.at[1:])]
    assert pauses == pytest.approx([0.1, 0.2, 0.4], abs=0.01)


def test_after_the_last_try_the_last_error_counts(rig_of: Any) -> None:
    rig = rig_of(operator(Flaky(failures=9), factory=HandLoop, retry=hr.retry(2, "100ms")))
    with pytest.raises(FunctionFailed, match="not yet"):
        rig.epoch(asks(1))


def test_the_timeout_spans_all_tries(rig_of: Any) -> None:
    flaky = Flaky(failures=1000)
    retry = hr.retry(1000, "1s", factor=1.0)
    rig = rig_of(operator(flaky, factory=HandLoop, retry=retry, timeout_us=10_500_000))
    with pytest.raises(FunctionFailed, match="no answer within"):
        rig.epoch(asks(1))
    assert len(flaky.at) == 11


def test_a_predicate_says_what_is_tried_again_errors_and_results(rig_of: Any) -> None:
    retry = hr.retry(5, "1ms", when=lambda got: isinstance(got, ConnectionError) or got == Got(-1))
    rig = rig_of(operator(Flaky(failures=1, error=ValueError), factory=HandLoop, retry=retry))
    with pytest.raises(FunctionFailed, match="not yet"):
        rig.epoch(asks(1))
    answers = iter([Got(-1), Got(-1), Got(7)])

    async def in_turn(row: Ask) -> Got:
        return next(answers)

    assert numbers(rig_of(operator(in_turn, factory=HandLoop, retry=retry)).epoch(asks(1))) == [7]


def test_a_result_that_is_never_good_is_taken_after_the_last_try(rig_of: Any) -> None:
    async def same(row: Ask) -> Got:
        return Got(-1)

    retry = hr.retry(2, "1ms", when=lambda got: got == Got(-1))
    assert numbers(rig_of(operator(same, factory=HandLoop, retry=retry)).epoch(asks(1))) == [-1]


# --- tasks that are given up


def test_requests_of_a_task_that_was_given_up_are_cancelled_and_their_answers_are_nobodys(rig_of: Any) -> None:
    gates = Gates()
    rig = rig_of(operator(gates.ask, capacity=2))
    rig.attempt(asks(1, 2), finish=False)
    assert gates.await_asked(2) == [1, 2]
    gates.open_in_turn([3, 4])
    assert numbers(rig.epoch(asks(3, 4))) == [3, 4]
    assert sorted(gates.cancelled) == [1, 2]


def test_a_request_that_is_cancelled_before_it_began_frees_its_place(rig_of: Any) -> None:
    rig = rig_of(operator(give_back, capacity=1))
    for _ in range(50):
        rig.attempt(asks(1), finish=False)
    assert numbers(rig.epoch(asks(1, 2))) == [1, 2]


@given(
    st.lists(st.integers(0, 50), max_size=40),
    st.lists(st.integers(1, 9), min_size=1, max_size=8),
    st.integers(1, 8),
    st.randoms(use_true_random=False),
)
def test_ordered_is_map_and_unordered_the_same_rows(
    rows: list[int], sizes: list[int], capacity: int, random: Any
) -> None:
    turns = {n: random.randint(0, 5) for n in rows}

    async def after_some_turns(row: Ask) -> Got:
        for _ in range(turns[row.n]):
            await asyncio.sleep(0)
        return Got(row.n)

    batches: list[list[Ask]] = []
    left = asks(*rows)
    while left:
        size = sizes[len(batches) % len(sizes)]
        batches.append(left[:size])
        left = left[size:]
    for ordered in (True, False):
        rig = OperatorRig(operator(after_some_turns, ordered=ordered, capacity=capacity), Ask)
        try:
            came = [(row.value.n, row.at) for row in rig.epoch(*batches)]
        finally:
            rig.operator.close()
        expected = [(n, 100 + n) for n in rows]
        assert came == expected if ordered else sorted(came) == sorted(expected)
