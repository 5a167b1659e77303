"""Redis' protocol over state, asked with redis-py: every command, in both versions of the protocol."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from headrace.model.time import format_time
from headrace.serve.resp.commands import COMMANDS
from headrace.serve.resp.refusing import WRITING
from tests.serve.kinds import make_kinds, publish_kinds
from tests.serve.made_store import SECOND_US, START_US, MadeStore, lists, maps, values
from tests.serve.served import Served


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = make_kinds(tmp_path_factory.mktemp("resp") / "store")
    with Served(made.path) as server:
        server.wait_for(0)
        yield server


@pytest.fixture(params=[2, 3], ids=["resp2", "resp3"])
def client(served: Served, request: pytest.FixtureRequest) -> Iterator[Any]:
    with redis.Redis(port=served.port, protocol=request.param, decode_responses=True) as connected:
        yield connected


# --- reading


def test_values_are_json_text(client: Any) -> None:
    assert client.get("count.views:a") == "1"
    assert client.get("count.views:ü:x y") == "3"
    assert client.get("last:a") == '{"tweet":"a","n":3}'
    assert client.get("sizes:7") == '"seven"'
    assert client.get("sizes:-8") == '"eight"'
    assert client.get('pairs:["mill", 3]') == "1"


@pytest.mark.parametrize("key", ["count.views:none", "count.views", "count.views:", "sizes:x", "last:"])
def test_what_is_not_there_is_null(client: Any, key: str) -> None:
    assert client.get(key) is None
    assert client.exists(key) == 0
    assert client.type(key) == "none"
    assert client.hgetall(key) == {}
    assert client.lrange(key, 0, -1) == []
    assert client.ttl(key) == -2
    assert client.strlen(key) == 0
    assert client.mget(key, "count.views:a") == [None, "1"]


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("count.view:a", "no state 'count.view'; did you mean 'count.views'"),
        ("count:a", "no state 'count'; did you mean 'count.brief' or 'count.views'?"),
        ("sise:a", "no state 'sise'$"),
        ("none", "no state 'none'$"),
        (":", "no state ''$"),
    ],
)
def test_a_state_that_the_job_does_not_keep_is_an_error_that_names_near_ones(client: Any, key: str, words: str) -> None:
    for ask in (client.get, client.exists, client.type, client.hgetall, client.ttl, client.strlen, client.mget):
        with pytest.raises(redis.ResponseError, match=words):
            ask(key)
    # A subscription waits for a state that may come.
    with client.pubsub() as listener:
        listener.subscribe(key)


def test_messagepack_is_chosen_by_the_database(served: Served) -> None:
    with redis.Redis(port=served.port, db=1) as packed:
        assert msgspec.msgpack.decode(packed.get("last:a")) == {"tweet": "a", "n": 3}
        assert msgspec.msgpack.decode(packed.hget("fraud.shops:c1", "baker")) == 2
        assert [msgspec.msgpack.decode(each) for each in packed.lrange("fraud.recent:c1", 0, 0)] == ["first"]
    with redis.Redis(port=served.port, db=2) as wrong, pytest.raises(redis.ResponseError, match="out of range"):
        wrong.ping()


def test_several_keys_of_several_states_at_once(client: Any) -> None:
    keys = ["count.views:b", "last:a", "fraud.shops:c1", "last:x", "count.views:a", "count.views:b"]
    assert client.mget(keys) == ["2", '{"tweet":"a","n":3}', None, None, "1", "2"]
    many = [f"count.views:{key}" for key in [*"ab", *(str(i) for i in range(500))]]
    assert client.mget(many) == ["1", "2", *[None] * 500]
    assert client.exists("count.views:a", "count.views:a", "fraud.shops:c1", "last:x") == 3


def test_kinds_are_told_in_the_words_of_redis(client: Any) -> None:
    kinds = {"count.views:a": "string", "fraud.shops:c1": "hash", "fraud.recent:c1": "list", "fraud.checks:c1": "list"}
    assert {key: client.type(key) for key in kinds} == kinds
    assert client.strlen("last:a") == len('{"tweet":"a","n":3}')


def test_entries_of_a_map_and_fields_of_a_record_are_hashes(client: Any) -> None:
    assert client.hgetall("fraud.shops:c1") == {"baker": "2", "bank": "1"}
    assert client.hget("fraud.shops:c1", "baker") == "2"
    assert client.hget("fraud.shops:c1", "none") is None
    assert client.hmget("fraud.shops:c1", "bank", "none", "baker") == ["1", None, "2"]
    assert client.hmget("fraud.shops:c1", "bank") == ["1"]
    assert client.hkeys("fraud.shops:c1") == ["baker", "bank"]
    assert client.hvals("fraud.shops:c1") == ["2", "1"]
    assert (client.hlen("fraud.shops:c1"), client.hexists("fraud.shops:c1", "bank")) == (2, True)
    assert client.hstrlen("fraud.shops:c1", "bank") == 1
    assert client.hgetall("last:a") == {"tweet": '"a"', "n": "3"}
    assert client.hget("last:a", "n") == "3"


def test_lists_and_timers_are_lists(client: Any) -> None:
    assert client.llen("fraud.recent:c1") == 3
    assert client.lrange("fraud.recent:c1", 0, -1) == ['"first"', '"second"', '"third"']
    assert [client.lindex("fraud.recent:c1", place) for place in (0, -1, 3, -4)] == ['"first"', '"third"', None, None]
    assert client.lrange("fraud.checks:c1", 0, -1) == [f'"{format_time(START_US)}"']


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_key_of_very_many_entries_is_answered_whole(store_path: Path, protocol: int) -> None:
    made = MadeStore(store_path)
    entries, elements = {f"e{i}": i for i in range(7000)}, list(range(5000))
    made.epoch(
        {
            "big": [
                maps("map", [("k", *entry) for entry in entries.items()]),
                lists("list", [("k", i, i) for i in elements]),
            ]
        }
    )
    made.epoch({"big": [maps("map", [("k", f"e{i}", None) for i in range(0, 7000, 2)])]})
    left = {name: str(i) for name, i in entries.items() if i % 2}
    with Served(made.path) as served, redis.Redis(port=served.port, protocol=protocol, decode_responses=True) as client:
        served.wait_for(1)
        assert client.hgetall("big.map:k") == left
        assert client.hlen("big.map:k") == len(left)
        assert sorted(client.hkeys("big.map:k")) == sorted(left)
        assert sorted(client.hvals("big.map:k")) == sorted(left.values())
        assert client.hmget("big.map:k", "e1", "e2", "e3") == ["1", None, "3"]
        assert dict(client.hscan_iter("big.map:k", match="e699?")) == {
            f"e{i}": str(i) for i in (6991, 6993, 6995, 6997, 6999)
        }
        assert client.llen("big.list:k") == 5000
        assert client.lrange("big.list:k", -2, -1) == ["4998", "4999"]
        for start, stop in [
            (0, 2),
            (1999, 2001),
            (3990, 9000),
            (-5001, 1),
            (5000, 6000),
            (7, 3),
            (0, -4999),
            (9, -9000),
        ]:
            last = stop + 5000 if stop < 0 else stop
            chosen = elements[max(0, start + 5000) if start < 0 else start : max(0, last + 1)]
            assert client.lrange("big.list:k", start, stop) == [str(i) for i in chosen], (start, stop)
        places = {4000: "4000", -1: "4999", -5000: "0", 5000: None, -5001: None, 1999: "1999", 2000: "2000"}
        assert {place: client.lindex("big.list:k", place) for place in places} == places
        with client.pipeline(transaction=False) as pipeline:
            pipeline.hget("big.map:none", "x").hlen("big.map:k").hget("big.map:none", "x").llen("big.list:k").ping()
            assert pipeline.execute() == [None, len(left), None, 5000, True], "answers keep their order"


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 0), (0, 1), (1, 9), (-2, -1), (-9, 1), (2, 1), (5, 9), (0, -9), (-1, -2), (-9, -9), (0, -3)]
)
def test_ranges_are_those_of_redis(client: Any, start: int, stop: int) -> None:
    elements = ['"first"', '"second"', '"third"']
    first = max(0, start + 3) if start < 0 else start
    last = stop + 3 if stop < 0 else stop
    assert client.lrange("fraud.recent:c1", start, stop) == [
        each for i, each in enumerate(elements) if first <= i <= last
    ]


@pytest.mark.parametrize(
    "ask",
    [
        lambda c: c.get("fraud.shops:c1"),
        lambda c: c.get("fraud.recent:c1"),
        lambda c: c.strlen("fraud.shops:c1"),
        lambda c: c.hgetall("count.views:a"),
        lambda c: c.hget("count.views:a", "x"),
        lambda c: c.hlen("fraud.recent:c1"),
        lambda c: c.llen("count.views:a"),
        lambda c: c.lrange("fraud.shops:c1", 0, -1),
    ],
)
def test_the_wrong_kind_is_told_as_redis_does(client: Any, ask: Any) -> None:
    with pytest.raises(redis.ResponseError, match="WRONGTYPE Operation against a key holding the wrong kind"):
        ask(client)


def test_values_that_expire_tell_when(served: Served) -> None:
    with redis.Redis(port=served.port) as client:
        assert client.get("count.brief:over") is None
        assert client.expiretime("count.brief:soon") == START_US // SECOND_US + 60
        assert client.ttl("count.brief:soon") == 0, "by the clock of today it is long over"
        assert client.ttl("count.brief:ever") == -1
        assert client.ttl("count.brief:over") == -2
        assert client.pttl("count.views:a") == -1
        assert client.expiretime("count.brief:over") == -2


# --- walking


def test_scan_gives_every_key_of_every_state_once(client: Any) -> None:
    expected = {
        "count.views:a", "count.views:b", "count.views:ü:x y", "count.brief:soon", "count.brief:ever", "fraud.shops:c1",
        "fraud.shops:c2", "fraud.recent:c1", "fraud.checks:c1", "last:a", "sizes:7", "sizes:-8", 'pairs:["mill", 3]',
    }  # fmt: skip
    for count in (1, 10, 1000):
        found = list(client.scan_iter(count=count))
        assert (set(found), len(found)) == (expected, len(expected))
    assert set(client.keys("*")) == expected
    assert client.dbsize() == len(expected)


def test_scan_matches_patterns_and_kinds(client: Any) -> None:
    assert sorted(client.scan_iter("count.views:*")) == ["count.views:a", "count.views:b", "count.views:ü:x y"]
    assert sorted(client.scan_iter("*:c1")) == ["fraud.checks:c1", "fraud.recent:c1", "fraud.shops:c1"]
    assert sorted(client.scan_iter("fraud.*:c[12]", _type="HASH")) == ["fraud.shops:c1", "fraud.shops:c2"]
    assert list(client.scan_iter("count.views:a")) == ["count.views:a"]
    assert list(client.scan_iter("nothing*")) == []
    assert sorted(client.keys("count.views:[ab]")) == ["count.views:a", "count.views:b"]
    assert client.keys("c*t.views:?") == client.keys("count.views:?")


def test_hscan_gives_the_entries_of_a_key(client: Any) -> None:
    assert dict(client.hscan_iter("fraud.shops:c1")) == {"baker": "2", "bank": "1"}
    assert dict(client.hscan_iter("fraud.shops:c1", match="bak*")) == {"baker": "2"}


def test_a_cursor_is_good_in_a_later_epoch(store_path: Path) -> None:
    made = MadeStore(store_path)
    made.epoch({"count": [values("views", [(f"k{i}", 0) for i in range(2000)])]})
    with Served(made.path) as served, redis.Redis(port=served.port, decode_responses=True) as client:
        served.wait_for(0)
        cursor, found = client.scan(0, count=50)
        while cursor:
            if made.next_epoch < 5:
                number = made.next_epoch
                made.epoch({"count": [values("views", [(f"k{i}", None if i < 100 else number) for i in range(2000)])],
                            f"step{number}": [values("other", [("x", 1)])]})  # fmt: skip
                served.wait_for(number)
            cursor, page = client.scan(cursor, count=50)
            found += page
        stable = [key for key in found if key.startswith("count.views:") and int(key.partition(":k")[2]) >= 100]
        assert sorted(stable) == sorted(f"count.views:k{i}" for i in range(100, 2000))


@pytest.mark.parametrize(
    "words",
    [
        "SCAN x",
        "SCAN -1",
        "SCAN 0 COUNT 0",
        "SCAN 0 WHAT 1",
        "SCAN 0 MATCH",
        f"SCAN {2**70}",
        "LRANGE fraud.recent:c1 a 1",
    ],
)
def test_wrong_options_are_told(client: Any, words: str) -> None:
    with pytest.raises(redis.ResponseError, match="syntax error|invalid cursor|not an integer"):
        client.execute_command(*words.split())


# --- what cannot be done


@pytest.mark.parametrize("name", sorted(word.decode() for word in WRITING))
def test_commands_that_write_are_refused_with_the_reason(served: Served, name: str) -> None:
    refused = pytest.raises(redis.ReadOnlyError, match="state is written by the stream job alone")
    with redis.Redis(port=served.port) as client, refused:
        client.execute_command(name, "key", "value")


def test_unknown_commands_and_wrong_arguments_are_told_as_redis_does(client: Any) -> None:
    with pytest.raises(redis.ResponseError, match="^unknown command 'NOPE', with args beginning with: 'a' 'b' "):
        client.execute_command("NOPE", "a", "b")
    with pytest.raises(redis.ResponseError, match="wrong number of arguments for 'get' command"):
        client.execute_command("GET")
    with pytest.raises(redis.ResponseError, match="wrong number of arguments for 'get' command"):
        client.execute_command("get", "a", "b")
    with pytest.raises(redis.ResponseError, match="unknown subcommand"):
        client.execute_command("CLIENT", "NOPE")


def test_no_word_is_both_a_command_and_refused() -> None:
    assert not WRITING & set(COMMANDS)


# --- about itself


def test_info_tells_epoch_age_watermark_and_lag(client: Any) -> None:
    info = client.info()
    assert (info["app"], info["epoch"], info["lag_epochs"], info["loading"]) == ("tweets", 0, 0, 0)
    assert info["watermark_count"] == "2024-01-01T11:59:59Z"
    assert info["age_ms"] > 0
    assert info["role"] == "slave"
    assert info["db0"]["keys"] == 13
    assert set(client.info("headrace")) >= {"epoch", "timeline", "published"}
    assert "redis_version" not in client.info("headrace")


def test_own_commands_tell_epoch_and_states(client: Any) -> None:
    assert client.execute_command("HEADRACE.EPOCH") == 0
    told = client.execute_command("HEADRACE.INFO")
    told = told if isinstance(told, dict) else dict(zip(told[::2], told[1::2]))
    assert (told["epoch"], told["lag_epochs"]) == (0, 0)
    states = client.execute_command("HEADRACE.STATES")
    assert set(states if isinstance(states, dict) else states[::2]) == {
        "count.views", "count.brief", "fraud.shops", "fraud.recent", "fraud.checks", "last", "sizes", "pairs"
    }  # fmt: skip


def test_commands_are_listed_with_their_arity_and_keys(client: Any) -> None:
    assert client.command_count() == len(COMMANDS) == len(client.command_list())
    told = client.command()
    assert (told["get"]["arity"], told["get"]["first_key_pos"], told["mget"]["last_key_pos"]) == (2, 1, -1)
    assert client.command_getkeys("MGET", "a", "b") == ["a", "b"]


def test_commands_are_described(served: Served) -> None:
    connection = redis.Connection(port=served.port, protocol=3, socket_timeout=90)
    connection.send_command("COMMAND", "DOCS", "get", "nope")
    docs = connection.read_response()
    assert docs[b"get"][b"summary"] == b"The value of a key."
    connection.send_command("COMMAND", "INFO", "get", "nope")
    [get, nope] = connection.read_response()
    assert (get[:2], nope) == ([b"get", 2], None)
    connection.disconnect()


@pytest.mark.parametrize("name", ["COMMAND", "CLIENT", "CONFIG", "PUBSUB"])
def test_errors_of_subcommands_point_to_help_that_is_there(served: Served, name: str) -> None:
    connection = redis.Connection(port=served.port, socket_timeout=90)
    connection.send_command(name, "NOPE")
    with pytest.raises(redis.ResponseError, match=f"Try {name} HELP"):
        connection.read_response()
    connection.send_command(name, "HELP")
    told = connection.read_response()
    assert told[0].startswith(f"{name} <subcommand>".encode())
    assert told[-2:] == [b"HELP", b"    Prints this help."]
    connection.disconnect()


def test_settings_that_clients_ask_for_are_told(client: Any) -> None:
    assert client.config_get("databases") == {"databases": "2"}
    assert client.config_get("max*")["maxclients"] == "10000"
    with pytest.raises(redis.ResponseError, match="given when it is started"):
        client.config_set("maxclients", 1)


def test_clients_name_themselves(served: Served) -> None:
    with redis.Redis(port=served.port, client_name="me", decode_responses=True) as client:
        assert client.client_getname() == "me"
        assert client.client_setname("you")
        mine = client.client_info()
        assert (mine["name"], mine["id"], mine["user"]) == ("you", client.client_id(), "default")
        assert mine["id"] in [int(each["id"]) for each in client.client_list()]
        assert client.client_no_evict("on")
        with pytest.raises(redis.ResponseError, match="cannot contain spaces"):
            client.client_setname("a b")
        assert client.echo("x") == "x"
        assert client.ping()
        assert client.time()[0] > 1_700_000_000
        assert client.acl_whoami() == "default"


def test_reset_and_quit_end_what_they_say(served: Served) -> None:
    connection = redis.Connection(port=served.port, socket_timeout=90)
    for words, answer in [
        (("SELECT", 1), b"OK"),
        (("RESET",), b"RESET"),
        (("GET", "count.views:a"), b"1"),
        (("QUIT",), b"OK"),
    ]:
        connection.send_command(*words)
        assert connection.read_response() == answer
    with pytest.raises(redis.ConnectionError):
        connection.read_response()
    connection.disconnect()


# --- transactions and pipelines


def test_a_pipeline_is_answered_in_order(client: Any) -> None:
    with client.pipeline(transaction=False) as pipeline:
        for _ in range(200):
            pipeline.get("count.views:a").hgetall("fraud.shops:c1").get("last:x").lrange("fraud.recent:c1", 0, 0)
        expected = ["1", {"baker": "2", "bank": "1"}, None, ['"first"']]
        assert pipeline.execute() == expected * 200


def test_a_transaction_is_answered_from_one_epoch(store_path: Path) -> None:
    made = MadeStore(store_path)
    made.epoch({"count": [values("views", [("a", 0), ("b", 0)])]})
    stop = threading.Event()

    def publish() -> None:
        while not stop.is_set():
            number = made.next_epoch
            made.epoch({"count": [values("views", [("a", number), ("b", number)])]}, full=number % 8 == 0)

    with Served(made.path) as served, redis.Redis(port=served.port) as client:
        served.wait_for(0)
        writer = threading.Thread(target=publish)
        writer.start()
        try:
            seen = set()
            while len(seen) < 5:
                with client.pipeline() as pipeline:
                    pipeline.get("count.views:a").execute_command("HEADRACE.EPOCH").get("count.views:b")
                    a, epoch, b = pipeline.execute()
                assert int(a) == epoch == int(b)
                seen.add(epoch)
        finally:
            stop.set()
            writer.join()


def test_a_transaction_with_a_mistake_in_it_is_refused(client: Any) -> None:
    with client.pipeline() as pipeline:
        pipeline.get("count.views:a").set("x", 1)
        with pytest.raises(redis.ResponseError, match="state is written by the stream job"):
            pipeline.execute()
    with client.pipeline() as pipeline:
        pipeline.get("count.views:a").get("fraud.shops:c1")
        assert isinstance(pipeline.execute(raise_on_error=False)[1], redis.ResponseError)


# --- before the first epoch


def test_until_something_is_published_readers_are_told_to_wait(store_path: Path) -> None:
    with Served(store_path) as served, redis.Redis(port=served.port, retry=None, socket_timeout=90) as client:
        assert client.ping()
        with pytest.raises(redis.BusyLoadingError):
            client.get("count.views:a")
        assert client.info("persistence")["loading"] == 1
        with client.pipeline() as pipeline:
            pipeline.get("count.views:a").hgetall("fraud.shops:c1").exists("count.views:a")
            with pytest.raises(redis.BusyLoadingError):
                pipeline.execute()
        with socket.create_connection(("127.0.0.1", served.port)) as plain:
            plain.sendall(b"MULTI\r\nPING\r\nGET count.views:a\r\nEXEC\r\nQUIT\r\n")
            told = [line.partition(b" ")[0] for line in plain.makefile("rb").read().splitlines()]
            assert told == [b"+OK", b"+QUEUED", b"-LOADING", b"-EXECABORT", b"+OK"]
        made = MadeStore(store_path)
        with pytest.raises(redis.BusyLoadingError):
            client.get("count.views:a")
        publish_kinds(made)
        served.wait_for(0)
        assert client.get("count.views:a") == b"1"


# --- waiting


def test_a_reader_waits_for_an_epoch_or_for_its_own_event(store_path: Path) -> None:
    made = make_kinds(store_path)
    with Served(made.path) as served, redis.Redis(port=served.port) as client:
        served.wait_for(0)
        assert client.execute_command("HEADRACE.WAIT", 0, 1000) == 0
        assert client.execute_command("HEADRACE.WAIT", 1, 20) is None
        assert client.execute_command("HEADRACE.WAIT", "views", '{"topic": {"0": 12}}', 1000) == 0
        assert client.execute_command("HEADRACE.WAIT", "views", '{"topic": {"0": 13}}', 20) is None
        answers = []

        def wait() -> None:
            with redis.Redis(port=served.port) as other:
                answers.append(other.execute_command("HEADRACE.WAIT", 1, 60_000))

        waiting = threading.Thread(target=wait)
        waiting.start()
        served.until(lambda: bool(served.service._waiting))
        made.epoch({"count": [values("views", [("a", 5)])]})
        waiting.join(60)
        assert answers == [1]
        assert client.get("count.views:a") == b"5"
        for wrong in (("x", 1), ("views", "{", 1), (1, -5), (1, 10**9), (1, 2, 3, 4)):
            with pytest.raises(redis.ResponseError):
                client.execute_command("HEADRACE.WAIT", *wrong)
