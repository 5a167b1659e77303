"""The contract between a source and the engine that reads it.

A source is written in one of two ways, and says which by `Source.python`:

- Spark reads it (``python = False``): `Source.spark` returns a `SparkRead`, a description that the ``spark`` room turns
  into a streaming DataFrame. Spark keeps the offsets.
- Python reads it (``python = True``): `Source.reader` returns a `SplitReader`, which the ``spark`` room wraps into a
  Python data source, and which the test kit calls directly.

Who calls what, in order:

1. ``app.read`` calls `Source.bind` once, while the program is built. Nothing outside the process is touched.
2. At start the driver calls `Source.check_there`, and with Spark at hand `Source.spark` or `Source.reader`, exactly one
   of them, once per run. This is where a missing folder or an unreadable header is found.
3. A `SplitReader` is then pickled. One copy lives beside the driver and plans: `initial`, `available_now`, `hold`,
   `latest`, `splits`. Short-lived copies live in tasks and only `read`. `close` is called on the planning copy alone.
4. Rows that could not be decoded are told by the JVM (`SparkRead.bad`) or by `SplitReader.read` (`BadRows`). The chain
   drops them: their texts go to the stream's ``errors`` where somebody reads those, and stop the job where nobody does.
   Either way `Source.explain_bad` puts each of them into words.

This module deliberately knows nothing of Spark's classes: it is the part of a source that can be tested without a JVM.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple

import msgspec

from headrace.errors import EpochFailed

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.model.rows import RowCodec

Offset = dict[str, Any]
"""A position in a source. It travels through Spark's offset log as JSON: only int, str, bool, None, lists and dicts."""


EPOCH_ROWS_AT_MOST: Final = 1_000_000
"""Rows that a source with much behind it gives to an epoch where nobody said otherwise. After a long stall everything
that waits would else be one epoch: no progress is seen, and a failure near its end begins from its start."""


@dataclass(frozen=True)
class Split:
    """What one task reads in one epoch: everything after `start` up to and including `end`.

    `id` names the sequence whose event times belong together (a Kafka partition, a shard): the watermark of a source is
    the minimum over its ids. Several splits of one epoch may share an id when they are slices of one ordered sequence,
    cut only so that several cores can read it.
    """

    id: str
    start: Offset
    end: Offset


@dataclass(frozen=True)
class BadRows:
    """Rows of a split that could not be decoded, in their place between its batches.

    Each is a JSON text ``{"where": …, "text": …, "reason": …}``: the place as a person would look it up, what stands
    there, and why it is no row. They are part of what the split holds: reading it again gives the same ones.
    """

    texts: list[str]

    @staticmethod
    def text(where: str, text: str, reason: str) -> str:
        """One bad row, as `texts` holds it.

        >>> BadRows.text("orders.log:3", "{", "it ends too early")
        '{"where":"orders.log:3","text":"{","reason":"it ends too early"}'
        """
        return msgspec.json.encode({"where": where, "text": text, "reason": reason}).decode()


