"""``map_async``: a function that awaits, for many rows at the same time.

Requests of one task overlap, also across batches. Ordered output waits for the oldest answer, unordered output goes on
as answers come. Rows keep the event time of the row they were made for. None of this is state: an epoch that is
replayed makes its requests again.

With ``wait="epoch"`` an epoch ends when all its requests are answered, so no row crosses a watermark. With
``wait="carry"`` rows whose requests are open go to the outlet ``carried``, from where the next epoch brings them back;
their requests stay in flight meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.model.batch import Keys, Rows
from headrace.model.record import Failed
from headrace.model.requests import CARRIED, RequestPlan
from headrace.model.rows import codec_of
from headrace.operators.contract import ERRORS, Operator, TaskInfo
from headrace.operators.failures import READ_ERRORS, failed_row, function_failed, row_json
from headrace.operators.requests import ORPHAN_EPOCHS, LoopFactory, RequestAnswer, RequestPool, service_of

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec
    from headrace.state.shard import ShardState

GRACE_S: Final = 0.05
"""How long the end of an epoch waits for answers before it carries what is open: carrying costs more than a moment."""
LONG_GRACE_S: Final = 0.5
"""The same where the task had nothing new to ask."""


class _RequestRow(NamedTuple):
    row: Any
    at: int | None


class RequestOperator(Operator):
    """Base of the steps that make requests: opens and closes the function, and begins each task with none in flight."""

    def __init__(self, step: str, plan: RequestPlan, loop_factory: LoopFactory) -> None:
        super().__init__(step)
        self.plan = plan
        self.service = service_of(plan, loop_factory)
        self.pool = RequestPool(plan, self.service)
        self.task = TaskInfo(0, 0, 0)

    def open(self) -> None:
        try:
            self.service.enter()
        except Exception as error:
            raise function_failed(error, step=self.step, function=self.service.fn.open) from error

    def close(self) -> None:
        self.pool.drop()
        try:
            self.service.leave()
        except Exception as error:
            raise function_failed(error, step=self.step, function=self.service.fn.close) from error

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        super().begin(task, state)
        self.task = task
        self.pool.drop()

    def answers(self, at_most: int, timeout_s: float | None = None) -> list[RequestAnswer]:
        """What is answered, once no more than so many requests are open or the time is up."""
        self.pool.wait(at_most, until_failure=ERRORS not in self.outlets, timeout_s=timeout_s)
        answers = self.pool.take()
        failed = [answer for answer in answers if answer.error is not None]
        if failed and ERRORS not in self.outlets:
            first = min(failed, key=lambda answer: answer.id)
            error, call = _request_error(first.error), self.service.call
            row = self.row_of(first.id)
            raise function_failed(error, step=self.step, function=call, row=row, way_out=READ_ERRORS) from error
        return answers

    def row_of(self, number: int) -> Any:
        """The row that a request was made for."""
        raise NotImplementedError

    def give_failed(self, failed: list[tuple[Any, int | None, BaseException | None]]) -> None:
        """Rows with their times and what went wrong, to whoever reads ``errors``."""
        told = [(self._failed_row(row, error), at) for row, at, error in failed]
        for rows in batches(codec_of(Failed), told):
            self.outlets[ERRORS](rows)

    def _failed_row(self, row: Any, error: BaseException | None) -> Failed:
        return failed_row(_request_error(error), step=self.step, function=self.service.call, row=row)


class AsyncOperator(RequestOperator):
    """One row out for each row in, once its request is answered."""

    def __init__(
        self,
        step: str,
        plan: RequestPlan,
        taken: RowCodec,
        codec: RowCodec,
        *,
        loop_factory: LoopFactory = asyncio.new_event_loop,
    ) -> None:
        """``taken``, ``codec``: of the rows that go in and come out."""
        super().__init__(step, plan, loop_factory)
        self.taken = taken
        self.codec = codec
        self._asked: dict[int, _RequestRow] = {}
        self._answered: dict[int, RequestAnswer] = {}
        self._count = 0
        self._given = 0
        """Rows that have left, or failed, in order."""
        self._fresh = 0
        """Rows whose requests this task made."""

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        super().begin(task, state)
        self.service.forget(task.epoch - ORPHAN_EPOCHS)
        self._asked, self._answered = {}, {}
        self._count = self._given = self._fresh = 0

    # --- rows

    def process(self, port: int, rows: Rows, keys: Keys | None) -> None:
        self.report.rows_in += len(rows)
        if not len(rows):
            return
        first = self._count
        self._count += len(rows)
        times = [None] * len(rows) if rows.times is None else rows.times.tolist()
        self._asked.update(zip(range(first, self._count), map(_RequestRow, rows.objects, times), strict=True))
        self.pool.submit(self._new(first, rows.objects))
        # The next batch is fetched while the last requests of this one are in flight.
        self._settle(self.plan.capacity)

    def _new(self, first: int, objects: list[Any]) -> Iterator[tuple[int, Any]]:
        """The rows whose requests are not in flight already."""
        orphans = bool(self.service.orphans)
        for number, row in enumerate(objects, first):
            if not orphans or not self.pool.adopt(number, row_json(row)):
                self._fresh += 1
                yield number, row

    def finish(self) -> Iterator[None] | None:
        if self.plan.wait == "epoch" or self.task.final:
            self._settle(0)
            return None
        self._settle(0, GRACE_S if self._fresh else LONG_GRACE_S)
        self._carry()
        return None

    def _carry(self) -> None:
        left = sorted(self._asked)
        if left:
            asked = [self._asked[number] for number in left]
            self.pool.release({number: row_json(each.row) for number, each in zip(left, asked)}, self.task.epoch)
            for rows in batches(self.taken, [(each.row, each.at) for each in asked]):
                self.outlets[CARRIED](rows)

    # --- answers

    def row_of(self, number: int) -> Any:
        return self._asked[number].row

    def _settle(self, at_most: int, timeout_s: float | None = None) -> None:
        """Gives out what is answered, once no more than so many requests are open or the time is up."""
        answers = self.answers(at_most, timeout_s)
        if self.plan.ordered:
            self._answered.update((answer.id, answer) for answer in answers)
            answers = list(self._oldest())
        self._give(answers)

    def _oldest(self) -> Iterator[RequestAnswer]:
        while (answer := self._answered.pop(self._given, None)) is not None:
            self._given += 1
            yield answer

    def _give(self, answers: list[RequestAnswer]) -> None:
        made: list[tuple[Any, int | None]] = []
        failed: list[tuple[Any, int | None, BaseException | None]] = []
        for answer in answers:
            asked = self._asked.pop(answer.id)
            if answer.error is None:
                made.append((answer.value, asked.at))
            else:
                failed.append((asked.row, asked.at, answer.error))
        for rows in batches(self.codec, made):
            self.emit(rows)
        if failed:
            self.give_failed(failed)


def _request_error(error: BaseException | None) -> BaseException:
    if error is None or isinstance(error, asyncio.CancelledError):
        return RuntimeError("it was cancelled, and not by Headrace")
    return error


def batches(codec: RowCodec, rows: list[tuple[Any, int | None]]) -> Iterator[Rows]:
    """Rows with their event times; those without one, which other batches may have brought, apart from the others."""
    for untimed, group in groupby(rows, key=lambda row: row[1] is None):
        objects, times = zip(*group)
        yield Rows.of_objects(codec, list(objects), None if untimed else times)
