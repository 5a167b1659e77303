"""Clients of one Kafka cluster, with the options of a sink: producers, a look at topics, and the errors of Kafka.

Clients are made when they are needed and dropped after an error; nothing here outlives a driver. What the library logs
goes to the logger ``headrace.kafka`` at the level of debugging, because everything that matters comes back as an error.
A release may always be tried again with a new producer, because what was sent is noted in Kafka. So errors are told
apart by one question: whether trying again can help, or a limit, a right or a setting has to be changed first.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from headrace.connectors.secret_text import hide_secrets, plain_text
from headrace.errors import Fenced, HeadraceError, ProgramError, SinkFailed, SinkUnavailable
from headrace.model.packages import package

if TYPE_CHECKING:
    from types import ModuleType


_FENCED: Final = ("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")

_HOPELESS: Final[Mapping[str, str]] = {
    "TOPIC_AUTHORIZATION_FAILED": "let this user write to the topic (ACL: WRITE and DESCRIBE)",
    "GROUP_AUTHORIZATION_FAILED": "let this user read the group of the same name as the transactional id (ACL: READ)",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "let this user use the transactional id (ACL: WRITE and DESCRIBE on it), "
    'or write guarantee="at_least_once"',
    "CLUSTER_AUTHORIZATION_FAILED": "let this user write idempotently (ACL: IDEMPOTENT_WRITE on the cluster)",
    "SASL_AUTHENTICATION_FAILED": "correct user and password in the options of the sink",
    "_AUTHENTICATION": "correct user and password in the options of the sink",
    "_SSL": "correct the ssl_… options of the sink",
    "UNSUPPORTED_SASL_MECHANISM": "correct sasl_mechanism in the options of the sink",
    "INVALID_TRANSACTION_TIMEOUT": "write transaction_timeout_ms=… with at most the broker's "
    "transaction.max.timeout.ms",
    "UNKNOWN_TOPIC_OR_PART": "create the topic, or give it more partitions",
    "_UNKNOWN_TOPIC": "create the topic, or write create=True",
    "_UNKNOWN_PARTITION": "give the topic more partitions: the rows that wait go to those that they name",
    "TOPIC_EXCEPTION": "use letters, digits, '.', '_' and '-' in the name of a topic",
    "INVALID_RECORD": "a compacted topic needs a key in every message: write key=…, and let the topic take those that "
    "wait (cleanup.policy=delete)",
    "INVALID_TIMESTAMP": "the topic refuses such times: raise its message.timestamp.before.max.ms or …after.max.ms for "
    "those that wait",
    "INVALID_TOPIC_EXCEPTION": "use letters, digits, '.', '_' and '-' in the name of a topic",
    "POLICY_VIOLATION": "ask for what the cluster's policy allows",
    "INVALID_CONFIG": "correct the options of the sink",
    "_INVALID_ARG": "correct the options of the sink",
    "_UNSUPPORTED_FEATURE": "use a newer broker",
    "UNSUPPORTED_VERSION": "use a newer broker",
}


def confluent_kafka() -> ModuleType:
    """The client's package. Imported when somebody connects: a program is built and explained without it."""
    with package("confluent-kafka", extra="kafka", where="sink.kafka"):
        import confluent_kafka
        import confluent_kafka.admin
    return confluent_kafka


def kafka_error(raised: Any) -> Any:
    """The KafkaError inside an exception of the client, or what was given where it is one already."""
    return raised.args[0] if isinstance(raised, BaseException) and raised.args else raised


def is_refusal(error: Any) -> bool:
    """Whether somebody has to change something before it is tried again."""
    return error.name() in _HOPELESS