class SplitReader(ABC):
    """Reads a source in Python, split by split.

    The promise on which exactly-once rests: `read` of a split gives the same rows in the same order, whenever, wherever
    and however often it is called, in any process, also years later as long as the source keeps the range.
    A reader must be cheap to pickle: it travels with every task.

    Errors: `EpochFailed` where trying again may help (a server that does not answer); the epoch is then planned and
    read again from what is published, as often as the setting ``restarts`` says. Any other HeadraceError (`InputLost`
    for rows that are gone) ends the job in its own words.
    """

    never_bad: ClassVar[bool] = False
    """True: `read` never yields `BadRows`, so the JVM need not look for any."""

    @abstractmethod
    def initial(self) -> Offset:
        """The position before the first row.

        Called at the first start of a store, possibly several times, before anything is stored: it must be a constant
        of the source, never "now".
        """

    @abstractmethod
    def latest(self, start: Offset, limit: int | None) -> Offset:
        """The position up to which the next epoch should read: `start` itself when there is nothing new.

        Called by the planning copy, once per epoch and repeatedly while the source is idle, so it must be quick and
        must not block. `start` is the end of the last epoch, also after a restart. `limit` bounds the rows of the
        epoch where the caller has a bound; the reader may return less, never more. Where it is None
        the reader bounds the epoch itself (`EPOCH_ROWS_AT_MOST`), so that a job that was down or slow catches up in
        epochs of a decent size. A position once returned may be
        written down and asked for again after a crash, so it must stay readable; the same call may later return more,
        never less.
        """

    @abstractmethod
    def splits(self, start: Offset, end: Offset) -> list[Split]:
        """Cuts a range into splits that together hold each of its rows once; an empty range gives no splits.

        Called once per epoch and attempt by the planning copy. `end` is a position `latest` returned, in this process
        or in one that has died. Reading nothing here: rows are read in `read`.
        """

    @abstractmethod
    def read(self, split: Split) -> Iterator[pa.RecordBatch | BadRows]:
        """The rows of a split, as batches with exactly the codec's schema, in bounded memory.

        What could not be decoded comes between the batches, as `BadRows`; it counts against the limit of `latest`.
        Called in a task; two attempts may read one split at the same time. Batches of about 50 000 rows suit the rest
        of the way. Never called on a copy that plans.
        """

    def available_now(self) -> None:  # noqa: B027 - a hook that most readers need not override
        """From now on `latest` never goes beyond what is there at this moment.

        Called at most once, before the first `latest`, when the run ends as soon as its input is read
        (``until="caught_up"`` or ``"drained"``). A reader of bounded input need not do anything. One whose `latest`
        paces itself must stop doing so: the run ends at the first `latest` that returns its `start`.
        """

    def hold(self, splits: frozenset[str]) -> bool:
        """From now on `latest` leaves the splits with these ids where they are, and only those; False: it cannot.

        Called on the planning copy before each `latest` of a source that is read with ``align=``, with the splits that
        are too far ahead of their group, and with none to let them go again. A source that cannot hold single splits
        waits as a whole, once all of them are too far ahead; then `latest` is not called.
        """
        return False

    def remaining(self, start: Offset) -> int | None:
        """How many rows are there behind this position that no epoch has read yet; None: it cannot tell.

        An estimate is enough: people are shown how far behind a job is, and when it will have caught up. Called on a
        copy in the driver, after an epoch, for its end and for that of the epoch before; so it must be quick. What it
        raises counts as None.
        """
        return None

    def close(self) -> None:  # noqa: B027 - a hook that most readers need not override
        """Called once on the planning copy when the run ends; never in tasks, and not at all when the process dies."""


@dataclass(frozen=True)
class SparkRead:
    """How Spark reads a source: everything is text, so that it can be shown, compared and tested without a session.

    The ``spark`` room builds, in this order::

        frame = readStream.format(format).options(**options) [.schema(schema_ddl)] .load([load_path])
        frame = frame.selectExpr("*", *prepare)       # when there is any; hidden columns (_metadata) may be named
        frame = frame.where(keep)                     # when given
        frame = frame.selectExpr(columns…, split, IF(bad, raw, NULL))

    `columns` holds one expression per field of the codec, in the codec's order, each of exactly the codec's Spark type.
    Expressions may assume ANSI mode and the session time zone UTC. `bad` is never null. Of a bad row only `raw` counts,
    but `columns` and `split` are evaluated for it, too: they must not raise there.
    """

    format: str
    columns: dict[str, str]
    options: dict[str, str] = field(default_factory=dict)
    schema_ddl: str | None = None
    load_path: str | None = None
    prepare: tuple[str, ...] = ()
    """``expression AS name`` texts, evaluated once per row and named by the other expressions."""
    keep: str | None = None
    """Input lines for which this is false are no rows at all (blank lines)."""
    bad: str | None = None
    """True for a row that cannot be decoded. None: there are no such rows."""
    raw: str | None = None
    """For a bad row: JSON text ``{"where": …, "text": …, "reason": …}``, or whatever else the source's `explain_bad`
    understands; given whenever `bad` is."""
    split: str | None = None
    """STRING expression: the split id of a row. None: the whole source is one split."""
    available_now: bool = True
    """Whether Spark's source can be read up to what is there now, epoch by epoch."""
    decoded: bool = False
    """Whether only `Source.decoder` makes rows of it: Spark has no words for the format. `columns`, `bad`, `raw` and
    `split` are then part of what the decoder's pieces name."""


