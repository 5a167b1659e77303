"""The further condition of a join: SQL over both sides, evaluated on columns of candidate pairs."""

from __future__ import annotations

import numpy as np

from headrace.errors import ExpressionError
from headrace.model.pairs import PairCodec, PairRows
from headrace.operators.failures import GUARD_SQL, function_failed
from headrace.operators.matching import Mask
from headrace.sql.evaluate.expressions import compile_predicate


class Condition:
    """Which pairs of one key belong together. A pair for which the text is null does not."""

    def __init__(self, step: str, text: str, codec: PairCodec) -> None:
        self._step = step
        self._text = text
        self._holds = compile_predicate(text, codec.schema, f"step {step}")

    def holds(self, pairs: PairRows) -> Mask:
        """One answer for each pair. A pair without an answer (a division by zero) stops the epoch, and is named."""
        try:
            return self._holds(pairs.batch)
        except ExpressionError as error:
            if len(pairs) == 1:
                raise function_failed(
                    error, step=self._step, function=self._text.replace("`", ""), row=pairs.objects[0],
                    way_out=GUARD_SQL,
                ) from error  # fmt: skip
        half = len(pairs) // 2
        halves = np.arange(half), np.arange(half, len(pairs))
        return np.concatenate([self.holds(pairs.take(each)) for each in halves])
