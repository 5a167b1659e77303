"""`sink.redis(undo=…)`: keys that hold again what they held after an earlier epoch, on a real server."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.connectors.redis import guard as redis_guard
from headrace.connectors.redis import rows as redis_rows
from headrace.connectors.redis import undo as redis_undo
from headrace.errors import HeadraceError, SinkFailed
from headrace.model.crash import Crash, planned
from headrace.testing.sinks import SinkTarget, verify_sink
from headrace.testing.staging import Staging, stage_rows
from tests.services.redis import Redis
from tests.sinks.redis_sales import CODEC, READERS, SALES, Sale, bound, new_sink


@pytest.fixture
def client(redis_server: Redis) -> Iterator[Any]:
    with redis_server.client() as client:
        yield client


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script writes and takes back one row."""
    monkeypatch.setattr(redis_rows, "PACK_ROWS", 1)
    monkeypatch.setattr(redis_guard, "GROUP_ROWS", 1)
    monkeypatch.setattr(redis_undo, "ROWS_AT_ONCE", 1)


class Kept:
    """A sink of keys that begin with a name of their own."""

    def __init__(self, server: Redis, client: Any, folder: Path, shape: str = "string", **options: Any) -> None:
        self.server, self.client, self.shape = server, client, shape
        self.name = uuid.uuid4().hex
        self.staging = Staging(folder)
        self.sink = self.restart(**{"undo": "1h", **options})

    def restart(self, **options: Any) -> Any:
        self.sink = bound(self.server, self.shape, self.name, **options)
        return self.sink

    def write(self, epoch: int, *rows: Sale, timeline: str = "0") -> None:
        parts = stage_rows(self.sink, CODEC, self.staging, epoch, [list(rows)])
        self.sink.release(parts, self.staging.release(epoch, "out", timeline))

    def forget(self, epoch: int, last: int = 99, timeline: str = "0", following: str | None = None) -> None:
        ctx = self.staging.forget(epoch, last, timeline=timeline)
        ctx.next_timeline = following or ctx.next_timeline
        self.sink.check_forget(ctx)
        self.sink.forget(ctx)

    @property
    def rows(self) -> list[Sale]:
        return sorted(READERS[self.shape](self.client, self.name), key=lambda sale: (sale.shop, sale.n))

    @property
    def journals(self) -> list[bytes]:
        return sorted(self.client.keys(f"guard-{self.name}:undo:*"))


@pytest.mark.parametrize("shape", ["string", "hash", "stream"])
def test_it_keeps_the_promises_of_a_sink_that_forgets(
    redis_server: Redis, client: Any, shape: str, small: None
) -> None:
    def new_target() -> SinkTarget:
        name = uuid.uuid4().hex
        return SinkTarget(lambda: new_sink(redis_server, shape, name, undo="1h"), lambda: READERS[shape](client, name))

    versions = None if shape == "stream" else (Sale("a", 1, "old"), Sale("a", 2))
    verify_sink(new_target, Sale, SALES, versions=versions, staged=("inline",))


@pytest.mark.parametrize("shape", ["string", "hash", "stream"])
@pytest.mark.parametrize("pieces", ["whole", "small"])
def test_any_epochs_can_be_taken_back(
    redis_server: Redis, client: Any, tmp_path: Path, shape: str, pieces: str, request: pytest.FixtureRequest
) -> None:
    if pieces == "small":
        request.getfixturevalue("small")
    seed = random.randrange(2**32)
    print("seed", seed)
    dice = random.Random(seed)
    kept = Kept(redis_server, client, tmp_path, shape)
    seen: dict[int, list[Sale]] = {-1: []}
    lineage, epoch = [(0, -1)], -1
    for _ in range(50):
        timeline, began = lineage[-1]
        if epoch >= 0 and dice.random() < 0.25:
            to = dice.randrange(-1, epoch + 1)
            while True:
                at = str(lineage[-1][0])
                kept.forget(to if to >= began else -1, timeline=at, following=str(timeline + 1))
                if to >= began:
                    break
                lineage.pop()
                began = lineage[-1][1]
            lineage.append((timeline + 1, to))
            epoch = to
            assert kept.rows == seen[epoch]
        else:
            epoch += 1
            rows = [
                Sale(f"s{dice.randrange(4)}", dice.randrange(99), dice.choice(["x", None]))
                for _ in range(dice.randrange(1, 6))
            ]
            kept.write(epoch, *rows, timeline=str(timeline))
            seen[epoch] = kept.rows


