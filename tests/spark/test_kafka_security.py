"""Source and sink log in at a broker with one set of options, and a login that is refused is told in words."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headrace as hr
from headrace.errors import HeadraceError, SettingsError, SinkFailed
from tests.services.kafka import PASSWORD, USER
from tests.services.messages import read_messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.services.kafka import Broker

pytestmark = pytest.mark.spark


class Number(hr.Record):
    n: int


def ways(broker: Broker) -> dict[str, dict[str, Any]]:
    """Each way to be let in, as a user writes it: once for the source and the sink."""
    login = {"sasl_username": USER, "sasl_password": hr.secret("KAFKA_PASSWORD")}
    certificate = str(broker.certificate)
    return {
        "plain": {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", **login},
        "scram": {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-512",
            "ssl_ca_location": certificate,
            **login,
        },
        "certificate": {
            "security_protocol": "SSL",
            "ssl_ca_location": certificate,
            "ssl_certificate_location": certificate,
            "ssl_key_location": str(broker.key),
        },
    }


def new_topic(broker: Broker) -> str:
    return broker.topic(f"t-{uuid.uuid4().hex[:12]}")


def send(broker: Broker, topic: str, numbers: range) -> None:
    broker.send(topic, *({"value": json.dumps({"n": n})} for n in numbers))


def contents(folder: Path) -> str:
    return repr([file.read_bytes() for file in folder.rglob("*") if file.is_file()])


def test_one_set_of_options_logs_in_source_and_sink_and_no_secret_is_seen(
    kafka: Broker,
    kafka_spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    caplog.set_level("DEBUG")
    app = hr.App("careful")
    outputs = {}
    for way, options in ways(kafka).items():
        brokers = kafka.at(options["security_protocol"])
        topic, outputs[way] = new_topic(kafka), new_topic(kafka)
        send(kafka, topic, range(20))
        rows = app.read(way, hr.source.kafka(topic, brokers=brokers, **options), Number)
        rows.write(hr.sink.kafka(outputs[way], brokers=brokers, **options), name=f"{way}_out")
    app.start(until="caught_up", store=tmp_path / "store", spark=kafka_spark, parallelism=1).wait()
    for way, topic in outputs.items():
        found = [json.loads(message.value() or b"")["n"] for message in read_messages(kafka.bootstrap, topic)]
        assert sorted(found) == list(range(20)), way
    key = kafka.key.read_text().splitlines()[1]
    seen = [app.explain(), caplog.text, *capfd.readouterr(), contents(tmp_path / "store")]
    assert not [text[:200] for text in seen if PASSWORD in text or repr(PASSWORD)[1:-1] in text or key in text]


def refused(app: hr.App, store: Path, session: SparkSession, kind: type[HeadraceError]) -> HeadraceError:
    with pytest.raises(kind) as caught:
        app.start(until="caught_up", store=store, spark=session, parallelism=1).wait()
    assert "wr0ng" not in f"{caught.value}{caught.value.__cause__}{contents(store)}"
    return caught.value


def test_a_wrong_password_is_told_by_source_and_sink(
    kafka: Broker, kafka_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "wr0ng")
    options = ways(kafka)["scram"]
    brokers = kafka.at(options["security_protocol"])
    topic = new_topic(kafka)
    app = hr.App("reading")
    app.read("rows", hr.source.kafka(topic, brokers=brokers, **options), Number).write(hr.sink.discard())
    told = refused(app, tmp_path / "one", kafka_spark, SettingsError)
    assert told.what == "the Kafka brokers refuse this client" and "sasl_password" in told.next_move
    assert "uthentication failed" in told.found

    app = hr.App("writing")
    rows = app.read("rows", hr.source.items([Number(1)]), Number)
    rows.write(hr.sink.kafka(topic, brokers=brokers, **options))
    told = refused(app, tmp_path / "two", kafka_spark, SinkFailed)
    assert "password" in told.next_move and "uthentication failed" in told.found


def test_a_broker_that_is_not_trusted_is_told_by_source_and_sink(
    kafka: Broker, kafka_spark: SparkSession, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"security_protocol": "SSL"}
    topic = new_topic(kafka)
    app = hr.App("reading")
    source = hr.source.kafka(topic, brokers=kafka.at("SSL"), **options)
    app.read("rows", source, Number).write(hr.sink.discard())
    told = refused(app, tmp_path / "one", kafka_spark, SettingsError)
    assert "SslAuthenticationException" in told.found and "ssl_ca_location" in told.next_move

    app = hr.App("writing")
    rows = app.read("rows", hr.source.items([Number(1)]), Number)
    rows.write(hr.sink.kafka(topic, brokers=kafka.at("SSL"), **options))
    told = refused(app, tmp_path / "two", kafka_spark, SinkFailed)
    assert "ssl_" in told.next_move
