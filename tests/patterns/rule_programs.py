"""A program that follows rules over payments, for tests."""

from __future__ import annotations

from typing import Any, NamedTuple

import headrace as hr
from headrace.patterns.rules.rule import PatternRule


class Tx(hr.Record):
    card: str
    at: hr.Timestamp
    cents: int
    kind: str = "charge"


class Alarm(hr.Record):
    rule: str
    version: int
    card: str | None
    cents: int | None


FRAUD = "small [cents < 100], not then pin [kind = 'pin'], then large [cents > 50000], within 1m"


class Program(NamedTuple):
    app: hr.App
    tx: hr.Stream[Tx]
    rules: hr.Stream[PatternRule]
    step: Any
    alarms: hr.Stream[Alarm]


def program(*, timed: bool = True, row: Any = Tx, **options: Any) -> Program:
    app = hr.App("shop")
    tx = app.read("tx", hr.source.items([]), row, time=row.at)
    rules = app.read("rules", hr.source.items([]), PatternRule, time=PatternRule.at if timed else None)
    step = tx.key_by(row.card).match(rules.broadcast(), **options).named("fraud")
    alarms = step.select(
        Alarm, rule="match.rule", version="match.version", card="first(rows.card)", cents="large.cents"
    )
    return Program(app, tx, rules, step, alarms)


def harness(p: Program, **options: Any) -> hr.testing.Harness:
    return hr.testing.Harness(p.app, start="2024-01-01", **options)
