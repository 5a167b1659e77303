"""One stream to many sinks, by rules that change while the program runs: an event router."""

from __future__ import annotations

from collections.abc import Iterator

import headrace as hr

data = hr.var("data", "./.headrace/router-data")
brokers = hr.var("brokers", "")
redis = hr.var("redis", "")


class Event(hr.Record):
    """Something that happened to a device."""

    device: str
    kind: str
    level: int
    at: hr.Timestamp
    text: str = ""


class Route(hr.Record):
    """Sends events to an output; of what is left empty, everything fits. A route to nowhere is withdrawn."""

    name: str
    to: str = ""
    kind: str = ""
    device: str = ""
    min_level: int = 0

    def fits(self, event: Event) -> bool:
        return (
            event.level >= self.min_level
            and self.kind in ("", event.kind)
            and self.device in ("", event.device)
        )  # fmt: skip


class Sent(hr.Record):
    """An event on its way to one output, and why it goes there."""

    to: str
    route: str
    device: str
    kind: str
    level: int
    at: hr.Timestamp
    text: str


class Router(hr.BroadcastProcess[Event, Route, Sent, str]):
    routes: hr.BroadcastState[str, Route]  # the same on every shard; written in on_broadcast only
    unrouted: hr.Side[Event]

    def on_broadcast(self, event: Route, ctx: hr.BroadcastContext[str]) -> None:
        if event.to in outputs:
            self.routes[event.name] = event
        else:
            self.routes.pop(event.name, None)

    def on_event(self, event: Event, ctx: hr.Context[str]) -> Iterator[Sent]:
        sent: set[str] = set()
        for route in sorted(self.routes.values(), key=lambda route: route.name):
            # An event goes to an output once, however many routes lead there.
            if route.to not in sent and route.fits(event):
                sent.add(route.to)
                yield Sent(route.to, route.name, event.device, event.kind, event.level, event.at, event.text)
        if not sent:
            self.unrouted.emit(event)


outputs = {
    "alerts": hr.sink.files(f"{data}/alerts"),
    "archive": hr.sink.files(f"{data}/archive", format="parquet", bucket_by=(Sent.at, "day")),
    "audit": hr.sink.files(f"{data}/audit", partition_by=(Sent.kind,)),
}
if brokers:
    outputs["topic"] = hr.sink.kafka("routed", brokers=str(brokers), key=Sent.device, create=True)
if redis:
    outputs["newest"] = hr.sink.redis(key="device:{device}", as_="hash", url=str(redis))

app = hr.App("router")
events = app.read("events", hr.source.files(f"{data}/events"), Event, time=Event.at, out_of_order="10s")
routes = app.read("routes", hr.source.files(f"{data}/routes"), Route)

sent = events.key_by(Event.device).connect(routes.broadcast()).process(Router())
unrouted = sent.side(Router.unrouted)

for name, sink in outputs.items():
    sent.where(f"`to` = '{name}'").write(sink, name=name)
unrouted.write(hr.sink.files(f"{data}/unrouted"), name="unrouted")
events.errors.write(hr.sink.files(f"{data}/dead-letters"), name="dead_letters")

if __name__ == "__main__":
    app.run()
