"""Letting an epoch out into Kafka: in a transaction with a note of it (exactly once), or by sending it (at least once).

The note is an offset of a consumer group that nobody consumes with: group and transactional id have one name, topic and
partition 0 are those of the sink, the offset is the epoch, its metadata are the `ReleaseMark`. Offsets that are sent to
a transaction become visible with its messages or not at all, so the note always says what readers see.

Invariants
- Messages are written only between `init_transactions` and a commit by the same producer, after the note was read
  in between: whoever was before us has ended by then, and can commit nothing any more.
- An epoch that the note has is never written again; one that it has in part is continued after that part.
- A note of another store is refused, and one of another output that has this epoch: all of them count from the same
  numbers, so by those alone their epochs could not be told. Only a name that the user chose can have such a note.
- A producer that met an error is dropped. The next release begins with the note.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from headrace.connectors.kafka.client import ANSWER_S, Cluster, Topics, confluent_kafka, kafka_error
from headrace.connectors.kafka.sending import Sender
from headrace.connectors.sink_contract import Release
from headrace.connectors.staged import read_batches
from headrace.errors import Fenced, SinkFailed, SinkUnavailable
from headrace.model.crash import reach
from headrace.model.report import StagedPart

TRANSACTION_TIMEOUT_MS: Final = 300_000
"""After this time a broker ends a transaction whose driver is gone; until then its readers wait."""
_NOTE_S: Final = 30.0
"""How long the note may be unreadable: a broker that has just started loads what it knows."""
_AGAIN_S: Final = 0.05
_EARLY: Final = (
    "COORDINATOR_LOAD_IN_PROGRESS",
    "NOT_COORDINATOR",
    "COORDINATOR_NOT_AVAILABLE",
    "UNSTABLE_OFFSET_COMMIT",
)
"""Answers that only come too early: the group's coordinator starts, or a transaction is about to end."""


class Number(NamedTuple):
    """Which epoch: of all numbers the newest is the largest."""

    timeline: int
    epoch: int


class ReleaseMark(msgspec.Struct, frozen=True):
    """What is out of an output, as the note says it."""

    timeline: int = -1
    epoch: int = -1
    rows: int = 0
    """Of this epoch."""
    whole: bool = True
    """Whether that is all of it."""
    job: str = ""
    """Id of the store; empty in notes of earlier versions, which count as ours."""
    output: str = ""

    @property
    def number(self) -> Number:
        return Number(self.timeline, self.epoch)


class AtLeastOnce:
    """Sends an epoch, and waits until all of it is delivered."""

    def __init__(self, cluster: Cluster, topics: Topics, topic: str) -> None:
        self._cluster = cluster
        self._topics = topics
        self._topic = topic
        self._sender: Sender | None = None

    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        if self._sender is None:
            self._sender = Sender(self._cluster, self._topic, {})
        try:
            for batch in _batches(parts, ctx, 0):
                _ensure_topics(self._topics, batch)
                self._sender.send(batch)
            self._sender.drain()
        except (Exception, KeyboardInterrupt):
            self.close()
            raise

    def close(self) -> None:
        sender, self._sender = self._sender, None
        self._topics.forget()
        if sender is not None:
            sender.drop()


