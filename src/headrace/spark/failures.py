"""Spark's exceptions, as errors of our family: without its stacks, and with a next move.

Exceptions of Spark's Kafka connector come through Spark as text, so their text is looked at here, and only here. What
it does not say in a known form goes the way of all other errors of Spark.
"""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec
from pyspark.errors import (
    AnalysisException,
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    NumberFormatException,
    ParseException,
)

from headrace.errors import (
    EnvironmentMissing,
    EpochFailed,
    ExpressionError,
    HeadraceError,
    InputLost,
    ProgramError,
    SettingsError,
)
from headrace.model.report import Failure
from headrace.model.wire import ROW_BAD
from headrace.runtime.failures import error_failure, reported_error

if TYPE_CHECKING:
    from headrace.dataflow.graph import Node
    from headrace.plan.physical import Program, SourcePlan

# PySpark logs the whole JVM stack of a failed query from Python, whatever Spark's own log level is.
logging.getLogger("SQLQueryContextLogger").disabled = True


_VALUES = (ArithmeticException, ArrayIndexOutOfBoundsException, DateTimeException, NumberFormatException)
"""What Spark raises for a row that an expression cannot digest: running it again does not help."""


_LINES: Final = 6
_LINE_CHARS: Final = 400
_TRACEBACK: Final = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t]+.*\n|\n)+(?P<error>\S.*)")
"""From its first line to the one behind the last that is indented: the error."""
_PLACE: Final = re.compile(r'File "([^"]+)", line (\d+)')
_HANDED_OVER: Final = re.compile(r"<headrace:([A-Za-z0-9+/=]+)>")

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


def hand_over(error: HeadraceError) -> str:
    """An error as text that `spark_error` finds in whatever Spark makes of an exception with it."""
    return f"{error.what} <headrace:{base64.b64encode(msgspec.msgpack.encode(error_failure(error))).decode()}>"


def spark_error(error: BaseException, nodes: Iterable[Node] = ()) -> HeadraceError:
    """An exception of Spark itself, without its stack; or the error that a reader of ours raised below it.

    `nodes` are the steps of the program: expressions in them that could not be checked may be what Spark is about.
    """
    ours = _HANDED_OVER.search(str(error))
    if ours is not None:
        return reported_error(msgspec.msgpack.decode(base64.b64decode(ours.group(1)), type=Failure))
    text = _first_lines(str(error))
    missing = re.search(r"No module named '([^']+)'", str(error))
    if missing is not None:
        return EnvironmentMissing(
            f"the workers have no module {missing.group(1)!r}",
            where="a Python worker",
            expected="what the driver can import, on every machine of the cluster",
            found=missing.group(0),
            next_move=f"install {missing.group(1)} where the workers run, or ship it (spark.submit.pyFiles)",
        )
    if isinstance(error, _VALUES):
        return ExpressionError(
            "an expression that runs in the JVM has no value for some row",
            where="where, select or with_columns right behind a source",
            found=text,
            next_move="guard it (try_divide, try_cast, CASE), and start again: nothing of this epoch was published",
        )
    if isinstance(error, (AnalysisException, ParseException)):
        unchecked = unchecked_expressions(nodes)
        return ProgramError(
            "Spark does not understand an expression or a source of this program",
            where="building the streaming plan",
            found=text,
            next_move="look at the expressions that only Spark can check: " + "; ".join(unchecked[:_LINES])
            if unchecked
            else "look at the options of the sources and at time=: every other expression was checked",
        )
    return EpochFailed(
        "Spark could not run an epoch",
        where="the streaming query",
        found=text,
        next_move="start again: the epoch is replayed whole; --trace shows Spark's own account",
    )


def unchecked_expressions(nodes: Iterable[Node]) -> list[str]:
    """Expressions of a program whose functions or types are not known here, each with its line."""
    # The processes that plan and read sources load this module, and have no program.
    from headrace.dataflow.graph import ExprNode
    from headrace.sql.expr import supported

    found = []
    for node in nodes:
        if isinstance(node, ExprNode):
            schema = node.inputs[0].codec.schema
            texts = [text for _, text in node.exprs if supported(text, schema) is not None]
            found += [f"{text!r} ({node.op} at {node.site})" for text in texts]
    return found


def _first_lines(text: str) -> str:
    """What people need of a long message: its beginning, and of Python's tracebacks the error and its place."""
    text = re.sub(rf"{ROW_BAD} IS NOT NULL OR \((.*)\)", r"\1", text)
    errors = [_last_line(found) for found in _TRACEBACK.finditer(text)]
    rest = _TRACEBACK.sub(lambda found: f"\n{_last_line(found)}\n", text)
    lines = [line for line in rest.splitlines() if line.strip() and not line.strip().startswith(("at ", "File "))]
    first = lines[:_LINES]
    if errors and errors[-1] not in first:
        # The last is what stopped the work; those before it were its causes.
        first = [*first[:-1], errors[-1]]
    return "\n            ".join(line[:_LINE_CHARS] for line in first)


def _last_line(traceback: re.Match[str]) -> str:
    """Type and text of the error, and the innermost line of code."""
    places = _PLACE.findall(traceback.group(0))
    return traceback.group("error").strip() + (f" ({places[-1][0]}:{places[-1][1]})" if places else "")


# --- Kafka


def kafka_error(error: BaseException, program: Program) -> HeadraceError | None:
    """The error behind an exception of Spark; None where it is not one of Kafka's, or not known."""
    sources = [source for source in program.sources if source.source.connector == "kafka"]
    if not sources:
        return None
    text = str(error)
    if _LOST in text:
        return _loss(text, sources)
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


def _loss(text: str, sources: list[SourcePlan]) -> InputLost:
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