def translate(error: Any, *, doing: str, where: str, brokers: str, options: Mapping[str, Any]) -> HeadraceError:
    """A KafkaError as one of ours. `doing` says what did not succeed: "epoch 41 could not be written"."""
    name = str(error.name())
    said = hide_secrets(f"{name}: {error.str()}", options)
    if name in _FENCED:
        return Fenced(
            f"{doing}: another driver of this job writes to Kafka",
            where=where,
            expected="one driver at a time",
            found=said,
            next_move="nothing, if a newer driver runs: it has what this one had; otherwise start again",
        )
    move = _HOPELESS.get(name)
    if move is not None:
        return SinkFailed(f"Kafka refused: {doing}", where=where, found=said, next_move=move)
    return SinkUnavailable(
        f"Kafka does not answer as it should: {doing}",
        where=where,
        expected=f"a broker at {brokers}",
        found=said,
        next_move="start the broker, or correct brokers=…; the rows stay staged in the store",
    )


log = logging.getLogger("headrace.kafka")

ANSWER_S: Final = 10.0
"""How long a broker has to answer a single question."""

_OWNED: Final = {
    "bootstrap.servers": "use brokers=",
    "enable.idempotence": "leave it out: messages are always written once per release",
    "acks": "leave it out: a release waits for all replicas",
    "request.required.acks": "leave it out: a release waits for all replicas",
    "group.id": "leave it out: it is the transactional id",
    "delivery.report.only.error": "leave it out",
}
_AS_THEY_ARE: Final = ("log_level",)
"""Options of the library that have an underscore themselves."""


class _Quiet:
    """Takes the place of a logger in the library, which would say CRITICAL to what the driver reports anyway."""

    def log(self, level: int, text: str, *values: Any) -> None:
        log.debug(text, *values)


