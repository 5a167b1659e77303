"""Reading the past through servers: moments of every form, at every door, with bounded memory and clear errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import headrace as hr
from headrace.errors import NoSuchMoment
from headrace.serve.past import MOST_SNAPSHOTS
from headrace.serve.serving import Options
from headrace.state.moments import AtEpoch
from headrace.state.savepoints import create_savepoint, delete_savepoint
from headrace.testing import Harness
from tests.serve.made_store import SECOND_US, START_US, MadeStore, maps, values
from tests.serve.served import Served
from tests.serve.tweets import View, fetch

EPOCHS = 6
NEWEST = EPOCHS - 1
STATE = "/v1/jobs/tweets/state"
MOMENTS: dict[str, int] = {
    "1": 1,
    "first": 0,
    "2024-01-01T12:00:03": 3,
    "2024-01-01T12:00:03.5": 3,
    str(NEWEST): NEWEST,
}
"""Moment → its epoch."""


@pytest.fixture
def made(tmp_path: Path) -> MadeStore:
    made = MadeStore(tmp_path / "store")
    for epoch in range(EPOCHS):
        pages = maps("pages", [("a", f"/{epoch}", epoch)])
        step = {"count": [values("views", [("a", epoch), (f"only-{epoch}", 1)]), pages]}
        made.epoch(step, clock_us=START_US + epoch * SECOND_US)
        if epoch == 0:
            create_savepoint(made.files, name="first")
    return made


@pytest.fixture
def served(made: MadeStore) -> Iterator[Served]:
    with Served(made.path) as served:
        served.wait_for(NEWEST)
        yield served


@pytest.fixture
def cache(served: Served) -> Iterator[Any]:
    with redis.Redis(port=served.port, decode_responses=True) as client:
        yield client


def in_key(moment: str) -> str:
    """A moment as it stands inside of a key."""
    return f"{moment}Z" if ":" in moment else moment


@pytest.mark.parametrize("moment", MOMENTS)
def test_every_door_gives_the_epoch_of_a_moment(served: Served, cache: Any, moment: str) -> None:
    epoch = MOMENTS[moment]
    assert hr.Store(f"{served.path}@{moment}").state("count.views")["a"] == epoch
    answer = fetch(served.url, f"{STATE}/count.views/a?at={moment}")
    assert (answer.json, answer.headers["headrace-epoch"]) == (epoch, str(epoch))
    assert cache.get(f"count.views@{in_key(moment)}:a") == str(epoch)
    assert cache.hgetall(f"count.pages@{in_key(moment)}:a") == {f"/{each}": str(each) for each in range(epoch + 1)}
    for url in (served.url, served.redis_url):
        with hr.Client(url) as client:
            past = client.at(moment)
            view = past.state("count.views", int)
            assert (view["a"], len(view), view.epoch) == (epoch, epoch + 2, epoch)
            assert dict(view.scan("only-")) == {f"only-{each}": 1 for each in range(epoch + 1)}
            assert view.to_polars().height == epoch + 2
            assert (past.epoch, past.states()) == (epoch, ["count.pages", "count.views"])
            assert client.state("count.views", int)["a"] == NEWEST


def test_a_past_answer_does_not_make_the_present_one_look_stale(served: Served) -> None:
    with hr.Client(served.redis_url) as client:
        now = client.state("count.views", int)
        assert now["a"] == NEWEST
        assert client.at(0).state("count.views", int)["a"] == 0
        assert now["a"] == NEWEST and now.epoch == NEWEST


def test_a_client_at_a_moment_neither_waits_nor_watches(served: Served) -> None:
    with hr.Client(served.redis_url) as client:
        past = client.at(1)
        with pytest.raises(hr.HeadraceError, match="the past is not waited for"):
            past.wait_for(3)
        with pytest.raises(hr.HeadraceError, match="the past does not change"):
            next(past.state("count.views").watch("a"))


@pytest.mark.parametrize(
    ("moment", "status", "what"),
    [
        ("9", 404, "epoch 9 is not in the store"),
        ("2023-12-31", 410, "no epoch that was published by"),
        ("nobody", 404, "there is no savepoint 'nobody'"),
        ("41st!", 400, "the parameter 'at' cannot be used"),
    ],
)
def test_a_moment_that_is_not_kept_is_refused_and_tells_what_is(
    served: Served, cache: Any, moment: str, status: int, what: str
) -> None:
    answer = fetch(served.url, f"{STATE}/count.views/a?at={moment}")
    assert answer.status == status and what in answer.json["error"]["what"]
    assert str(served.path) not in answer.body.decode()
    with pytest.raises(redis.ResponseError, match="NOEPOCH" if status != 400 else "no moment") as refused:
        cache.get(f"count.views@{moment}:a")
    assert str(served.path) not in str(refused.value)


def test_an_epoch_that_is_swept_is_gone_for_servers_too(made: MadeStore, served: Served, cache: Any) -> None:
    made.files.delete("manifests/0/000000000002.json")
    assert fetch(served.url, f"{STATE}/count.views/a?at=2").status == 410
    with pytest.raises(redis.ResponseError, match=r"NOEPOCH epoch 2 is not in the store.*0–1, 3–5"):
        cache.get("count.views@2:a")


def test_an_epoch_that_is_open_is_read_after_it_was_swept(made: MadeStore, served: Served, cache: Any) -> None:
    assert cache.get("count.views@2:a") == "2"
    for path in made.files.list("manifests"):
        if "00002" in path:
            made.files.delete(path)
    assert cache.get("count.views@2:a") == "2"


def test_a_savepoint_is_looked_up_each_time(made: MadeStore, served: Served, cache: Any) -> None:
    assert cache.get("count.views@first:a") == "0"
    delete_savepoint(made.files, "first")
    with pytest.raises(redis.ResponseError, match="NOEPOCH"):
        cache.get("count.views@first:a")


def test_only_a_few_past_epochs_are_held(served: Served, cache: Any) -> None:
    for epoch in range(EPOCHS):
        assert cache.get(f"count.views@{epoch}:a") == str(epoch)
    assert len(served.service.past._open) == MOST_SNAPSHOTS
    assert served.service.past.ready(AtEpoch(0)) is None
    assert served.service.past.ready(AtEpoch(NEWEST)) is served.service.snapshot


def test_all_keys_of_a_request_are_of_one_moment(cache: Any) -> None:
    assert cache.mget(["count.views@1:a", "count.views@1:only-1", "count.views@1:only-2"]) == ["1", "1", None]
    assert cache.exists("count.views@1:a", "count.views@1:only-3") == 1
    for keys in (["count.views@1:a", "count.views@2:a"], ["count.views@1:a", "count.views:a"]):
        with pytest.raises(redis.ResponseError, match="all keys of a request are of one epoch"):
            cache.mget(keys)


def test_a_transaction_compares_moments(cache: Any) -> None:
    pipe = cache.pipeline(transaction=True)
    for moment in ("1", "first", "2024-01-01T12:00:03Z"):
        pipe.get(f"count.views@{moment}:a")
    assert pipe.get("count.views:a").execute() == ["1", "0", "3", str(NEWEST)]
    pipe.get("count.views@9:a").get("count.views@1:a")
    missing, there = pipe.execute(raise_on_error=False)
    assert "NOEPOCH" in str(missing) and there == "1"
    for epoch in range(MOST_SNAPSHOTS + 1):
        pipe.get(f"count.views@{epoch}:a")
    with pytest.raises(redis.ResponseError, match="a transaction may read 4"):
        pipe.execute()


def test_a_connection_set_to_a_moment_reads_all_of_it(cache: Any) -> None:
    with cache.client() as own:
        assert own.execute_command("HEADRACE.AT", "first") == 0
        assert own.get("count.views:a") == "0" and own.get("count.views@2:a") == "2"
        assert sorted(own.scan_iter("count.views:*")) == ["count.views:a", "count.views:only-0"]
        assert own.dbsize() == 3 and own.execute_command("HEADRACE.EPOCH") == 0
        assert own.pipeline(transaction=True).get("count.views:a").execute() is not None
        with pytest.raises(redis.ResponseError, match="NOEPOCH"):
            own.execute_command("HEADRACE.AT", "9")
        assert own.get("count.views:a") == "0"
        assert own.execute_command("HEADRACE.AT") == NEWEST
        assert own.get("count.views:a") == str(NEWEST)
        own.execute_command("HEADRACE.AT", "1")
        own.execute_command("RESET")
        assert own.get("count.views:a") == str(NEWEST)


def test_a_time_in_a_key_ends_with_z(cache: Any) -> None:
    assert cache.get("count.views@2024-01-01T12:00:01Z:a") == "1"
    with pytest.raises(redis.ResponseError, match="a time ends with Z"):
        cache.get("count.views@2024-01-01T12:00:01:a")


def test_a_key_may_hold_an_at_sign(made: MadeStore, served: Served, cache: Any) -> None:
    made.epoch({"count": [values("views", [("me@home", 7), ("a@1:b", 8)])]})
    served.wait_for(EPOCHS)
    assert cache.mget(["count.views:me@home", "count.views:a@1:b"]) == ["7", "8"]
    assert cache.get(f"count.views@{EPOCHS}:a@1:b") == "8"


def test_a_server_is_of_no_moment(made: MadeStore) -> None:
    with pytest.raises(hr.HeadraceError, match="a server follows the job"):
        Options(store=f"{made.path}@1").check()


def test_a_moment_before_the_first_epoch_is_none(tmp_path: Path) -> None:
    with Served(MadeStore(tmp_path / "store").path) as served, pytest.raises(NoSuchMoment, match="no epoch"):
        served.run(served.service.past.at(AtEpoch(0)))


def test_the_past_is_what_led_to_the_present_whatever_was_gone_back_from(tmp_path: Path) -> None:
    app = hr.App("tweets")
    views = app.read("views", hr.source.items([]), View, time=View.at)
    views.key_by(View.tweet).aggregate(total=hr.sum("n")).named("totals").queryable()

    def totals(moment: str, client: hr.Client) -> int:
        views_then = client.at(moment).state("totals"), hr.Store(store).at(moment).state("totals")
        [total] = {each["a"]["total"] for each in views_then}
        return int(total)

    store = str(tmp_path / "store")
    with Harness(app, store=store) as h, Served(store) as served:

        def push(*amounts: int) -> None:
            for amount in amounts:
                h.push(views, View("a", h.at("12:00"), amount))
                h.clock_us += SECOND_US
                h.epoch()

        push(1, 10, 100, 1000)
        h.savepoint("old-end")
        served.wait_for(3)
        h.rewind("1")
        push(5, 5, 5)
        served.wait_for(4)
        with hr.Client(served.redis_url) as client:
            told = {moment: totals(moment, client) for moment in ("0", "1", "2", "4", "old-end")}
    # Rows that were pushed behind the epoch that was gone back to are read again with the next.
    assert told == {"0": 1, "1": 11, "2": 1116, "4": 1126, "old-end": 1111}
    history = [(each.epoch, each.value["total"]) for each in hr.Store(store).history("totals", "a") if each.value]
    assert history == [(0, 1), (1, 11), (2, 1116), (3, 1121), (4, 1126)]
    abandoned = [each.value["total"] for each in hr.Store(f"{store}@old-end").history("totals", "a") if each.value]
    assert abandoned == [1, 11, 111, 1111]
    [key] = hr.diff(f"{store}@old-end", f"{store}@3")
    assert (key.before["total"], key.after["total"]) == (1111, 1121)
