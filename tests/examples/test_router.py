from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
import redis

import headrace as hr
from tests.examples.programs import load_maker, load_program, read_lines
from tests.services.messages import read_messages


@pytest.fixture
def program(tmp_path: Path) -> Any:
    return load_program("router", tmp_path)


def event(program: Any, h: hr.testing.Harness, kind: str, level: int, device: str = "d") -> Any:
    return program.Event(device, kind, level, h.at("12:00:00"))


def sent(program: Any, h: hr.testing.Harness) -> list[tuple[str, str, str]]:
    return sorted((row.to, row.route, row.kind) for row in h.take(program.sent))


def test_an_event_goes_to_every_output_that_a_route_names_and_to_each_once(program: Any) -> None:
    with hr.testing.Harness(program.app) as h:
        h.push(program.routes, program.Route("a", "alerts", min_level=4), program.Route("b", "alerts", kind="error"))
        h.push(program.routes, program.Route("c", "audit", kind="payment"))
        h.epoch()
        h.push(program.events, event(program, h, "error", 5), event(program, h, "payment", 1))
        h.epoch()
        assert sent(program, h) == [("alerts", "a", "error"), ("audit", "c", "payment")]


def test_routes_change_and_are_withdrawn_while_it_runs(program: Any) -> None:
    with hr.testing.Harness(program.app) as h:
        for to in ("alerts", "archive", "nowhere"):
            h.push(program.routes, program.Route("loud", to))
            h.epoch()
            h.push(program.events, event(program, h, "login", 2))
            h.epoch()
            assert [row.to for row in h.take(program.sent)] == ([] if to == "nowhere" else [to])
        assert [row.kind for row in h.take(program.unrouted)] == ["login"]


def test_routes_and_outputs_survive_a_crash_between_two_sinks(program: Any, tmp_path: Path) -> None:
    with hr.testing.Harness(program.app, sinks=True) as h:
        h.push(program.routes, program.Route("all", "alerts"), program.Route("too", "audit"))
        h.epoch()
        h.push(program.events, *(event(program, h, "login", n) for n in range(5)))
        h.crash(at="between_sinks")
        h.push(program.events, event(program, h, "login", 9))
        h.epoch()
    for folder in ("alerts", "audit"):
        assert sorted(row["level"] for row in read_lines(tmp_path / folder)) == [0, 1, 2, 3, 4, 9]


@pytest.mark.spark
def test_on_spark_every_event_is_where_the_routes_of_its_time_send_it(
    tmp_path: Path, spark: Any, kafka: Any, redis_server: Any
) -> None:
    maker = load_maker("router")
    first, then = maker.make_events(200, seed=1), maker.make_events(200, seed=2)
    outside = [{"name": "all", "to": "topic", "kind": "payment"}, {"name": "newest", "to": "newest", "min_level": 1}]
    maker.write_routes([*maker.ROUTES, *outside], tmp_path / "routes")
    servers = {"brokers": kafka.bootstrap, "redis": redis_server.url}
    (tmp_path / "events").mkdir()
    settings: dict[str, Any] = {"spark": spark, "store": tmp_path / "store", "parallelism": 2}
    # The routes are there before the events, so that it is known by which of them each is sent.
    load_program("router", tmp_path, **servers).app.run(until="caught_up", **settings)
    maker.write_file(first, tmp_path / "events", "1")
    (tmp_path / "events" / "broken.json").write_text('{"device": 7}\n')
    load_program("router", tmp_path, **servers).app.run(until="caught_up", **settings)
    maker.write_routes([{"name": "loud", "to": "alerts", "min_level": 2, "kind": "error"}], tmp_path / "routes")
    load_program("router", tmp_path, **servers).app.run(until="caught_up", **settings)
    maker.write_file(then, tmp_path / "events", "2")
    load_program("router", tmp_path, **servers).app.run(until="caught_up", **settings)

    def numbers(rows: list[dict[str, Any]]) -> list[str]:
        return sorted(f"{row['at']} {row['text']}" for row in rows)

    loud = [row for row in first if row["level"] >= 4]
    loud += [row for row in then if row["level"] >= 2 and row["kind"] == "error"]
    assert numbers(read_lines(tmp_path / "alerts")) == numbers(loud)
    audited = [row for row in (*first, *then) if row["kind"] == "payment"]
    assert numbers(read_lines(tmp_path / "audit")) == numbers(audited)
    kept = [row for row in (*first, *then) if row["level"] >= 1]
    assert sum(pq.read_metadata(path).num_rows for path in (tmp_path / "archive").rglob("*.parquet")) == len(kept)
    lost = [row for row in (*first, *then) if row not in kept and row not in loud and row not in audited]
    assert numbers(read_lines(tmp_path / "unrouted")) == numbers(lost)
    [dead] = read_lines(tmp_path / "dead-letters")
    assert "device" in json.dumps(dead)
    sent = [msgspec.json.decode(message.value() or b"") for message in read_messages(kafka.bootstrap, "routed")]
    assert numbers(sent) == numbers(audited)
    newest = {row["device"]: row for row in sorted(kept, key=lambda row: str(row["at"]))}
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as there:
        hashes = {device: there.hgetall(f"device:{device}") for device in newest}
    assert {device: row["text"] for device, row in hashes.items()} == {
        device: row["text"] for device, row in newest.items()
    }
