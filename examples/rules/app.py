"""Payments meet patterns that are rows: rules of analysts, added, changed and taken out while the program runs."""

from __future__ import annotations

import headrace as hr

data = hr.var("data", "./.headrace/rules-data")


class Payment(hr.Record):
    card: str
    at: hr.Timestamp
    cents: int
    country: str


class Alert(hr.Record):
    rule: str
    version: int
    card: str
    payments: int
    cents: int
    since: hr.Timestamp
    at: hr.Timestamp


class Hung(hr.Record):
    """What began and did not come to its end in time."""

    rule: str
    card: str
    waited_for: str


app = hr.App("rules")
payments = app.read("payments", hr.source.files(f"{data}/payments"), Payment, time=Payment.at, out_of_order="10s")
rules = app.read(
    "rules", hr.source.files(f"{data}/rules"), hr.PatternRule, time=hr.PatternRule.at, idle="5s"
)  # fmt: skip

watch = payments.key_by(Payment.card).match(rules.broadcast()).named("watch")
alerts = watch.select(
    Alert,
    rule="match.rule",
    version="match.version",
    card="first(rows.card)",  # `rows` are all rows of a match, whatever its stages are called
    payments="count(rows)",
    cents="sum(rows.cents)",
    since="match.start",
    at="match.end",
)
hung = watch.timed_out.select(Hung, rule="match.rule", card="first(rows.card)", waited_for="match.waiting_for")

alerts.write(hr.sink.files(f"{data}/alerts"))
hung.write(hr.sink.files(f"{data}/hung"), name="hung")
watch.errors.write(hr.sink.files(f"{data}/bad-rules"), name="bad_rules")

if __name__ == "__main__":
    app.run()