class ExactlyOnce:
    """Writes an epoch and the note of it in one transaction."""

    def __init__(self, cluster: Cluster, topics: Topics, topic: str, name: str) -> None:
        self._cluster = cluster
        self._topics = topics
        self._topic = topic
        self._name = name
        """Of the transactions and of the group: the same for each driver of the job, and no other job's."""
        self._timeout_ms = int(cluster.options.get("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS))
        self._sender: Sender | None = None
        self._group: Any = None
        self._began_s = 0.0
        """When the open transaction was begun, by the wall clock: other clocks stand still while a machine sleeps."""
        self._mark = ReleaseMark()

    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        number = Number(int(ctx.timeline), ctx.epoch)
        if self._sender is None:
            # Looked at before anything else: connecting shuts out whoever writes, and a driver that woke up late must
            # not do that to the one that took over.
            if self._is_out(self._peek(), number, ctx):
                return
            self._connect()
        if self._is_out(self._mark, number, ctx):
            return
        try:
            self._write(parts, ctx, number)
        except (Exception, KeyboardInterrupt) as error:
            self._give_up()
            if isinstance(error, Fenced) and (slept_s := time.time() - self._began_s) * 1000 > self._timeout_ms:
                raise self._overslept(slept_s) from error
            raise

    def newest(self) -> tuple[int, int] | None:
        """Timeline and epoch of the newest that is out, wholly or in part; None: none is."""
        with self._reader(settled=True) as reader:
            mark = self._read_mark(reader)
        return None if mark.epoch < 0 else (mark.timeline, mark.epoch)

    def _overslept(self, slept_s: float) -> SinkUnavailable:
        """A broker that ends a transaction because of its age says the same as one that met a newer producer."""
        return SinkUnavailable(
            f"a transaction was open for {slept_s:,.0f} s, and the broker has ended it",
            where=self._cluster.where,
            expected=f"a commit within {self._timeout_ms / 1000:,.0f} s (transaction_timeout_ms)",
            found="a driver that slept, or a broker that was very slow",
            next_move="nothing: the epoch is written again",
        )

    def _is_out(self, mark: ReleaseMark, number: Number, ctx: Release) -> bool:
        # An output may get another name, and goes on behind the note of the one it had.
        stranger = mark.job != ctx.job or (mark.output != ctx.output and mark.number >= number)
        if mark.job and stranger:
            raise self._refusal(mark, ctx)
        if mark.timeline > number.timeline:
            raise Fenced(
                f"epoch {number.epoch} is of a timeline that has been left",
                where=self._cluster.where,
                expected=f"timeline {mark.timeline}, as Kafka has it",
                found=f"timeline {number.timeline}",
                next_move="nothing: the job was begun anew by another driver, which writes now",
            )
        return mark.number > number or (mark.number == number and mark.whole)

    def _refusal(self, mark: ReleaseMark, ctx: Release) -> SinkFailed:
        return SinkFailed(
            f"the transactional id {self._name} is another output's",
            where=self._cluster.where,
            expected=f"notes of output {ctx.output} of store {ctx.job}",
            found=f"epoch {mark.epoch} of output {mark.output} of store {mark.job}",
            next_move="give this sink a transactional_id= of its own, or leave it out: then each output of each store "
            f"has one. If the other one is gone for good: kafka-consumer-groups.sh --delete --group {self._name} "
            "--bootstrap-server HOST:PORT. The rows stay staged in the store until then",
        )

    # -- the producer ---------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        with self._reader(settled=True) as reader:
            self._group = reader.consumer_group_metadata()
            extra = {"transactional.id": self._name, "transaction.timeout.ms": self._timeout_ms}
            sender = self._sender = Sender(self._cluster, self._topic, extra)
            try:
                # Whoever wrote under this name is shut out, and what it left open has ended when this returns.
                sender.call("transactions cannot be begun", sender.producer.init_transactions)
                self._mark = self._read_mark(reader)
            except (Exception, KeyboardInterrupt):
                self._give_up()
                raise

    def _peek(self) -> ReleaseMark:
        """The note as it is now, while somebody else may be about to change it."""
        with self._reader(settled=False) as reader:
            return self._read_mark(reader)

    @contextmanager
    def _reader(self, *, settled: bool) -> Iterator[Any]:
        """A member of the group that only asks. `settled`: it waits for transactions that are about to change the note.

        It is a consumer and not an administrator, whose questions to groups abort the process when a broker goes away
        in the wrong moment (librdkafka, issue 4605).
        """
        isolation = "read_committed" if settled else "read_uncommitted"
        reader = self._cluster.consumer({"group.id": self._name, "isolation.level": isolation})
        try:
            yield reader
        finally:
            reader.close()

    def _read_mark(self, reader: Any) -> ReleaseMark:
        kafka = confluent_kafka()
        ends = time.monotonic() + _NOTE_S
        while True:
            try:
                found = reader.committed([kafka.TopicPartition(self._topic, 0)], timeout=ANSWER_S)[0]
                error = found.error
            except kafka.KafkaException as raised:
                error = kafka_error(raised)
            if error is None:
                return msgspec.json.decode(found.metadata, type=ReleaseMark) if found.metadata else ReleaseMark()
            if error.name() not in _EARLY or time.monotonic() > ends:
                raise self._cluster.error(error, "what is already out cannot be read")
            time.sleep(_AGAIN_S)

    def _give_up(self) -> None:
        sender, self._sender = self._sender, None
        self._topics.forget()
        if sender is not None:
            if not sender.stalled:
                sender.abort()
            sender.drop()

    def close(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.drop()

    # -- transactions ---------------------------------------------------------------------------------------------

    def _write(self, parts: Sequence[StagedPart], ctx: Release, number: Number) -> None:
        """One transaction; more only where an epoch takes so long that a broker would end it."""
        sender = self._sender
        assert sender is not None
        out = self._mark.rows if self._mark.number == number else 0
        ends = self._begin(sender)
        for batch in _batches(parts, ctx, out):
            _ensure_topics(self._topics, batch)
            sender.send(batch)
            out += batch.num_rows
            if time.monotonic() > ends:
                self._commit(sender, ReleaseMark(*number, out, whole=False, job=ctx.job, output=ctx.output))
                ends = self._begin(sender)
        reach("between_files", ctx.epoch)
        self._commit(sender, ReleaseMark(*number, out, job=ctx.job, output=ctx.output))

    def _begin(self, sender: Sender) -> float:
        """Begins a transaction; returns the time by which it should be committed."""
        try:
            sender.producer.begin_transaction()
        except confluent_kafka().KafkaException as raised:
            raise self._cluster.error(raised, "a transaction cannot be begun") from raised
        self._began_s = time.time()
        return time.monotonic() + self._timeout_ms / 3000

    def _commit(self, sender: Sender, mark: ReleaseMark) -> None:
        kafka = confluent_kafka()
        text = msgspec.json.encode(mark).decode()
        note = [kafka.TopicPartition(self._topic, 0, mark.epoch, metadata=text)]
        doing = f"epoch {mark.epoch} cannot be written"
        # The note goes first: what it waits for passes while messages are on their way.
        sender.call(doing, sender.producer.send_offsets_to_transaction, note, self._group)
        sender.drain()
        sender.call(doing, sender.producer.commit_transaction)
        self._mark = mark


def _batches(parts: Sequence[StagedPart], ctx: Release, skip: int) -> Iterator[pa.RecordBatch]:
    """The staged messages behind the first `skip`."""
    for place, part in enumerate(parts):
        if skip >= part.rows:
            skip -= part.rows
            continue
        if place:
            reach("between_files", ctx.epoch)
        for batch in read_batches([part], ctx):
            if skip < batch.num_rows:
                yield batch.slice(skip)
            skip = max(0, skip - batch.num_rows)


def _ensure_topics(topics: Topics, batch: pa.RecordBatch) -> None:
    if "topic" in batch.schema.names:
        topics.ensure({name for name in batch.column("topic").unique().to_pylist() if name})
