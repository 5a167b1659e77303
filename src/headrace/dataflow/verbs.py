"""Verbs that a stream, a keyed stream, a join or windows do not have, and what to write instead.

A name that is spelled almost like a verb is answered with the verb. A verb of Flink, of pandas or of Spark is answered
with what is written for it here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.errors import ProgramError
from headrace.model.nearest import did_you_mean
from headrace.model.user_line import user_line

KEYED_VERBS: Final = (
    "process", "reduce", "aggregate", "latest", "top", "upserts", "window", "connect", "join", "join_asof", "co_group",
    "match",
)  # fmt: skip
STREAM_VERBS: Final = (
    "where", "select", "with_columns", "map", "flat_map", "filter", "only", "map_async", "lookup", "map_batches",
    "key_by", "window", "union", "side", "broadcast", "connect", "errors", "late", "changes", "debezium", "named",
    "queryable", "write", "feed", "show",
)  # fmt: skip
WINDOW_VERBS: Final = ("aggregate", "reduce", "process")
JOIN_VERBS: Final = (
    "select",
    "map",
    "named",
    "unmatched_left",
    "unmatched_right",
    "late_left",
    "late_right",
    "errors",
)
_PROPERTIES: Final = ("errors", "late")

_AGGREGATES: Final = {
    **{name: f'{name}=hr.{name}("n")' for name in ("sum", "avg", "min", "max", "first", "last", "count_distinct")},
    "count": "n=hr.count()", "size": "n=hr.count()", "agg": 'total=hr.sum("n")', "aggregate": 'total=hr.sum("n")',
    "mean": 'mean=hr.avg("n")', "nunique": 'n=hr.count_distinct("n")', "median": 'median=hr.quantile("n", 0.5)',
    "quantile": 'p99=hr.quantile("n", 0.99)',
}  # fmt: skip
_KEY: Final = "say which rows belong together: .key_by(Tx.card)"
_WRITE: Final = "write the rows to a sink: .write(hr.sink.files(…)), or .show() to print them"
_PRINT: Final = "print the rows: .show()"
_COLLECT: Final = "collect the rows: rows = hr.sink.collect(), then stream.write(rows)"
_COLUMNS: Final = 'add a column: .with_columns(total="n + 1")'
_EVENT_TIME: Final = 'event time is said where a source is read: app.read(…, time=Tx.at, out_of_order="5s")'
_PYTHON: Final = ".map(…), .flat_map(…) and .filter(…) take Python functions"
_LATEST: Final = "keep one row of each key: .key_by(…).latest()"
_SLIPS: Final = {
    **dict.fromkeys(("group_by", "groupby", "partition_by", "keyby"), _KEY),
    **dict.fromkeys(("print", "head", "limit", "take", "display", "tail"), _PRINT),
    **dict.fromkeys(("collect", "to_list", "topandas", "to_pandas", "execute_and_collect", "to_polars"), _COLLECT),
    **dict.fromkeys(("add_sink", "sink_to", "sink", "foreach", "writestream", "to_csv", "to_parquet", "to"), _WRITE),
    **dict.fromkeys(("with_column", "withcolumn", "withcolumns", "assign", "add_column"), _COLUMNS),
    **dict.fromkeys(("window_all", "windowall"), "windows of all rows need no key: .window(hr.tumbling(…))"),
    **dict.fromkeys(("withwatermark", "with_watermark", "assign_timestamps_and_watermarks"), _EVENT_TIME),
    **dict.fromkeys(("apply", "transform", "foreach_batch", "for_each"), _PYTHON),
    **dict.fromkeys(("distinct", "drop_duplicates", "dropduplicates", "dedup"), _LATEST),
    **dict.fromkeys(("concat", "union_all", "unionall", "append"), "put streams together: .union(other)"),
    **dict.fromkeys(("merge",), "put streams together: .union(other); join them by key: .key_by(…).join(…)"),
    **dict.fromkeys(("query", "where_sql"), 'write the condition: .where("n > 0")'),
    **dict.fromkeys(("drop", "rename", "select_expr", "selectexpr"), 'say the columns: .select("card", total="n + 1")'),
    **dict.fromkeys(("name", "uid", "alias"), 'give the step a name: .named("…")'),
    **dict.fromkeys(("get_side_output", "side_output"), "read the side output: .side(Odd.rows)"),
}  # fmt: skip


class UnknownVerb(ProgramError, AttributeError):
    """A verb that streams of this kind do not have."""


def unknown_verb(label: str, name: str) -> UnknownVerb:
    if name in KEYED_VERBS:
        return UnknownVerb(
            f"{name} needs a key",
            where=user_line(),
            expected=f"a keyed stream: stream.key_by(…).{name}(…)",
            found=f"{name} on {label}, which has no key",
            next_move="say which rows belong together: key_by(Tx.card), key_by('card')",
        )
    if name == "late":
        return UnknownVerb(
            "late rows come out of keyed steps",
            where=user_line(),
            expected="the stream that process, reduce, aggregate or latest gave",
            found=label,
        )
    next_move = _SLIPS.get(name.lower(), "")
    if name.lower() in _AGGREGATES:
        aggregate = _AGGREGATES[name.lower()]
        next_move = f"say which rows belong together, and aggregate them: .key_by(…).aggregate({aggregate})"
    return _unknown("a stream has", STREAM_VERBS, name, name, next_move, near=(*STREAM_VERBS, *KEYED_VERBS))


def unknown_keyed_verb(key: str, name: str) -> UnknownVerb:
    next_move = _SLIPS.get(name.lower(), "")
    if name in STREAM_VERBS:
        next_move = f"write .{_call(name)} before key_by, or after the keyed step"
    elif name.lower() in _AGGREGATES:
        next_move = f"name the result: .aggregate({_AGGREGATES[name.lower()]})"
    found = f"{name} after key_by({key})"
    return _unknown("a keyed stream has", KEYED_VERBS, name, found, next_move, near=(*KEYED_VERBS, *STREAM_VERBS))


def unknown_window_verb(windows: str, name: str) -> UnknownVerb:
    next_move = did_you_mean(name, WINDOW_VERBS)
    if name in STREAM_VERBS or name in KEYED_VERBS:
        first = 'say what becomes of the rows first: .window(…).aggregate(total=hr.sum("n"))'
        next_move = f"{first}.{_call(name)}"
    elif name.lower() in _AGGREGATES:
        next_move = f"name the result: .window(…).aggregate({_AGGREGATES[name.lower()]})"
    return _unknown("windows have", WINDOW_VERBS, name, f"{name} on {windows}", next_move)


def unknown_of_join(name: str) -> UnknownVerb:
    next_move = ""
    if name in STREAM_VERBS or name in KEYED_VERBS:
        next_move = f"make rows of its pairs first: .select(…).{name}(…) or .map(…).{name}(…)"
    return _unknown("a join has", JOIN_VERBS, name, name, next_move, near=JOIN_VERBS)


def _unknown(
    who: str, verbs: Sequence[str], name: str, found: str, next_move: str, near: Sequence[str] = ()
) -> UnknownVerb:
    """``near``: the names among which one that is spelled almost so is looked for, where there is no next move."""
    if name.startswith("_"):
        return UnknownVerb(name)
    return UnknownVerb(
        f"{who} no {name!r}",
        where=user_line(),
        expected=f"one of {', '.join(verbs)}",
        found=found,
        next_move=next_move or did_you_mean(name, near),
    )


def _call(name: str) -> str:
    return name if name in _PROPERTIES else f"{name}(…)"
