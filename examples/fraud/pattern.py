"""The same as `app.py`, said as a pattern: small, then large within a minute, and no PIN entry between."""

from __future__ import annotations

import headrace as hr

data = hr.var("data", "./.headrace/fraud-data")


class Payment(hr.Record):
    card: str
    shop: str
    at: hr.Timestamp
    cents: int
    kind: str = "charge"


class Alert(hr.Record):
    card: str
    at: hr.Timestamp
    cents: int
    tried_at: hr.Timestamp


FRAUD = (
    hr.pattern("small", "kind = 'charge' AND cents BETWEEN 1 AND 100")
    .not_then("pin", "kind = 'pin'")
    .then_any("large", "kind = 'charge' AND cents >= 50000")
    .within("1m")
)

app = hr.App("fraud_pattern")
payments = app.read("payments", hr.source.files(f"{data}/payments"), Payment, time=Payment.at, out_of_order="5s")
trials = payments.key_by(Payment.card).match(FRAUD).named("fraud")
alerts = trials.select(Alert, card="small.card", at="large.at", cents="large.cents", tried_at="small.at")
alerts.write(hr.sink.files(f"{data}/pattern-alerts"))

if __name__ == "__main__":
    app.run(until="drained")
