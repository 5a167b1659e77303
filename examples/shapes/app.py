"""Coloured shapes meet rules that change while the program runs: which shape was followed by which, color by color."""

from __future__ import annotations

from collections.abc import Iterator

import headrace as hr

data = hr.var("data", "./.headrace/shapes-data")


class Shape(hr.Record):
    color: str
    kind: str
    at: hr.Timestamp


class Rule(hr.Record):
    """A ``first`` shape that is followed by a ``then`` of the same color; without shapes the rule is withdrawn."""

    name: str
    first: str = ""
    then: str = ""


class Match(hr.Record):
    rule: str
    color: str
    began: hr.Timestamp
    at: hr.Timestamp


class GivenUp(hr.Record):
    rule: str
    color: str
    began: hr.Timestamp


class Pairs(hr.BroadcastProcess[Shape, Rule, Match, str]):
    rules: hr.BroadcastState[str, Rule]  # the same on every shard; written in on_broadcast only
    begun: hr.MapState[str, hr.Timestamp]  # by color: rule → when its first shape came
    given_up: hr.Side[GivenUp]

    def on_broadcast(self, event: Rule, ctx: hr.BroadcastContext[str]) -> None:
        if event.first and event.then:
            self.rules[event.name] = event
        else:
            self.rules.pop(event.name, None)

        # A pair that began under the old rule must not be completed under the new one.
        def give_up(color: str, begun: hr.MapState[str, hr.Timestamp]) -> None:
            if event.name in begun:
                self.given_up.emit(GivenUp(event.name, color, begun.pop(event.name)))

        ctx.for_each_key(self.begun, give_up)

    def on_event(self, event: Shape, ctx: hr.Context[str]) -> Iterator[Match]:
        for rule in self.rules.values():
            began = self.begun.get(rule.name)
            if began is not None and event.kind == rule.then:
                del self.begun[rule.name]
                yield Match(rule.name, ctx.key, began, event.at)
            elif event.kind == rule.first:
                self.begun[rule.name] = event.at


app = hr.App("shapes")
shapes = app.read("shapes", hr.source.files(f"{data}/shapes"), Shape, time=Shape.at)
rules = app.read("rules", hr.source.files(f"{data}/rules"), Rule)

matches = shapes.key_by(Shape.color).connect(rules.broadcast()).process(Pairs())
given_up = matches.side(Pairs.given_up)

matches.write(hr.sink.files(f"{data}/matches"))
given_up.write(hr.sink.files(f"{data}/given-up"), name="given_up")

if __name__ == "__main__":
    app.run()
