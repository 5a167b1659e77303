"""Several inputs in the order of time: connect merges them, and a broadcast row takes effect at its time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.testing import EpochInput, Harness, verify_step

NOON = 1_704_110_400_000_000


class Move(hr.Record):
    user: str
    n: int
    at: hr.Timestamp


class Rule(hr.Record):
    factor: int
    at: hr.Timestamp


class Seen(hr.Record):
    user: str
    what: str


def at(second: int) -> hr.Timestamp:
    return hr.Timestamp(NOON + second * 1_000_000)


class Meet(hr.CoProcess[Move, Move, Seen, str]):
    trail: hr.ListState[str] = hr.state(max_len=5)
    rest: hr.Timer

    def on_left(self, event: Move, ctx: hr.Context[str]) -> Iterator[Seen]:
        yield self.say(ctx, f"L{event.n}")
        self.rest.set(event.at + hr.seconds(4))

    def on_right(self, event: Move, ctx: hr.Context[str]) -> Iterator[Seen]:
        yield self.say(ctx, f"R{event.n}")

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Seen]:
        yield self.say(ctx, "rest")

    def say(self, ctx: hr.Context[str], what: str) -> Seen:
        self.trail.append(what)
        return Seen(ctx.key, f"{(ctx.timestamp - NOON) // 1_000_000}: {' '.join(self.trail)}")


class Weigh(hr.BroadcastProcess[Move, Rule, Seen, str]):
    """What a move weighs depends on the rule at its time; each rule goes over what was weighed so far."""

    factor: hr.BroadcastState[str, int]
    total: hr.ValueState[int]
    recent: hr.ValueState[int] = hr.state(ttl=hr.ttl("3500ms", clock="event"))
    rest: hr.Timer

    def on_event(self, event: Move, ctx: hr.Context[str]) -> Iterator[Seen]:
        self.total.set(self.total.get(0) + event.n * self.factor.get("it", 1))
        recent = self.recent.get()
        self.recent.set(event.n)
        self.rest.set(event.at + hr.seconds(2))
        yield Seen(ctx.key, f"{event.n} after {recent} makes {self.total.get()}")

    def on_broadcast(self, event: Rule, ctx: hr.BroadcastContext[str]) -> Iterator[Seen]:
        self.factor["it"] = event.factor
        ctx.for_each_key(self.total, lambda key, total: total.set((total.get() or 0) + 1000))
        yield Seen("", f"rule {event.factor}")

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Seen]:
        self.total.set(self.total.get(0) + 100 * self.factor.get("it", 1))
        yield Seen(ctx.key, f"rest makes {self.total.get()}")


class Meeting:
    def __init__(self) -> None:
        self.app = hr.App("meeting")
        source = hr.source.items([])
        self.left = self.app.read("left", source, Move, time=Move.at, out_of_order="1h")
        self.right = self.app.read("right", source, Move, time=Move.at, out_of_order="1h")
        self.rules = self.app.read("rules", source, Rule, time=Rule.at, out_of_order="1h")
        lefts = self.left.key_by(Move.user)
        self.met = lefts.connect(self.right.key_by(Move.user)).process(Meet(), order=("time", "n"))
        self.weighed = lefts.connect(self.rules.broadcast()).process(Weigh(), order=("time", "n"))
        self.met.show()
        self.weighed.show()


MOVES = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.integers(0, 5)), min_size=1, max_size=12)
RULES = st.lists(st.tuples(st.integers(2, 9), st.integers(5, 9)), max_size=4)


def moves(drawn: Sequence[tuple[str, int, int]]) -> list[Move]:
    return [Move(user, n, at(second)) for user, second, n in drawn]


def met_in_true_order(left: list[Move], right: list[Move]) -> dict[str, list[str]]:
    said: dict[str, list[str]] = {}
    for user in "ab":
        trail: list[str] = []
        lines = said[user] = []
        rest: int | None = None

        def say(time: int, what: str, trail: list[str] = trail, lines: list[str] = lines) -> None:
            trail.append(what)
            lines.append(f"{time}: {' '.join(trail[-5:])}")

        mine = [(row.at, side, row.n) for side, rows in enumerate((left, right)) for row in rows if row.user == user]
        for time_us, side, n in [*sorted(mine), (at(1000), 2, 0)]:
            time = (time_us - NOON) // 1_000_000
            if rest is not None and rest < time:
                say(rest, "rest")
                rest = None
            if side < 2:
                say(time, f"{'LR'[side]}{n}")
            if side == 0:
                rest = time + 4
    return said


def weighed_in_true_order(rows: list[Move], rules: list[Rule]) -> dict[str, list[str]]:
    said: dict[str, list[str]] = {"a": [], "b": [], "": []}
    total: dict[str, int] = {}
    recent: dict[str, tuple[int, int]] = {}
    rests: dict[str, int] = {}
    factor = 1
    # A rule, then rows, then timers of one time.
    happenings: list[tuple[int, int, Any]] = [(rule.at, 0, (rule.factor,)) for rule in rules]
    happenings += [(row.at, 1, (row.n, row.user)) for row in rows]
    for time, kind, what in [*sorted(happenings), (at(1000), 2, ())]:
        for user in [user for user, rest in sorted(rests.items()) if rest < time]:
            del rests[user]
            total[user] += 100 * factor
            said[user].append(f"rest makes {total[user]}")
        if kind == 0:
            (factor,) = what
            total = {user: each + 1000 for user, each in total.items()}
            said[""].append(f"rule {factor}")
        elif kind == 1:
            n, user = what
            total[user] = total.get(user, 0) + n * factor
            before = recent.get(user)
            alive = None if before is None or before[0] + 3_500_000 <= time else before[1]
            recent[user] = (time, n)
            rests[user] = time + 2_000_000
            said[user].append(f"{n} after {alive} makes {total[user]}")
    return said


def by_user(rows: Sequence[Seen], user: str) -> list[str]:
    return [row.what for row in rows if row.user == user]


@settings(max_examples=15)
@given(left=MOVES, right=MOVES, rules=RULES, random=st.randoms(use_true_random=False))
def test_inputs_are_merged_by_time_however_they_come(
    left: list[tuple[str, int, int]], right: list[tuple[str, int, int]], rules: list[tuple[int, int]], random: Random
) -> None:
    lefts, rights = moves(left), moves(right)
    laws = [Rule(factor, at(second)) for second, factor in rules]
    program = Meeting()
    pushed: list[tuple[Any, Any]] = [(program.left, row) for row in lefts]
    pushed += [(program.right, row) for row in rights] + [(program.rules, row) for row in laws]
    random.shuffle(pushed)
    met: list[Seen] = []
    weighed: list[Seen] = []
    with Harness(program.app, parallelism=random.randint(1, 3), start="2024-01-01T12:00") as h:
        while pushed:
            count = random.randint(1, 12)
            for stream, row in pushed[:count]:
                h.push(stream, row)
            pushed = pushed[count:]
            ahead = min((row.at for _, row in pushed), default=at(9))
            if random.random() < 0.2:
                h.crash()
            h.epoch(watermark=random.randint(NOON - 1, ahead - 1))
            met += h.take(program.met)
            weighed += h.take(program.weighed)
        h.drain()
        met += h.take(program.met)
        weighed += h.take(program.weighed)
    wanted_met, wanted_weighed = met_in_true_order(lefts, rights), weighed_in_true_order(lefts, laws)
    for user in "ab":
        assert by_user(met, user) == wanted_met[user]
        assert by_user(weighed, user) == wanted_weighed[user]
    assert by_user(weighed, "") == wanted_weighed[""]


def test_the_contract_is_kept_with_two_inputs_and_with_rules() -> None:
    program, random = Meeting(), Random(2)

    def some(start: int, count: int) -> list[Move]:
        return [Move(random.choice("abc"), n, at(start + random.randrange(6))) for n in range(count)]

    epochs = [
        EpochInput([(0, some(start, 6)), (1, some(start, 6))], watermark=int(at(start + 2))) for start in (0, 3, 8)
    ]
    verify_step(program.met, [*epochs, EpochInput([], watermark=int(at(50)))])
    ruled = [
        EpochInput(
            [(0, some(start, 6)), (1, [Rule(n + start, at(start + random.randrange(6))) for n in range(3)])],
            watermark=int(at(start + 2)),
        )
        for start in (0, 3, 8)
    ]
    verify_step(program.weighed, [*ruled, EpochInput([], watermark=int(at(50)))])


def test_a_rule_without_a_time_or_of_the_past_takes_effect_at_once() -> None:
    app = hr.App("rules")
    left = app.read("left", hr.source.items([]), Move, time=Move.at, out_of_order="1h")
    rules = app.read("rules", hr.source.items([]), Rule)
    weighed = left.key_by(Move.user).connect(rules.broadcast()).process(Weigh(), order="time")
    weighed.show()
    with Harness(app, start="2024-01-01T12:00") as h:
        h.push(left, Move("a", 1, at(3)))
        h.push(rules, Rule(7, at(100)))
        h.epoch(watermark=at(4))
        assert by_user(h.take(weighed), "a") == ["1 after None makes 7"]
    program = Meeting()
    with Harness(program.app, start="2024-01-01T12:00") as h:
        h.epoch(watermark=at(5))
        h.push(program.left, Move("a", 1, at(7)))
        h.push(program.rules, Rule(9, at(8)), Rule(7, at(2)))
        h.epoch(watermark=at(8))
        assert by_user(h.take(program.weighed), "a") == ["1 after None makes 7"]
        h.push(program.left, Move("a", 1, at(9)))
        h.epoch(watermark=at(9))
        assert by_user(h.take(program.weighed), "a") == ["1 after 1 makes 1016"]
