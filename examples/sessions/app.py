"""Sessions of users: what they came to, also when clicks arrive hours late, and how users moved through the pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import headrace as hr

GAP = "30m"
ROBOT_CLICKS = 20
ROBOT_PAUSE = hr.seconds(1)

data = hr.var("data", "./.headrace/sessions-data")


class Click(hr.Record):
    user: str
    page: str
    at: hr.Timestamp


class Session(hr.Record):
    user: str
    window_start: hr.Timestamp  # the first click
    window_end: hr.Timestamp  # the last click and the gap
    clicks: int
    pages: int
    entry: str
    exit: str
    pane: str  # on_time, or late where a click came late


class Journey(hr.Record):
    user: str
    nth: int
    at: hr.Timestamp
    lasted: hr.Duration
    path: list[str]


class Journeys(hr.WindowProcess[Click, Journey, str]):
    """The way of a user through the pages, session by session."""

    seen: hr.ValueState[int]  # by user: goes on from one session to the next
    robots: hr.Side[str]

    def on_window(self, rows: Sequence[Click], ctx: hr.WindowContext[str]) -> Iterator[Journey]:
        nth = self.seen.get(0) + 1
        self.seen.set(nth)
        clicks = sorted(rows, key=lambda click: click.at)  # they are given in the order they came
        lasted = clicks[-1].at - clicks[0].at
        if len(clicks) >= ROBOT_CLICKS and lasted < len(clicks) * ROBOT_PAUSE:
            self.robots.emit(ctx.key)
        yield Journey(ctx.key, nth, clicks[0].at, lasted, [click.page for click in clicks])


class Hour(hr.Record):
    window_start: hr.Timestamp
    sessions: int
    clicks: int


app = hr.App("sessions")
clicks = app.read("clicks", hr.source.files(f"{data}/clicks"), Click, time=Click.at, out_of_order="1m")
by_user = clicks.key_by(Click.user)

# Phones that were offline deliver their clicks up to six hours late. Such a click may make one session of two.
sessions = (
    by_user.window(hr.session(GAP), allow_late="6h")
    .aggregate(
        Session, clicks=hr.count(), pages=hr.count_distinct("page"), entry=hr.first("page"), exit=hr.last("page")
    )
    .named("sessions")
    .queryable()
)
sessions.finals().write(hr.sink.files(f"{data}/sessions"))
sessions.late.write(hr.sink.files(f"{data}/late"))

# Without allowed lateness every session is told once, when the gap is over.
journeys = by_user.window(hr.session(GAP)).process(Journeys())
journeys.write(hr.sink.files(f"{data}/journeys"))
journeys.side(Journeys.robots).write(hr.sink.files(f"{data}/robots"), name="robots")

# Windows of windows: a session counts in the hour in which it ended. There is no key, so one shard does it.
hours = (
    journeys.with_columns(clicks="size(path)")
    .window(hr.tumbling("1h"))
    .aggregate(Hour, sessions=hr.count(), clicks=hr.sum("clicks"))
    .named("hours")
)
hours.show()

if __name__ == "__main__":
    app.run(until="drained")
