"""How the accumulators of a key are stored: all in one value, with notes of the operator behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import structs

from headrace.model.values import ValueCodec, value_codec
from headrace.operators.accumulate import Fold
from headrace.operators.aggregates import Agg, Aggregator

TIME_NOTE: Final = "!time"
"""Time of the newest row of a key; always the last note."""


def accumulators_codec(aggs: Mapping[str, Agg[Any]], folds: Sequence[Fold | None], *notes: str) -> ValueCodec:
    """Accumulators as a map by the name of their aggregate, so that aggregates may come and go; in memory a list.

    ``notes``: names of further numbers, which stand behind the accumulators.
    """
    fields: list[Any] = []
    for i, ((name, agg), fold) in enumerate(zip(aggs.items(), folds)):
        kind = agg.accumulator_type() if isinstance(agg, Aggregator) else fold.acc_type if fold is not None else Any
        fields.append((f"acc{i}", kind | None, msgspec.field(default=None, name=name)))
    for i, name in enumerate((*notes, TIME_NOTE)):
        fields.append((f"note{i}", int | None, msgspec.field(default=None, name=name)))
    made = msgspec.defstruct("Accumulators", fields, gc=False, omit_defaults=True)
    inner = value_codec(made)
    return ValueCodec(
        lambda accs: inner.encode(made(*accs)),
        lambda raw: list(structs.astuple(inner.decode(raw))),
        # What an aggregator of the user's own makes need not fit the type it says.
        each=any(isinstance(agg, Aggregator) for agg in aggs.values()),
    )
