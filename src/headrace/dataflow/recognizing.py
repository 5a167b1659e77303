"""Row patterns of SQL as steps: what `headrace.tables.match_recognize` makes of the clause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.dataflow.clocks import time_order
from headrace.dataflow.graph import KeyedNode, MeasureNode
from headrace.dataflow.keying import key_of_columns
from headrace.dataflow.stream import Stream
from headrace.dataflow.update_kinds import refuse_updates
from headrace.model.record import row_type
from headrace.model.rows import codec_of
from headrace.patterns.recognize import RowPatternPlan, RowPatternSpec, recognizing_states

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.dataflow.site import Site
    from headrace.patterns.measures import Measure


def recognize(
    stream: Stream[Any], keys: Sequence[str], plan: RowPatternPlan, order: Sequence[str], at: Site
) -> Stream[Any]:
    """The matches of a row pattern. ``order``: columns that decide between rows of one time."""
    before = stream.node
    refuse_updates(before, "MATCH_RECOGNIZE", at)
    by = time_order(("time", *order), [before], at)
    assert by is not None
    node = stream.app._add(
        KeyedNode, at, codec_of(plan.match_type, where=str(at)), inputs=(before,), op="match",
        key=key_of_columns(before.codec, tuple(keys)), decls=recognizing_states(before.codec.type),
        spec=RowPatternSpec(plan, by),
    )  # fmt: skip
    return Stream(stream.app, node)


def measured(matches: Stream[Any], measures: Mapping[str, Measure], plan: RowPatternPlan, at: Site) -> Stream[Any]:
    """Rows with a column for each measure."""
    fields = {name: measure.annotation(plan.codec) for name, measure in measures.items()}
    codec = codec_of(row_type("Measures", fields), where=str(at))
    node = matches.app._add(
        MeasureNode, at, codec, inputs=(matches.node,), measures=tuple(measures.items()), taken=plan.codec
    )
    return Stream(matches.app, node)
