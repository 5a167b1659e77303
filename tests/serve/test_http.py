"""State over HTTP: what can be asked, in which forms, and what answers say of themselves."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest

import headrace as hr
from headrace.model.keys import encode_key
from headrace.serve.http.app import ROUTES
from headrace.serve.http.openapi import OPERATIONS
from tests.serve.served import Served
from tests.serve.tweets import Tweets, fetch

pytestmark = pytest.mark.filterwarnings("ignore::headrace.HeadraceWarning")
STATE = "/v1/jobs/tweets/state"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Two epochs: the first with one view of each of a, b and a/b, the second with more of a."""
    path = tmp_path_factory.mktemp("http") / "store"
    with Tweets(path) as tweets:
        tweets.push(("a", "12:01", 1), ("b", "12:02", 2), ("a/b ü", "12:03", 3))
        tweets.push(("a", "12:10", 5), ("a", "13:10", 7), watermark="13:05")
        with Served(path) as server:
            server.wait_for(1)
            yield server


def test_a_value_is_the_body_and_its_epoch_is_in_the_headers(served: Served) -> None:
    answer = fetch(served.url, f"{STATE}/watch.seen/a")
    assert (answer.status, answer.body, answer.headers["content-type"]) == (200, b"3", "application/json")
    assert answer.headers["headrace-epoch"] == "1"
    assert answer.headers["headrace-timeline"] == "0"
    assert answer.headers["headrace-watermark"] == "2024-01-01T13:05:00Z"
    assert int(answer.headers["headrace-age-ms"]) >= 0


def test_curl_reads_a_value(served: Served) -> None:
    done = subprocess.run(
        ["curl", "-sS", "--fail", f"{served.url}{STATE}/totals/a"], capture_output=True, check=True, timeout=60
    )
    assert json.loads(done.stdout) == {"tweet": "a", "views": 3, "mean": 13 / 3}


def test_values_of_every_kind_can_be_read(served: Served) -> None:
    assert fetch(served.url, f"{STATE}/watch.sizes/a").json == {"1": 1, "5": 1, "7": 1}
    assert fetch(served.url, f"{STATE}/watch.recent/a").json == [1, 5, 7]
    assert fetch(served.url, f"{STATE}/last/b").json["n"] == 2
    assert fetch(served.url, f"{STATE}/hourly/a").json["impressions"] == 7


def test_keys_may_hold_anything_and_need_not_be_text(served: Served) -> None:
    assert fetch(served.url, f"{STATE}/watch.seen/{quote('a/b ü', safe='')}").json == 1
    assert fetch(served.url, f"{STATE}/by_size/5").json["views"] == 1
    pair = quote(json.dumps(["a", 5]), safe="")
    assert fetch(served.url, f"{STATE}/by_pair/{pair}").json["views"] == 1
    wrong = fetch(served.url, f"{STATE}/by_size/five")
    assert (wrong.status, wrong.json["error"]["found"]) == (400, "'five'")


def test_messagepack_is_given_where_it_is_asked_for(served: Served) -> None:
    answer = fetch(served.url, f"{STATE}/watch.sizes/a", Accept="application/msgpack")
    assert answer.headers["content-type"] == "application/msgpack"
    assert answer.packed == {1: 1, 5: 1, 7: 1}
    assert fetch(served.url, f"{STATE}/watch.raw/a", Accept="application/msgpack").packed == b"\x00\xff"


def test_windows_of_a_key_are_told_one_by_one(served: Served) -> None:
    windows = fetch(served.url, f"{STATE}/hourly/a/windows").json
    assert [(each["start"], each["value"]["impressions"]) for each in windows] == [
        ("2024-01-01T12:00:00Z", 6), ("2024-01-01T13:00:00Z", 7),
    ]  # fmt: skip
    window = "2024-01-01T12:00:00Z/2024-01-01T13:00:00Z"
    assert fetch(served.url, f"{STATE}/hourly/a?window={window}").json["impressions"] == 6
    micros = f"{hr.timestamp('2024-01-01T12:00')}/{hr.timestamp('2024-01-01T13:00')}"
    assert fetch(served.url, f"{STATE}/hourly/a?window={micros}").json["impressions"] == 6
    assert fetch(served.url, f"{STATE}/hourly/a?window=2024-01-01/2024-01-02").status == 404
    assert fetch(served.url, f"{STATE}/hourly/a?window=noon").status == 400
    assert fetch(served.url, f"{STATE}/totals/a/windows").json["error"]["what"] == "this state has no windows"