def test_dying_between_any_two_scripts_is_made_good(
    redis_server: Redis, client: Any, tmp_path: Path, small: None
) -> None:
    kept = Kept(redis_server, client, tmp_path, "hash")
    kept.write(0, Sale("a", 1), Sale("b", 1))
    before = kept.rows
    for epoch in (1, 2):
        kept.write(epoch, Sale("a", 10 + epoch, "n"), Sale("c", epoch), Sale("a", 20 + epoch))

    def die(point: str, epoch: int) -> None:
        raise Crash(point)

    deaths = 0
    while True:
        kept.restart(undo="1h")
        try:
            with planned(die):
                kept.forget(0)
            break
        except Crash:
            deaths += 1
            with pytest.raises(HeadraceError):
                kept.write(3, Sale("z", 1))
    assert deaths == 6 and kept.rows == before
    kept.restart(undo="1h").start()
    kept.write(1, Sale("a", 5), timeline="1")
    assert kept.rows == [Sale("a", 5), Sale("b", 1)]


def test_times_to_live_come_back_and_so_does_what_was_no_string(
    redis_server: Redis, client: Any, tmp_path: Path
) -> None:
    kept = Kept(redis_server, client, tmp_path, ttl="1h")
    client.set(f"{kept.name}:a", "theirs", px=5_000_000)
    client.rpush(f"{kept.name}:list", 1, 2)
    client.set(f"{kept.name}:stays", "for ever")
    kept.write(0, Sale("a", 1), Sale("list", 1), Sale("stays", 1), Sale("new", 1))
    assert client.pttl(f"{kept.name}:stays") > 0
    kept.forget(-1)
    assert client.get(f"{kept.name}:a") == b"theirs" and 4_000_000 < client.pttl(f"{kept.name}:a") <= 5_000_000
    assert client.lrange(f"{kept.name}:list", 0, -1) == [b"1", b"2"]
    assert client.pttl(f"{kept.name}:stays") == -1 and not client.exists(f"{kept.name}:new")


def test_fields_that_others_put_into_a_hash_stay(redis_server: Redis, client: Any, tmp_path: Path) -> None:
    kept = Kept(redis_server, client, tmp_path, "hash", key="{shop}-" + uuid.uuid4().hex, field="f{n}")
    key = kept.sink.form.key.text.replace("{shop}", "a")
    client.hset(key, mapping={"own": "1", "f1": "before"})
    kept.write(0, Sale("a", 1), Sale("a", 2))
    kept.forget(-1)
    assert client.hgetall(key) == {b"own": b"1", b"f1": b"before"}


def test_what_was_kept_too_long_ago_or_never_is_refused_before_anything_changes(
    redis_server: Redis, client: Any, tmp_path: Path
) -> None:
    kept = Kept(redis_server, client, tmp_path)
    for epoch in range(3):
        kept.write(epoch, Sale("a", epoch))
    assert len(kept.journals) == 3
    assert all(3_000_000 < client.pttl(each) <= 3_600_000 for each in kept.journals)
    client.delete(f"guard-{kept.name}:undo:0:1")
    with pytest.raises(SinkFailed, match="has no earlier values of these keys") as caught:
        kept.forget(0)
    assert "none of epoch 1" in str(caught.value) and "--hold out" in str(caught.value)
    assert kept.rows == [Sale("a", 2)]
    kept.restart()
    kept.write(3, Sale("a", 3))
    kept.restart(undo="1h")
    kept.write(4, Sale("a", 4))
    with pytest.raises(SinkFailed, match="none of epoch 3"):
        kept.forget(2)
    kept.forget(3)
    assert kept.rows == [Sale("a", 3)]


def test_former_rows_of_an_older_timeline_are_missed_before_those_of_the_newer_one_go(
    redis_server: Redis, client: Any, tmp_path: Path
) -> None:
    kept = Kept(redis_server, client, tmp_path)
    for epoch in range(3):
        kept.write(epoch, Sale("a", epoch))
    kept.forget(1)
    kept.write(2, Sale("b", 7), timeline="1")
    client.delete(f"guard-{kept.name}:undo:0:1")
    ctx = kept.staging.forget(0, 2)
    ctx.next_timeline = "2"
    with pytest.raises(SinkFailed, match="Redis has no earlier values of these keys"):
        kept.sink.check_forget(ctx)
    assert kept.rows == [Sale("a", 1), Sale("b", 7)]


def test_without_it_keys_can_only_be_held() -> None:
    assert hr.sink.redis(key="{a}").rewinds == {"hold"}
    assert hr.sink.redis(key="{a}", undo="1d").rewinds == {"hold", "repeat"}
    with pytest.raises(hr.ProgramError, match="undo is too short"):
        hr.sink.redis(key="{a}", undo="0s")
