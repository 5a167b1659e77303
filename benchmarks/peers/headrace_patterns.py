"""Headrace over the same rows: a pattern per key, said in Python or in SQL.

One epoch takes `--files-per-epoch` files; its time is from one published manifest to the next. Results go to the
discarding sink.
"""

from __future__ import annotations

import argparse

import headrace_timed as timed

import headrace as hr

PATTERNS = {
    "sequence": hr.pattern("a", "value < 10").then("b", "value > 90").within("10s").after_match("to_next"),
    "repeated": (
        hr.pattern("a", "value < 30")
        .next("b", "value BETWEEN 30 AND 60").one_or_more().consecutive().greedy()
        .next("c", "value > 60").within("10s").after_match("past_last")
    ),
    "absence": hr.pattern("a", "value < 10").not_then("b", "value > 90").within("5s"),
}  # fmt: skip
CLAUSES = {
    "sequence": """AFTER MATCH SKIP TO NEXT ROW PATTERN (A X*? B) WITHIN INTERVAL '10' SECOND
        DEFINE A AS A.`value` < 10, B AS B.`value` > 90""",
    "repeated": """AFTER MATCH SKIP PAST LAST ROW PATTERN (A B+ C) WITHIN INTERVAL '10' SECOND
        DEFINE A AS A.`value` < 30, B AS B.`value` BETWEEN 30 AND 60, C AS C.`value` > 60""",
    "absence": """AFTER MATCH SKIP TO NEXT ROW PATTERN (A N*? C)
        DEFINE A AS A.`value` < 10, N AS N.`value` <= 90, C AS C.`at` >= A.`at` + INTERVAL '5' SECOND""",
}
LAST = {"sequence": "B", "repeated": "C", "absence": "C"}


def matched(options: argparse.Namespace, sink: hr.Sink) -> hr.App:
    app = hr.App("patterns")
    events = timed.read(app, options, "events")
    query, _, language = options.program.partition("-")
    if not language:
        matches = events.key_by(timed.Event.key).match(PATTERNS[query]).named("found")
        last = "a" if query == "absence" else LAST[query].lower()
        matches.select(key="a.key", n="a.value", total=f"{last}.value").write(sink)
        return app
    app.sql(f"""SELECT `key`, n, total FROM events MATCH_RECOGNIZE (PARTITION BY `key` ORDER BY `at`
        MEASURES FIRST(A.`value`) AS n, LAST({LAST[query]}.`value`) AS total
        ONE ROW PER MATCH {CLAUSES[query]}) AS m""").named("found").write(sink)
    return app


if __name__ == "__main__":
    timed.PROGRAMS = dict.fromkeys([*PATTERNS, *(f"{query}-sql" for query in PATTERNS)], matched)
    timed.main()
