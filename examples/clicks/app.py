"""Visits of users, kept in state that expires, and totals per page, on one stream of clicks."""

from __future__ import annotations

from collections.abc import Iterator

import headrace as hr

SILENCE = hr.minutes(30)

data = hr.var("data", "./.headrace/clicks-data")


class Click(hr.Record):
    user: str
    page: str
    at: hr.Timestamp


class VisitBegan(hr.Record):
    user: str
    at: hr.Timestamp
    nth: int
    page: str


class Visit(hr.Record):
    nth: int
    last: hr.Timestamp


class Visits(hr.Process[Click, VisitBegan, str]):
    """A click that comes after half an hour of silence begins a visit."""

    visit: hr.ValueState[Visit] = hr.state(ttl=hr.ttl("30d", clock="event"))  # users who stay away are forgotten

    def on_event(self, event: Click, ctx: hr.Context[str]) -> Iterator[VisitBegan]:
        visit = self.visit.get()
        if visit is None or visit.last + SILENCE < event.at:
            visit = Visit(visit.nth + 1 if visit else 1, event.at)
            yield VisitBegan(ctx.key, event.at, visit.nth, event.page)
        self.visit.set(visit.replace(last=event.at))


class PageTotal(hr.Record):
    page: str
    clicks: int
    users: int
    last: hr.Timestamp


app = hr.App("clicks")
clicks = app.read("clicks", hr.source.files(f"{data}/clicks"), Click, time=Click.at, out_of_order="10s")

visits = clicks.key_by(Click.user).process(Visits())
visits.write(hr.sink.files(f"{data}/visits"))

pages = (
    clicks.key_by(Click.page)
    .aggregate(PageTotal, clicks=hr.count(), users=hr.count_distinct("user"), last=hr.max("at"))
    .named("pages")
)
pages.show()

if __name__ == "__main__":
    app.run(until="caught_up")