def test_many_keys_are_answered_in_the_order_asked(served: Served) -> None:
    answer = fetch(served.url, f"{STATE}/watch.seen/get", "POST", {"keys": ["b", "nobody", "a", "b"]})
    assert answer.json == {"state": "watch.seen", "epoch": 1, "values": [1, None, 3, 1]}
    pairs = fetch(served.url, f"{STATE}/by_pair/get", "POST", {"keys": [["a", 5], '["b", 2]']})
    assert [value["views"] for value in pairs.json["values"]] == [1, 1]
    body = msgspec.msgpack.encode({"keys": [encode_key(("a", 5))]})
    packed = fetch(
        served.url,
        f"{STATE}/by_pair/get",
        "POST",
        body,
        Content_Type="application/msgpack",
        Accept="application/msgpack",
    )
    assert packed.packed["values"][0]["views"] == 1


def test_a_key_that_is_not_there_is_told_with_the_epoch_it_is_missing_in(served: Served) -> None:
    answer = fetch(served.url, f"{STATE}/watch.seen/nobody")
    assert (answer.status, answer.headers["headrace-epoch"]) == (404, "1")
    assert set(answer.json["error"]) == {"status", "what", "where", "found", "next_move"}


def test_errors_have_parts_and_name_what_is_there(served: Served) -> None:
    state = fetch(served.url, f"{STATE}/hurly/a").json["error"]
    assert (state["found"], "hourly" in state["expected"]) == ("hurly", True)
    assert fetch(served.url, "/v1/jobs/other/state").json["error"]["expected"] == "tweets"
    assert fetch(served.url, f"{STATE}/hourly?limits=5").json["error"]["found"] == "limits"
    assert fetch(served.url, f"{STATE}/hourly?limit=0").json["error"]["expected"] == "a number from 1 to 10000"
    assert fetch(served.url, "/v2").status == 404
    refused = fetch(served.url, f"{STATE}/hourly/a", "DELETE")
    assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD")


def test_jobs_states_and_epochs_are_listed(served: Served) -> None:
    [job] = fetch(served.url, "/v1/jobs").json["jobs"]
    assert (job["app"], job["epoch"]) == ("tweets", 1)
    assert fetch(served.url, "/v1/jobs/tweets").json["watermarks"]["hourly"] == "2024-01-01T13:05:00Z"
    states = {told["state"]: told["kind"] for told in fetch(served.url, STATE).json["states"]}
    assert states["hourly"] == "windows"
    assert (states["watch.sizes"], states["watch.recent"], states["watch.seen"]) == ("map", "list", "value")
    told = fetch(served.url, f"{STATE}/watch.seen?count=true").json
    assert (told["state"], told["keys"]) == ("watch.seen", 3)
    epochs = fetch(served.url, "/v1/jobs/tweets/epochs?limit=1").json["epochs"]
    assert [(each["epoch"], each["published"]) for each in epochs] == [(1, epochs[0]["published"])]


def test_pages_cover_every_key_once(served: Served) -> None:
    found: list[str] = []
    after = ""
    while after is not None:
        page = fetch(served.url, f"{STATE}/watch.seen?limit=1&after={after or 0}").json
        found += [entry["key"] for entry in page["entries"]]
        after = page["next"]
    assert sorted(found) == ["a", "a/b ü", "b"]
    some = fetch(served.url, f"{STATE}/watch.seen?prefix=a%2F").json
    assert (some["entries"], some["next"]) == ([{"key": "a/b ü", "value": 1}], None)
    sizes = fetch(served.url, f"{STATE}/by_size?limit=10").json["entries"]
    assert sorted(entry["key"] for entry in sizes) == [1, 2, 3, 5, 7]


def test_an_answer_that_is_known_already_is_not_sent_again(served: Served) -> None:
    first = fetch(served.url, f"{STATE}/watch.seen/a")
    again = fetch(served.url, f"{STATE}/watch.seen/a", If_None_Match=first.headers["etag"])
    assert (again.status, again.body, again.headers["headrace-epoch"]) == (304, b"", "1")
    assert fetch(served.url, f"{STATE}/watch.seen/a", If_None_Match='W/"0-x"').status == 200


def test_a_head_request_has_the_headers_and_no_body(served: Served) -> None:
    answer = fetch(served.url, f"{STATE}/watch.seen/a", "HEAD")
    assert (answer.status, answer.body, answer.headers["content-length"]) == (200, b"", "1")
    export = fetch(served.url, f"{STATE}/watch.seen?format=parquet", "HEAD")
    assert (export.status, export.headers["content-type"]) == (200, "application/vnd.apache.parquet")


