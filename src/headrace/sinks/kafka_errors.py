"""What Kafka's client says, as errors of ours: try again, give way, or mend something.

Every release may be tried again with a new producer, because what is out is noted in Kafka. So the question is only
whether trying again can help: not where somebody has to change a limit, a right or a setting first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import Fenced, HeadraceError, SinkFailed, SinkUnavailable
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


def hide_secrets(text: str, options: Mapping[str, Any]) -> str:
    """Text without the values of secrets, which are texts of a class of their own."""
    for value in options.values():
        if isinstance(value, str) and type(value) is not str and len(value):
            text = text.replace(str.__str__(value), repr(value))
    return text
