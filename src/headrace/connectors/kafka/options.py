"""How a Kafka source is asked for in the words of Spark's connector: brokers, topics, where to start, security.

Options are named as in `hr.sink.kafka`, so one set serves both: the names of librdkafka (``sasl_username``,
``ssl_ca_location``), with underscores for dots. The JVM's client knows some of them under other names or in another
form; they are put into its words here. Every other option goes through under its own name.

Nothing here connects to a broker. What must not be seen is `HiddenText` from the moment it is put together.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from headrace.connectors.source_contract import Passage
from headrace.connectors.spark.source import option_text
from headrace.errors import ProgramError
from headrace.model.time import timestamp

_WORDS: Final = {"earliest": -2, "latest": -1}
"""How Spark's connector spells them where it wants numbers."""

_OWNED: Final = {
    "bootstrap.servers": "brokers=",
    "subscribe": "the topics, or pattern=",
    "subscribepattern": "pattern=",
    "assign": "the topics: a source reads all partitions of a topic",
    "startingoffsets": "start=",
    "startingtimestamp": "start=",
    "startingoffsetsbytimestamp": "start=",
    "endingoffsets": 'app.run(until="caught_up")',
    "maxoffsetspertrigger": "max_per_epoch=",
    "failondataloss": "on_data_loss=",
    "minpartitions": "more partitions in the topic: one task reads a partition, so that its messages stay in order",
    "maxrecordsperpartition": "max_per_epoch=",
    "includeheaders": "headers=",
    "group.id": "nothing: offsets are kept in the store, and no consumer group is used",
    "auto.offset.reset": "start=",
    "enable.auto.commit": "nothing: offsets are kept in the store",
    "key.deserializer": "key=, with the field's type",
    "value.deserializer": "format=",
}
"""Options that the source sets itself, in small letters → what to use instead."""

_LOGIN_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_HIDE: Final = re.compile(r"password|jaas|secret|token|\.key$")


class HiddenText(str):
    """Text for Spark that must not be seen; its repr does not show it."""

    def __repr__(self) -> str:
        return "<hidden>"


def broker_list(brokers: str | Sequence[str], where: str) -> str:
    """The brokers as one text; the text given, where it was one, so that a secret stays hidden."""
    if isinstance(brokers, str):
        listed = brokers
    else:
        listed = ",".join(brokers)
    if not listed.strip():
        raise ProgramError(
            "there are no brokers to connect to",
            where=where,
            expected='brokers="host:9092", several with commas between them or as a list',
            found=repr(brokers),
            next_move='give them, or take them from outside: brokers=hr.var("brokers", "localhost:9092")',
        )
    return listed


def check_options(options: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Options by their names with dots, without those that are None; one that the source sets itself is refused."""
    checked = {}
    for given, value in options.items():
        name = _kafka_spelling(given)
        instead = _OWNED.get(name.removeprefix("kafka.").lower())
        if instead is not None:
            raise ProgramError(
                f"the option {given} is set by the source itself",
                where=where,
                expected="options of Kafka's consumer, or of Spark's connector",
                found=given,
                next_move=f"use {instead}",
            )
        if value is not None:
            checked[name] = value
    return checked


def _kafka_spelling(name: str) -> str:
    """Kafka's spelling of an option; names with a capital letter are those of Spark's connector, and stay.

    >>> _kafka_spelling("sasl_username"), _kafka_spelling("kafka.client.id"), _kafka_spelling("groupIdPrefix")
    ('sasl.username', 'client.id', 'groupIdPrefix')
    """
    return name if re.search("[A-Z]", name) else name.replace("_", ".").removeprefix("kafka.")


def client_options(given: Mapping[str, Any], where: str) -> dict[str, str]:
    """Options as Spark's connector takes them. Reads files of certificates, so it is called at the start of a run."""
    left = {name: _text(name, value) for name, value in given.items()}
    made = {**_login(left, where), **_trust(left, where), **_identity(left, where)}
    client = {f"kafka.{name}": value for name, value in {**left, **made}.items() if not re.search("[A-Z]", name)}
    return {**client, **{name: value for name, value in left.items() if re.search("[A-Z]", name)}}


def _text(name: str, value: Any) -> str:
    text = option_text(value)
    # A secret is text that hides itself, and is to stay that.
    return HiddenText(str.__str__(text)) if type(text) is not str or _HIDE.search(name) else text


def _login(left: dict[str, str], where: str) -> dict[str, str]:
    """A name and a password, as the JVM's client wants them."""
    mechanism = left.pop("sasl.mechanisms", None) or left.pop("sasl.mechanism", None)
    made = {} if mechanism is None else {"sasl.mechanism": mechanism}
    name, password = left.pop("sasl.username", None), left.pop("sasl.password", None)
    if name is None and password is None:
        return made
    module = _LOGIN_MODULES.get((mechanism or "PLAIN").upper())
    if name is None or password is None or module is None:
        raise ProgramError(
            "the login at the brokers is not complete",
            where=where,
            expected=f"sasl_username, sasl_password, and sasl_mechanism as one of {', '.join(_LOGIN_MODULES)}",
            found=", ".join(
                [*([] if name is None else ["sasl_username"]), *([] if password is None else ["sasl_password"])]
            )
            + (f", sasl_mechanism={mechanism!r}" if mechanism else ""),
            next_move="give all three, or sasl_jaas_config for another way to log in",
        )
    login = f"{module} required username={_quoted(name)} password={_quoted(password)};"
    return {"sasl.mechanism": mechanism or "PLAIN", "sasl.jaas.config": HiddenText(login)}


def _quoted(value: str) -> str:
    plain = str.__str__(value)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _trust(left: dict[str, str], where: str) -> dict[str, str]:
    """Whom to trust: the text of the certificates, so that no executor needs the file."""
    path = left.pop("ssl.ca.location", None)
    if path is None:
        return {}
    return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": _read(path, "ssl_ca_location", where)}


def _identity(left: dict[str, str], where: str) -> dict[str, str]:
    """Who we are, where the brokers want a certificate."""
    chain, key = left.pop("ssl.certificate.location", None), left.pop("ssl.key.location", None)
    if chain is None or key is None:
        return {}
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": _read(chain, "ssl_certificate_location", where),
        "ssl.keystore.key": HiddenText(_read(key, "ssl_key_location", where)),
    }


