"""What Spark's Kafka connector says when it fails, as errors of our family.

The connector's exceptions come through Spark as text, so the text is looked at here, and only here. What it does not
say in a form that is known goes the way of all other errors of Spark.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from headrace.errors import EpochFailed, HeadraceError, InputLost, ProgramError, SettingsError

if TYPE_CHECKING:
    from headrace.plan.physical import Program, SourcePlan

_LOST: Final = "Some data may have been lost because they are not available in Kafka any more"
_CHANGED: Final = re.compile(r"Partition (\S+)-(\d+) offset was changed from (\d+) to (\d+)")
_UNREAD: Final = re.compile(r"Could not read records in offset \[(\d+), (\d+)\) for topic partition (\S+)-(\d+)")
_REFUSED: Final = re.compile(r"(\w*(?:Sasl|Ssl|Authentication|Authorization)\w*Exception): ([^\n]*)")
_SILENT: Final = re.compile(
    r"Timed out waiting for a node assignment|Failed to create new KafkaAdminClient|No resolvable bootstrap urls"
    r"|org\.apache\.kafka\.common\.errors\.(?:Timeout|Disconnect|Network)Exception[^\n]*"
    r"|Cannot fetch record for offset[^\n]*"
)
_PARTITIONS: Final = re.compile(r"Specified: Set\((.*?)\) Assigned: Set\((.*?)\)")


def kafka_error(error: BaseException, program: Program) -> HeadraceError | None:
    """The error behind an exception of Spark; None where it is not one of Kafka's, or not known."""
    sources = [source for source in program.sources if source.source.connector == "kafka"]
    if not sources:
        return None
    text = str(error)
    if _LOST in text:
        return _lost(text, sources)
    if "UnknownTopicOrPartitionException" in text:
        return EpochFailed(
            "Kafka has no such topic",
            where=_where(sources),
            expected="topics that are there when the job starts; new ones are found by pattern=",
            found="a topic that the brokers do not know",
            next_move="create it (kafka-topics.sh --create --topic …), or correct its name",
        )
    if (given := _PARTITIONS.search(text)) is not None and "startingOffsets" in text:
        return ProgramError(
            "start= has to name every partition",
            where=_where(sources),
            expected=f"offsets for {given[2]}",
            found=f"offsets for {given[1]}",
            next_move='add the others; "earliest" and "latest" can stand for a number',
        )
    if (refused := _REFUSED.search(text)) is not None:
        return SettingsError(
            "the Kafka brokers refuse this client",
            where=_where(sources),
            expected="security options that fit those of the brokers",
            found=f"{refused[1]}: {refused[2]}",
            next_move="look at security_protocol, sasl_mechanism, sasl_username, sasl_password and ssl_ca_location",
        )
    if (silent := _SILENT.search(text)) is not None:
        return EpochFailed(
            "the Kafka brokers do not answer",
            where=_where(sources),
            found=silent[0].rpartition("errors.")[2],
            next_move="look whether they run and whether brokers= is right, and start again: nothing is lost",
        )
    return None


def _where(sources: list[SourcePlan]) -> str:
    return ", ".join(f"source {source.name} ({source.source.describe()})" for source in sources)


def _lost(text: str, sources: list[SourcePlan]) -> InputLost:
    topic, partition, expected, found = "", "", "", ""
    if (unread := _UNREAD.search(text)) is not None:
        first, end, topic, partition = unread.groups()
        expected = f"offsets {first} to {int(end) - 1}, which come next"
        found = f"offset {first} is not there any more: its messages were deleted by retention, or by somebody"
    elif (changed := _CHANGED.search(text)) is not None:
        topic, partition, wanted, there = changed.groups()
        expected = f"offset {wanted}, which comes next"
        found = f"the partition ends at offset {there}: start= lies beyond it, or the topic was made anew"
    else:
        found = text.partition("Reason:")[2].strip().partition("\n")[0] or "messages that were not read yet are gone"
    return InputLost(
        "Kafka no longer has messages that the job has still to read",
        where=f"topic {topic}, partition {partition}" if topic else _where(sources),
        expected=expected,
        found=found,
        next_move='source.kafka(…, on_data_loss="skip") goes on with what is there; --fresh starts over. Keep messages '
        "for longer than the job may stand still (retention.ms)",
    )