@dataclass(frozen=True)
class Cluster:
    """Where to connect to, and as whom."""

    brokers: str
    options: Mapping[str, Any]
    """Of the library, with its names."""
    where: str
    """What an error says first: ``sink.kafka("sales")``."""
    _logger: _Quiet = field(default_factory=_Quiet, compare=False, repr=False)

    def config(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        """What a client is made with. `extra` wins, because guarantees hang on it."""
        given = {name: plain_text(value) for name, value in self.options.items()}
        brokers = plain_text(self.brokers)
        return {"client.id": "headrace", **given, "bootstrap.servers": brokers, "logger": self._logger, **extra}

    def producer(self, extra: Mapping[str, Any]) -> Any:
        return self._make(confluent_kafka().Producer, extra)

    def consumer(self, extra: Mapping[str, Any]) -> Any:
        """For its questions only: it subscribes to nothing, and asking it for a topic does not create one."""
        return self._make(confluent_kafka().Consumer, {"enable.auto.commit": False, **extra})

    def admin(self) -> Any:
        return self._make(confluent_kafka().admin.AdminClient, {})

    def _make(self, kind: Any, extra: Mapping[str, Any]) -> Any:
        try:
            return kind(self.config(extra))
        except confluent_kafka().KafkaException as raised:
            raise self.error(raised, "there is no client with these options") from raised

    def error(self, raised: Any, doing: str) -> HeadraceError:
        return translate(
            kafka_error(raised), doing=doing, where=self.where, brokers=repr(self.brokers), options=self.options
        )


def check_options(options: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Options under the library's names: ``compression_type="zstd"`` is ``compression.type``. Raises ProgramError."""
    named: dict[str, Any] = {}
    for given, value in options.items():
        name = given if given in _AS_THEY_ARE else given.replace("_", ".")
        if name in _OWNED:
            raise ProgramError(
                f"the option {given} is set by Headrace", where=where, found=f"{given}=…", next_move=_OWNED[name]
            )
        if value is not None:
            named[name] = value
    if named:
        _try_options(named, where)
    return named


def _try_options(options: Mapping[str, Any], where: str) -> None:
    """The library knows its options best. A client without brokers connects to nothing."""
    try:
        client = confluent_kafka()
    except HeadraceError:
        return  # said again when the job starts, which is soon enough
    secret = {name for name, value in options.items() if isinstance(value, str) and type(value) is not str}
    try:
        # A secret may have no value yet, and files that options name may lie on another machine.
        tried = {name: value for name, value in options.items() if name not in secret and "location" not in name}
        names_only = {name: "" for name in secret if name.startswith("sasl.")}
        client.Producer({**tried, **names_only, "logger": _Quiet()})
    except client.KafkaException as raised:
        said = str(kafka_error(raised).str())
        if "o such configuration property" in said or "nvalid value" in said:
            raise ProgramError(
                "Kafka's client refuses the options",
                where=where,
                expected="options of librdkafka, with underscores for dots: compression_type, sasl_mechanism",
                found=hide_secrets(said, options),
                next_move="correct the option; its documentation is librdkafka's CONFIGURATION.md",
            ) from raised
    except (TypeError, ValueError) as raised:
        raise ProgramError(
            "Kafka's client refuses the options",
            where=where,
            expected="names and values of librdkafka's configuration",
            found=str(raised),
            next_move="correct the option, or leave it out",
        ) from raised


@dataclass
class Topics:
    """The topics that rows go to: each is looked at once, and made where the sink says so."""

    cluster: Cluster
    create: bool | Mapping[str, str]
    partitions: int | None
    _known: set[str] = field(default_factory=set)

    def ensure(self, names: set[str]) -> None:
        """Raises SinkFailed for a topic that is not there, and SinkUnavailable where nobody answers."""
        for name in sorted(names - self._known):
            if not self._exists(name):
                self._create(name)
            self._known.add(name)

    def forget(self) -> None:
        """After an error: a topic may be gone."""
        self._known.clear()

    def cleanup_policy(self, name: str) -> str:
        """What a topic does with old messages: ``delete``, ``compact`` or both."""
        kafka = confluent_kafka()
        asked = kafka.admin.ConfigResource(kafka.admin.ConfigResource.Type.TOPIC, name)
        admin = self.cluster.admin()  # a name of its own: an answer to a client that is gone never comes
        try:
            answer = admin.describe_configs([asked], request_timeout=ANSWER_S)[asked].result()
        except kafka.KafkaException as raised:
            raise self.cluster.error(raised, f"the settings of the topic {name} cannot be read") from raised
        return str(answer["cleanup.policy"].value)

    def _exists(self, name: str) -> bool:
        unknown = confluent_kafka().KafkaError.UNKNOWN_TOPIC_OR_PART
        told: list[Any] = []
        consumer = self.cluster.consumer({"group.id": "headrace", "error_cb": told.append})
        try:
            error = self._look_at(name, consumer, told)
        finally:
            consumer.close()
        if error is not None and error.code() != unknown:
            raise self.cluster.error(error, f"the topic {name} cannot be looked at")
        return error is None

    def _look_at(self, name: str, consumer: Any, told: list[Any]) -> Any:
        """The error of a topic, or why nobody answered: a login that was refused looks like silence otherwise."""
        ends = time.monotonic() + ANSWER_S
        while True:
            try:
                return consumer.list_topics(name, timeout=2.0).topics[name].error
            except confluent_kafka().KafkaException as raised:
                consumer.poll(0)
                if told or time.monotonic() > ends:
                    return next(filter(is_refusal, told), kafka_error(raised))

    def _create(self, name: str) -> None:
        if self.create is False:
            raise self._missing(name)
        kafka = confluent_kafka()
        config = {} if self.create is True else dict(self.create)
        new = kafka.admin.NewTopic(name, self.partitions or -1, -1, config=config)
        admin = self.cluster.admin()  # a name of its own: an answer to a client that is gone never comes
        try:
            admin.create_topics([new], request_timeout=ANSWER_S)[name].result()
        except kafka.KafkaException as raised:
            # Another job may have been quicker.
            if kafka_error(raised).code() != kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                raise self.cluster.error(raised, f"the topic {name} cannot be created") from raised

    def _missing(self, name: str) -> SinkFailed:
        command = f"kafka-topics.sh --create --topic {name} --partitions {self.partitions or 4}"
        return SinkFailed(
            f"there is no topic {name}",
            where=self.cluster.where,
            expected=f"a topic of this name at {self.cluster.brokers!r}",
            found="no such topic",
            next_move=f"{command} --bootstrap-server HOST:PORT; or let the sink do it: hr.sink.kafka(…, create=True)",
        )