class LeftToSpark(EpochFailed):
    """The worker does not decode this file: Spark is to read the source's rows. `where` is the file.

    Not told to users: the job goes on from the last published epoch with Spark's reader (`Source.spark`).
    """

    source = ""
    """The name of the source, once it is known."""


class WorkerRows(ABC):
    """Decodes in the worker what Spark lists, cuts and schedules; see `Source.decoder`.

    The ``spark`` room builds::

        frame = readStream.…load(…)
        frame = frame.selectExpr("*", *prepare)       # when there is any
        frame = frame.selectExpr(*pieces).where(keep)

    and hands the rows of that frame to `read`. Each stands for a message, or a piece of a file of which Spark's scan
    (the format, schema and options of its `SparkRead`) reads no column; together they must stand for each row once,
    whatever splits Spark makes.
    """

    prepare: tuple[str, ...] = ()
    pieces: tuple[str, ...]
    """``expression AS name``, over what Spark knows of a row without decoding it."""
    keep: str
    tells_splits: bool = False
    """Whether batches have a last column `ROW_SPLIT` behind the codec's: the split of each row."""

    def only(self, columns: Sequence[str]) -> WorkerRows:
        """What reads the same rows, of which nobody asks for other columns than these: it may leave out the others.

        Which rows are bad must not depend on it. The default decodes everything.
        """
        return self

    @abstractmethod
    def read(self, pieces: pa.RecordBatch) -> Iterator[pa.RecordBatch | BadRows]:
        """The rows of these pieces in their order, as batches with exactly the codec's schema, in bounded memory.

        Called in a task; reading again gives the same rows, bad ones told for `Source.explain_bad`. Where Spark can
        read the source, too, they must be the rows that its `SparkRead` would give; where that is not certain it raises
        `LeftToSpark`, also half way through: the epoch is then read again, whole, by Spark. `EpochFailed` where trying
        again may help.
        """


@dataclass(frozen=True)
class BadInput:
    """A row that could not be decoded, in words for people."""

    where: str
    """``events/a.json:12`` as far as it is known."""
    text: str
    reason: str


class InputFile(NamedTuple):
    """A file that Spark listed for a source, as its log tells."""

    url: str
    modified_ms: int


@dataclass(frozen=True)
class Passage:
    """What a job has read of a source between two of its epochs."""

    start: Any
    """The position behind the earlier epoch, as JSON holds it; None: nothing had been read."""
    end: Any
    """The position behind the later one; None: the source was not read."""
    files: tuple[InputFile, ...] = ()
    """Of sources that Spark lists: the files that were read between the two."""


@dataclass(frozen=True)
class Replay:
    """Whether a source can give again what it gave."""

    verdict: Literal["sure", "unknown", "lost"]
    why: str = ""
    """In words that follow the name of the source; nothing where it is sure."""


SURE: Final = Replay("sure")


