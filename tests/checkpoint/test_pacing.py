"""Adaptive epochs, simulated: arrivals, epochs that cost what they cost, and a clock that only they move."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from headrace.checkpoint.pacing import (
    ASSUMED_FLOOR_US,
    Load,
    Pacer,
    check_floor,
    decide_pause_us,
    decide_period,
    derive_load,
    derive_work_us,
)
from headrace.errors import SettingsError
from headrace.model.behind import Behind
from headrace.model.pace import Adaptive, EpochCost
from headrace.state.manifest import Manifest, TaskStats

SECOND = 1_000_000
POLICY = Adaptive(SECOND, 0.2)
SEED = 20261119


def manifest(work_us: int, *, behind: bool = False, released_us: dict[str, int] | None = None) -> Manifest:
    source = {"rows": Behind(10, done=1)} if behind else {"rows": Behind(10)}
    return Manifest(
        app="a", timeline=0, epoch=0, nonce="n", fence=1, program="p", parallelism=1, key_groups=8, clock_us=0,
        tasks=[TaskStats(1, 0, times_us={"process": work_us, "open": 999_999})], behind=source,
        released_us=released_us or {},
    )  # fmt: skip


@dataclass
class Simulation:
    """Rows come at a rate; an epoch takes what it costs by itself and what its rows cost."""

    pacer: Pacer
    own_us: Callable[[], int]
    row_us: float
    now_us: int = 0
    arrived_us: int = 0
    """Rows that came before this are in epochs."""
    periods: list[int] = field(default_factory=list)
    latencies: list[int] = field(default_factory=list)
    own_total: int = 0

    def run(self, seconds: float, rows_per_s: float, *, behind: bool = False) -> None:
        end_us = self.now_us + round(seconds * SECOND)
        while self.now_us < end_us:
            begin_us = self.now_us
            oldest_us, self.arrived_us = self.arrived_us, begin_us
            rows = (begin_us - oldest_us) / SECOND * rows_per_s
            self.pacer.begin(begin_us)
            own, work = self.own_us(), round(rows * self.row_us)
            self.now_us += own + work
            pause = self.pacer.end(self.now_us, manifest(work, behind=behind))
            self.latencies.append(self.now_us - oldest_us)
            self.own_total += own
            self.now_us += pause
            self.periods.append(self.now_us - begin_us)

    @property
    def share(self) -> float:
        return self.own_total / self.now_us

    def forget(self) -> None:
        self.periods.clear()
        self.latencies.clear()


def simulate(policy: Adaptive = POLICY, own_us: int = 60_000, row_us: float = 10.0, jitter: float = 0.2) -> Simulation:
    chance = random.Random(SEED)
    return Simulation(Pacer(policy), lambda: round(own_us * chance.uniform(1 - jitter, 1 + jitter)), row_us)


def test_epochs_are_as_short_as_the_share_allows() -> None:
    quiet = simulate()
    quiet.run(60, 1_000)
    assert 0.17 <= quiet.share <= 0.2 * 1.05
    assert max(quiet.latencies) <= POLICY.latency_us


def test_latency_and_share_hold_while_the_load_changes_a_hundredfold() -> None:
    job = simulate()
    for _ in range(3):
        for rate in (500, 50_000):
            job.run(20, rate)
    late = [each for each in job.latencies if each > POLICY.latency_us]
    assert len(late) <= 6, "at most an epoch at each rise, whose rows nobody could foresee"
    assert job.share <= 0.2 * 1.05
    assert not job.pacer.note


def test_latency_wins_over_the_share() -> None:
    job = simulate(own_us=300_000)
    job.run(60, 1_000)
    assert max(job.latencies[5:]) <= POLICY.latency_us
    assert job.share > 0.2


def test_the_latency_holds_also_where_epochs_cost_now_this_and_now_that() -> None:
    job = simulate(own_us=220_000, jitter=0.8)
    job.run(300, 1_000)
    late = sum(each > POLICY.latency_us for each in job.latencies)
    assert late / len(job.latencies) <= 0.01
    assert job.pacer.note == ""


def test_a_shorter_latency_makes_shorter_epochs_only_where_it_binds() -> None:
    periods = []
    for latency_us in (SECOND // 2, SECOND, 10 * SECOND):
        job = simulate(Adaptive(latency_us, 0.1))
        job.run(30, 1_000)
        periods.append(sorted(job.periods)[len(job.periods) // 2])
    assert periods[0] < SECOND // 2 < periods[1] < SECOND, "spend alone would make it 600 ms"
    assert periods[1] == pytest.approx(periods[2], rel=0.1)


def test_between_two_epochs_there_is_at_least_the_pause() -> None:
    policy = Adaptive(SECOND, 1.0, 150_000)
    assert decide_pause_us(policy, decide_period(policy, Load(100_000, 0.0)), 100_000, behind=False) == 150_000
    assert decide_pause_us(policy, decide_period(policy, Load(100_000, 0.0)), 100_000, behind=True) == 150_000
    assert decide_pause_us(POLICY, decide_period(POLICY, Load(100_000, 0.0)), 100_000, behind=False) == 400_000


def test_a_job_that_catches_up_does_not_pause_and_says_why_rows_are_late(caplog: pytest.LogCaptureFixture) -> None:
    job = simulate()
    with caplog.at_level(logging.WARNING, "headrace.pacing"):
        job.run(5, 50_000, behind=True)
        assert "catching up with its input" in job.pacer.note
        job.run(20, 1_000)
    assert job.pacer.note == ""
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "rows wait longer than latency=1s", "rows are out within latency=1s again",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("own_us", "work_us", "released_us", "words"),
    [
        (100_000, 1_400_000, {}, "1s400ms of it for its rows"),
        (1_400_000, 10_000, {"out": 1_300_000}, "1s300ms of it to release the output out"),
        (1_400_000, 10_000, {"out": 10_000}, "1s400ms of it whatever it reads"),
    ],
)
def test_a_latency_that_is_broken_is_said_once_with_what_breaks_it(
    own_us: int, work_us: int, released_us: dict[str, int], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    pacer, now_us = Pacer(POLICY), 0
    with caplog.at_level(logging.WARNING, "headrace.pacing"):
        for _ in range(10):
            pacer.begin(now_us)
            now_us += own_us + work_us
            now_us += pacer.end(now_us, manifest(work_us, released_us=released_us))
    assert words in pacer.note
    assert len(caplog.records) == 1


def test_an_epoch_behind_a_silence_is_not_late() -> None:
    pacer, now_us = Pacer(POLICY), 0
    for _ in range(10):
        pacer.begin(now_us)
        now_us += 100_000
        now_us += pacer.end(now_us, manifest(1_000)) + 3_600 * SECOND
    assert pacer.note == ""


def test_an_input_that_comes_faster_than_it_is_handled_gets_no_pause() -> None:
    plan = decide_period(POLICY, Load(50_000, 1.2))
    assert plan.late
    assert decide_pause_us(POLICY, plan, 2 * SECOND, behind=False) == 0


def test_work_is_the_longest_way_through_the_tasks() -> None:
    tasks = [
        TaskStats(0, 0, times_us={"open": 5, "wait": 100, "process": 10, "write": 7}),
        TaskStats(0, 1, times_us={"wait": 20, "process": 60}),
        TaskStats(1, 0, times_us={"wait": 500, "process": 30, "fire": 4, "stage": 9}),
        TaskStats(1, 1, times_us={"process": 1}),
    ]
    assert derive_work_us(tasks) == 110 + 34


def test_costs_are_smoothed() -> None:
    load = derive_load(None, EpochCost(100, 50, 0), 100)
    assert load == Load(100, 0.5)
    after = derive_load(load, EpochCost(1_000, 50, 0), 100)
    assert (100 < after.own_us < 500, after.rate) == (True, 0.5)


def test_the_parent_of_an_epoch_is_told_with_its_period() -> None:
    pacer = Pacer(None)
    assert pacer.begin(0) is None
    assert pacer.end(100_000, manifest(40_000)) == 0
    told = pacer.begin(400_000)
    assert told == EpochCost(60_000, 40_000, 400_000)
    assert told.share == 0.15
    # An epoch that failed tells nothing of itself.
    assert pacer.begin(500_000) is None


def cost(own_us: int) -> EpochCost:
    return EpochCost(own_us, 0, SECOND)


@pytest.mark.parametrize(
    ("policy", "measured", "words"),
    [
        (Adaptive(SECOND, 0.2), [], None),
        (Adaptive(200_000, 0.2), [], "50% of the latency"),
        (Adaptive(50_000, 0.9), [], "200% of the latency"),
        (Adaptive(200_000, 0.2), [cost(30_000)] * 3, None),
        (Adaptive(SECOND, 0.2), [cost(300_000), cost(400_000), cost(900_000)], "as the last 3 epochs"),
        (Adaptive(SECOND, 0.2), [cost(300_000), cost(100_000), cost(900_000)], None),
        (Adaptive(SECOND, 0.2), [cost(900_000)] * 2, None),
    ],
)  # fmt: skip
def test_a_policy_that_epochs_cannot_hold_is_refused(
    policy: Adaptive, measured: list[EpochCost], words: str | None
) -> None:
    if words is None:
        check_floor(policy, measured)
        return
    with pytest.raises(SettingsError, match="epochs cost more by themselves") as refused:
        check_floor(policy, measured)
    assert words in refused.value.found


def test_the_refusal_names_a_latency_that_can_be_held() -> None:
    with pytest.raises(SettingsError) as refused:
        check_floor(Adaptive(200_000, 0.2), [])
    assert refused.value.expected == "latency of at least 500ms, or spend=50%"
    check_floor(Adaptive(500_000, 0.2), [])
    check_floor(Adaptive(200_000, 0.5), [])
    assert ASSUMED_FLOOR_US == 100_000