def test_a_past_epoch_is_read_while_it_is_kept(served: Served) -> None:
    assert fetch(served.url, f"{STATE}/watch.seen/a?at=0").json == 1
    assert fetch(served.url, f"{STATE}/watch.seen/a?at=0").headers["headrace-epoch"] == "0"
    assert fetch(served.url, f"{STATE}/watch.seen/a?at=9").status == 404
    assert fetch(served.url, f"{STATE}/watch.seen/a?at=0&wait_epoch=1").status == 400


def test_the_description_names_every_route_and_every_route_is_described(served: Served) -> None:
    document = fetch(served.url, "/openapi.json").json
    described = {(method.upper(), path) for path, each in document["paths"].items() for method in each}
    assert described == set(ROUTES) == {(each.method, each.path) for each in OPERATIONS}
    page = fetch(served.url, "/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert b"/v1/jobs/{app}/state/{address}/{key}" in page.body
    assert b"http://" not in page.body and b"https://" not in page.body


def test_a_server_on_loopback_does_not_go_by_names_that_web_pages_give_it(tmp_path: Path) -> None:
    with Tweets(tmp_path / "store") as tweets, Served(tmp_path / "store", hosts=("127.0.0.1",)) as served:
        served.wait_for(tweets.push(("a", "12:01", 1)))
        assert fetch(served.url, "/v1/jobs", Host="evil.example:8399").status == 421
        assert fetch(served.url, "/v1/jobs", Host="localhost:8399").status == 200
        assert fetch(served.url, "/v1/jobs", Host="[::1]:8399").status == 200
        assert "access-control-allow-origin" not in fetch(served.url, "/v1/jobs", Origin="https://a.example").headers


def test_web_pages_that_are_named_may_read(tmp_path: Path) -> None:
    with Tweets(tmp_path / "store") as tweets, Served(tmp_path / "store", origins=("https://a.example",)) as served:
        served.wait_for(tweets.push(("a", "12:01", 1)))
        answer = fetch(served.url, "/v1/jobs", Origin="https://a.example")
        assert answer.headers["access-control-allow-origin"] == "https://a.example"
        assert "Headrace-Epoch" in answer.headers["access-control-expose-headers"]
        assert "access-control-allow-origin" not in fetch(served.url, "/v1/jobs", Origin="https://b.example").headers


def test_who_waits_for_an_offset_waits_for_the_first_epoch_too(tmp_path: Path) -> None:
    with Tweets(tmp_path / "store") as tweets, Served(tmp_path / "store") as served:
        answers = []
        path = f"{STATE}/watch.seen/a?wait_offset=%7B%7D&timeout=60s"
        reader = threading.Thread(target=lambda: answers.append(fetch(served.url, path)))
        reader.start()
        served.until(lambda: len(served.service._waiting) == 1)
        tweets.push(("a", "12:01", 1))
        reader.join(60)
        assert [(answer.status, answer.json) for answer in answers] == [(200, 1)]
    with Served(tmp_path / "nothing") as served:
        early = fetch(served.url, f"{STATE}/watch.seen/a?wait_offset=%7B%7D&timeout=10ms")
        assert (early.status, early.json["error"]["found"]) == (504, "no epoch yet")


def test_a_reader_waits_for_the_epoch_it_wrote(tmp_path: Path) -> None:
    with Tweets(tmp_path / "store") as tweets, Served(tmp_path / "store") as served:
        assert fetch(served.url, "/health").status == 503
        assert fetch(served.url, f"{STATE}/watch.seen/a").headers["retry-after"] == "1"
        served.wait_for(tweets.push(("a", "12:01", 1)))
        assert fetch(served.url, "/health").json == {"status": "ok", "lag_epochs": 0}
        answers = []
        path = f"{STATE}/watch.seen/a?wait_epoch=1&timeout=60s"
        reader = threading.Thread(target=lambda: answers.append(fetch(served.url, path)))
        reader.start()
        tweets.push(("a", "12:02", 1))
        reader.join(60)
        assert [(answer.json, answer.headers["headrace-epoch"]) for answer in answers] == [(2, "1")]
        early = fetch(served.url, f"{STATE}/watch.seen/a?wait_epoch=7&timeout=10ms")
        assert (early.status, early.json["error"]["found"]) == (504, "epoch 1")
        assert fetch(served.url, f"{STATE}/watch.seen/a?wait_epoch=1&timeline=0&timeout=0").status == 200
        assert fetch(served.url, f"{STATE}/watch.seen/a?wait_epoch=1&timeline=1&timeout=0").status == 504
        assert fetch(served.url, f"{STATE}/watch.seen/a?wait_epoch=1&timeout=2h").status == 400