class Source(ABC):
    """Where rows come from. Instances are descriptions: cheap, immutable, without open connections."""

    kind: ClassVar[str]
    """One word for people: "files", "items"."""
    python: ClassVar[bool]
    """True: `reader` is implemented. False: `spark` is."""
    connector: str = ""
    """The connector that Spark needs to read it and has not by itself, as `headrace connectors list` names it."""

    @property
    def bounded(self) -> bool:
        """Whether the source ends by itself."""
        return False

    @property
    def has_splits(self) -> bool:
        """Whether rows say which split they came from (`SparkRead.split`, or `Split.id` other than ``""``).

        Time is then kept for each of them, so filters run behind the marks. A source in Python whose splits have no
        names may say no, and lets filters run before its rows reach Python again.
        """
        return self.python

    def split_of_row(self, codec: RowCodec) -> str | None:
        """SQL over the fields of a row that gives its split, where a row tells it: for the test kit.

        None: whoever pushes rows says where they come from.
        """
        return None

    @property
    def needs_time(self) -> bool:
        """Whether it can only be read with an event time (``app.read(…, time=…)``)."""
        return False

    def bind(self, codec: RowCodec) -> Source:
        """Checks that rows of this type can come from here, and returns the source to use (itself, or a copy).

        Called once per ``app.read``, while the program is built. Raises ProgramError; touches nothing outside.
        """
        return self

    def check_there(self) -> None:  # noqa: B027 - most sources cannot tell
        """Raises ProgramError where what is to be read can be seen to be missing.

        Called at each start, in the driver, before Spark is started: it must take no time worth mentioning.
        """

    def check_replay(self, passage: Passage) -> Replay:
        """Whether everything between two positions can be read again, and would be the same rows.

        Called in the driver before a job goes back to an earlier epoch; nothing has been changed then. It may ask the
        system that is read, but reads no rows. A source that does not tell leaves it at *unknown*: then the job goes
        back all the same, and ends with an error where rows are gone; only outputs are not held on that word.
        """
        return SURE if passage.end is None else Replay("unknown", "it does not tell what it keeps")

    def batch_reads(self, codec: RowCodec, passage: Passage) -> list[SparkRead] | None:
        """How Spark reads what lies between two positions again, at once instead of as a stream: for replays.

        Only for sources that Spark reads. Together the reads give the rows that the epochs between the two were given.
        None: it cannot be said.
        """
        return None

    def keep_behind(self, positions: Sequence[Any], holder: str) -> None:  # noqa: B027 - most sources cannot
        """What lies behind any of these positions may be read again: asks whoever clears up to leave it there.

        Called in the driver when savepoints have come or gone, with the positions of all that there are, as JSON holds
        them; None: before the first row. ``holder`` names the job and the source, safe in a file name. What it raises
        is a warning only.
        """

    def placed_in(self, folder: str) -> Source:
        """The source to read, told of a folder (a path or URL) of the store that is its alone, for what it must keep.

        Called once per run, in the driver, right before `reader`. Nothing else writes there, and what is there stays as
        long as the store; a job that begins anew finds it empty.
        """
        return self

    def spark(self, codec: RowCodec) -> SparkRead:
        """Called once per run, in the driver. May look at the world, to say in plain words that a folder is missing."""
        raise NotImplementedError(f"the source {self.kind} is read by Python")

    def decoder(self, codec: RowCodec) -> WorkerRows | None:
        """What reads the rows of its files in the worker, instead of what `spark` says of columns and bad rows.

        Used where the rows go to Python anyway. Called in the driver while a run starts, and in tasks; must be cheap.
        """
        return None

    def whole_files(self, codec: RowCodec) -> Callable[[str], Iterator[pa.RecordBatch | BadRows]] | None:
        """What reads a whole file that an epoch read, by the name that Spark gives it, without Spark: for replays.

        The rows must be those that `spark` gives, in their order. None: only Spark can read the source.
        """
        return None

    def reader(self, codec: RowCodec) -> SplitReader:
        """Called once per run, in the driver. The reader knows the codec from here on."""
        raise NotImplementedError(f"the source {self.kind} is read by Spark")

    def explain_bad(self, codec: RowCodec, raw: str) -> BadInput:
        """Puts a bad row (`SparkRead.raw`, a text of `BadRows`) into words. Must not raise. Not quick: they are few."""
        try:
            told = msgspec.json.decode(raw, type=dict[str, str | None])
        except msgspec.DecodeError:
            told = {}
        text, reason = told.get("text"), told.get("reason")
        reason = reason or "the row could not be decoded"
        return BadInput(where=told.get("where") or "", text=raw if text is None else text, reason=reason)

    def describe(self) -> str:
        """One short line for ``app.explain()``."""
        return self.kind
