"""Why rows did not advance a match: what steps with patterns were given in a harness, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import ProgramError
from headrace.model.keys import encode_key
from headrace.patterns.operator import PatternOperator, WallPatternOperator
from headrace.patterns.reasons import RowReasons, RowTracer, StageReason
from headrace.patterns.spec import PatternSpec

if TYPE_CHECKING:
    from headrace.model.batch import Keys, Rows
    from headrace.runtime.fragment import LiveFragment

_LATE = "it came late: the watermark had passed it"
_WAITING = "it waits until the watermark has passed it"


class RowsOfPatterns:
    """The rows that steps with patterns were given, epoch by epoch."""

    def __init__(self) -> None:
        self._given: dict[int, list[tuple[str, Rows, Keys, int]]] = {}
        """Epoch → step, its rows, their keys, and the time before which rows are late, or that of all by the clock."""
        self._operators: dict[str, list[Any]] = {}

    def listen(self, fragments: Sequence[LiveFragment]) -> None:
        """Notes what operators of patterns take from now on."""
        self._operators = {}
        for fragment in fragments:
            for place, operator in enumerate(fragment.operators):
                # Row patterns of SQL have conditions of their own kind.
                if type(operator) in (PatternOperator, WallPatternOperator):
                    self._operators.setdefault(operator.step, []).append(operator)
                    self._note(operator)
                    fragment.put(place, operator)

    def begin(self, epoch: int) -> None:
        """An epoch begins, perhaps once more."""
        self._given = {each: given for each, given in self._given.items() if each < epoch}

    def _note(self, operator: Any) -> None:
        take = operator.process

        def process(port: int, rows: Rows, keys: Keys | None) -> None:
            if len(rows) and keys is not None:
                by_wall = isinstance(operator, WallPatternOperator)
                moment = operator.task.clock_us if by_wall else operator.watermark
                self._given.setdefault(operator.task.epoch, []).append((operator.step, rows, keys, moment))
            take(port, rows, keys)

        operator.process = process

    def why(self, step: Any, key: Any, published: int) -> list[RowReasons]:
        """What each row of a key was to the pattern of a step, in their order."""
        node = getattr(step, "_step", step.node)
        spec = getattr(node, "spec", None)
        if not isinstance(spec, PatternSpec):
            raise ProgramError(
                "why is about the rows of a pattern", where="Harness.why",
                expected="what match(hr.pattern(…)) gave, or a stream made of it", found=node.label,
            )  # fmt: skip
        name = node.name or ""
        given = self._rows_of(name, key, published)
        by_wall = spec.order is None
        operators = self._operators.get(name, [])
        reached = max((each.task.ends_at(name) for each in operators if hasattr(each, "task")), default=0)
        in_time, others = [], []
        for row, at, moment in given:
            if by_wall:
                in_time.append((row, moment))
            elif at <= moment or at > reached:
                reason = StageReason("any stage", None, _LATE if at <= moment else _WAITING)
                others.append(RowReasons(row, at, (), (reason,)))  # type: ignore[arg-type]
            else:
                in_time.append((row, at))
        if spec.order is not None:
            columns = spec.order.columns
            in_time.sort(key=lambda each: (each[1], *(getattr(each[0], name) for name in columns)))
        tracer = RowTracer(spec.plan, name)
        told = [*tracer.rows([row for row, _ in in_time], [at for _, at in in_time]), *others]
        return told if by_wall else sorted(told, key=lambda each: int(each.at))

    def _rows_of(self, step: str, key: Any, published: int) -> list[tuple[Any, int, int]]:
        wanted = encode_key(key)
        found = []
        for epoch in sorted(self._given):
            for name, rows, keys, moment in self._given[epoch] if epoch <= published else ():
                if name != step:
                    continue
                mine = [place for place, each in enumerate(keys.encoded.to_pylist()) if each == wanted]
                some = rows.take(np.array(mine, np.int64))
                times = [moment] * len(mine) if some.times is None else some.times.tolist()
                found += [(row, at, moment) for row, at in zip(some.objects, times)]
        return found