def _read(path: str, option: str, where: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ProgramError(
            f"the file of {option} cannot be read",
            where=where,
            expected="a file with PEM text on the driver's machine",
            found=f"{path}: {error.strerror or error}",
            next_move="correct the path",
        ) from error


def start_options(start: Any, topics: Sequence[str], where: str) -> dict[str, str]:
    """Where the first run of a store begins, as options of Spark's connector; later runs go on where they were.

    >>> start_options("latest", ["clicks"], "")
    {'startingOffsets': 'latest'}
    >>> start_options({0: 17, 1: "earliest"}, ["clicks"], "")
    {'startingOffsets': '{"clicks": {"0": 17, "1": -2}}'}
    """
    if isinstance(start, str) and start in _WORDS:
        return {"startingOffsets": start}
    if isinstance(start, Mapping):
        return {"startingOffsets": json.dumps(_offsets(start, topics, where))}
    return {
        "startingTimestamp": str(_time_us(start, where) // 1000),
        # A partition without a message since then is read from its end: what comes is newer.
        "startingOffsetsByTimestampStrategy": "latest",
    }


def _time_us(start: Any, where: str) -> int:
    if isinstance(start, int) and not isinstance(start, bool):
        return start
    try:
        if isinstance(start, (str, datetime)):
            return int(timestamp(start))
    except ProgramError:
        pass
    raise ProgramError(
        "invalid start=",
        where=where,
        expected='"earliest", "latest", a time ("2024-01-01T12:00:00Z", a datetime, hr.timestamp(…)), or offsets: '
        "{partition: offset} of one topic, {topic: {partition: offset}} of several",
        found=repr(start),
        next_move='start="earliest" reads everything that is kept',
    )


def _offsets(start: Mapping[Any, Any], topics: Sequence[str], where: str) -> dict[str, dict[str, int]]:
    by_topic: dict[Any, Any] = dict(start)
    if start and all(isinstance(key, int) for key in start):
        if len(topics) != 1:
            raise ProgramError(
                "offsets by partition are those of one topic",
                where=where,
                expected="{topic: {partition: offset}}",
                found=f"{dict(start)!r}, and {len(topics) or 'a pattern for'} topics",
                next_move="name the topic of each partition",
            )
        by_topic = {topics[0]: start}
    unknown = [topic for topic in by_topic if topics and topic not in topics]
    if not by_topic or unknown or not all(isinstance(each, Mapping) and each for each in by_topic.values()):
        raise ProgramError(
            "invalid offsets in start=",
            where=where,
            expected="{partition: offset}, or {topic: {partition: offset}} with the topics that are read",
            found=repr(dict(start)),
            next_move=f"start={{{topics[0]!r}: {{0: 100, 1: 'earliest'}}}}" if topics else "name topics and partitions",
        )
    return {topic: {str(part): _offset(at, where) for part, at in parts.items()} for topic, parts in by_topic.items()}


def _offset(at: Any, where: str) -> int:
    if isinstance(at, str) and at in _WORDS:
        return _WORDS[at]
    if isinstance(at, int) and not isinstance(at, bool) and at >= 0:
        return at
    raise ProgramError(
        "invalid offset in start=",
        where=where,
        expected='a number of at least 0, "earliest" or "latest"',
        found=repr(at),
        next_move="offsets count messages of a partition from 0",
    )


_OF_STREAMS: Final = frozenset(
    {"maxOffsetsPerTrigger", "startingTimestamp", "startingOffsetsByTimestampStrategy", "subscribe", "subscribePattern"}
)


def batch_options(options: Mapping[str, str], passage: Passage) -> dict[str, str]:
    """The options of a stream, to read what lies between two of its offsets at once.

    A partition that the first does not know was new, and is read from its beginning, as the stream read it.

    >>> told = batch_options({"subscribe": "clicks"}, Passage({"clicks": {"0": 3}}, {"clicks": {"0": 5, "1": 2}}))
    >>> told["startingOffsets"], told["assign"]
    ('{"clicks": {"0": 3, "1": -2}}', '{"clicks": [0, 1]}')
    """
    end: dict[str, dict[str, int]] = passage.end
    start = passage.start or {}
    first = {
        topic: {n: start.get(topic, {}).get(n, _WORDS["earliest"]) for n in offsets} for topic, offsets in end.items()
    }
    return {
        **{name: value for name, value in options.items() if name not in _OF_STREAMS},
        "assign": json.dumps({topic: sorted(map(int, offsets)) for topic, offsets in end.items()}),
        "startingOffsets": json.dumps(first),
        "endingOffsets": json.dumps(end),
    }
