"""The contract between a sink and the engine that feeds it.

Outputs are staged first and released afterwards. The two halves of a sink never meet in one process state:

1. ``stream.write`` calls `Sink.bind` once, while the program is built. Nothing outside the process is touched.
2. At start the driver calls `Sink.start` once on the bound sink; again, while it raises `SinkUnavailable`.
3. The bound sink travels to the workers by (cloud)pickle. In each task that has this output, `Sink.open_writer` is
   called once, then `StageWriter.write` any number of times, then `StageWriter.finish` once. A task that fails calls
   nothing more; what it staged is swept, because no report names it. Two attempts of a task may run at the same time.
4. After the manifest of the epoch is published, the driver calls `Sink.release` with the parts the manifest lists.
   Epochs come in order; an epoch that may have been released before comes again after a restart, with the same parts.
   One that raises `SinkUnavailable` comes again on the same sink, after a pause, for as long as is set. Sinks of one
   epoch are released at the same time, each on some thread; one sink is never called twice at once.
5. When a job goes back to an earlier epoch, the driver calls `Sink.check_forget` and then `Sink.forget` of each output
   that is to be repeated, before any epoch of the new timeline is released: once per timeline that is abandoned, the
   newest first, and again after a crash. Outputs that are held are not asked: their rows are kept back until the old
   end is passed. A sink that cannot forget, but finds rows by the unique key of its stream (`Sink.changelog_key`) and
   is exactly once, may be brought back by what the step's state said then: `Sink.check_restated`, and then `release`,
   as for an epoch of the new timeline, with the number of the one that the job goes back to. Its rows are those of
   keys that changed since; keys that were not there then go.
6. `Sink.close` is called once in the driver when the run ends; not at all when the process dies.

User code never runs between 3 and 4, so what is released again is what was released before, byte for byte.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

from headrace.errors import ProgramError
from headrace.model.report import StagedPart

if TYPE_CHECKING:
    from typing import Self

    import pyarrow as pa

    from headrace.connectors.keyed_target import KeyedTarget, Position
    from headrace.model.batch import Rows
    from headrace.model.rows import RowCodec

Guarantee = Literal["exactly once", "at least once"]
GuaranteeChoice = Literal["exactly_once", "at_least_once"]
"""As the parameter of a sink spells it: ``hr.sink.kafka(…, guarantee="at_least_once")``."""


Rewind = Literal["repeat", "hold"]
"""What an output does when its job goes back: ``repeat`` takes back what went out and gives it out anew; ``hold`` gives
nothing out until the job has passed its old end."""


def chosen_guarantee(choice: GuaranteeChoice, where: str) -> Guarantee:
    """What the user chose, in the words of `Sink.guarantee`; a ProgramError where it is neither.

    >>> chosen_guarantee("at_least_once", where="sink.kafka")
    'at least once'
    """
    words: dict[str, Guarantee] = {"exactly_once": "exactly once", "at_least_once": "at least once"}
    found = words.get(choice)
    if found is None:
        raise ProgramError(
            f"there is no guarantee {choice!r}",
            where=where,
            expected='"exactly_once" or "at_least_once"',
            found=repr(choice),
            next_move='leave guarantee= out for "exactly_once"',
        )
    return found


class StageTask(Protocol):
    """The staging area of one output in one task, given to a writer."""

    epoch: int
    shard: int
    """Which task of the epoch this is. For people only: parts are told apart by their place in the list."""
    output: str
    """Id of the output, in the charset of names."""
    uid: str
    """Unique per attempt."""

    def put(self, data: bytes | pa.Buffer, ext: str) -> tuple[str, int]:
        """Writes a new file of the store's staging area, durably, under a name that no other attempt uses.

        Returns its path inside the store and its size. `ext` is without the dot.
        """
        ...

    def take_inline(self, size_bytes: int) -> bool:
        """Whether a part of this size should travel inside the report (`StagedPart.inline`) instead of a file.

        Asked once per part: a part that may is counted against what the whole task may send that way.
        """
        ...


class Release(Protocol):
    """What the driver gives to a sink that may now let an epoch out."""

    timeline: str
    """A number as text, safe in a file name. It goes up when a job is rewound and epoch numbers come again with other
    contents."""
    epoch: int
    output: str
    job: str
    """Id of the job's store, safe in a file name: the same for the life of the store, and no other's. With `output` it
    names the writer where several jobs write to one system."""

    def read(self, part: StagedPart) -> pa.Buffer:
        """The bytes of a part, inline or from the store (mapped where it is local)."""
        ...

    def local_path(self, part: StagedPart) -> Path | None:
        """The staged file itself, where it is one and lies on this machine; it may be hard linked, never changed."""
        ...

    def spark(self) -> Any:
        """The driver's session. Raises EnvironmentMissing where there is none (the test kit)."""
        ...


class Forget(Protocol):
    """What the driver gives to a sink that has to take back what an abandoned timeline made visible."""

    timeline: str
    """The abandoned timeline, as its releases had it."""
    epoch: int
    """The newest epoch of it that stays: everything behind it goes. −1: all of it goes."""
    last: int
    """The newest epoch of it that was ever published, released or not."""
    next_timeline: str
    """The timeline that goes on instead; what it releases has higher numbers."""
    output: str
    job: str
    """Id of the job's store, as in `Release`."""

    def spark(self) -> Any:
        """The driver's session. Raises EnvironmentMissing where there is none (the test kit)."""
        ...


class StageWriter(ABC):
    """Takes the rows of one output in one task. One thread, one use."""

    @abstractmethod
    def write(self, rows: Rows) -> None:
        """Any number of times, also with empty batches. Memory stays bounded: a writer puts parts as it goes.

        The writer must not change the rows and must not keep the object list (copying what it holds is fine).
        """

    @abstractmethod
    def finish(self) -> list[StagedPart]:
        """Once, after the last `write`: everything that was put, in order. When it returns, all of it is durable.

        No rows, no parts.
        """


class Sink(ABC):
    """Where rows go. A description, until it is bound to one output of one program."""

    kind: ClassVar[str]
    """One word for people: "files", "console"."""
    guarantee: Guarantee
    """What the target shows after any crash. Of the class, or, where the user has the choice, of the instance."""
    accepts_updates: ClassVar[bool] = False
    """False: the sink appends, so a stream that corrects its earlier rows is refused while the program is built."""
    accepts_changelog: ClassVar[bool] = False
    """Whether `Rows.kinds` is heeded: rows may be taken back, too. Otherwise such a stream is refused."""
    changelog_key: tuple[str, ...] | None = None
    """Of a sink that accepts changelogs: the columns by which it finds the row that is replaced or goes. They have to
    be the unique key of the stream. None: it hands rows on as they come."""
    asks_changelog: bool = False
    """Whether it writes what rows replace, too: then a stream whose rows replace each other comes as a changelog."""
    in_process: ClassVar[bool] = False
    """True: rows stay in this process (memory, a screen, a function). Such sinks are released one after the other."""
    driver_only: ClassVar[tuple[str, ...]] = ()
    """Attributes that stay in the driver when the sink travels to the workers."""
    rewinds: frozenset[Rewind] = frozenset({"hold"})
    """What it can do when its job goes back; with ``repeat`` it implements `forget`. Of the class or the instance."""

    codec: RowCodec | None = None
    output: str = ""

    def bind(self, codec: RowCodec, output: str) -> Self:
        """Checks that rows of this type can go here, and returns a copy bound to one output.

        Called once per ``stream.write``, while the program is built. Raises ProgramError; touches nothing outside.
        Copies share what the user may look at later (`collect().rows`).
        """
        bound = self._copied()
        bound.codec = codec
        bound.output = output
        return bound

    def _copied(self) -> Self:
        # Not copy.copy: that goes through __getstate__ and would leave the driver's part behind.
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    def start(self) -> None:  # noqa: B027 - a hook that most sinks need not override
        """Once per run, in the driver, before the first epoch: finds a path that is a file. Raises SinkFailed.

        Raises SinkUnavailable where the target cannot be reached just now; then it is called again after a pause.
        """

    @abstractmethod
    def open_writer(self, codec: RowCodec, task: StageTask) -> StageWriter:
        """Once per task that has this output, in the task. Must not touch what `release` feeds."""

    @abstractmethod
    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        """Makes the rows of a published epoch visible; in the driver, one call at a time, in epoch order.

        `parts` is always the whole list of the epoch in the manifest's order, never empty. Idempotent by (timeline,
        epoch): after a crash anywhere inside, or right after, it is called again with the same arguments and must end
        with each row there once (or, for a sink that is called at least once, at least once). An epoch older than the
        newest that is visible of its timeline, or one of an older timeline, comes from a driver that was thought dead
        and woke up: it changes nothing. All of that is meant within one `ctx.job` and output. Another store counts from
        the same numbers: its rows are shown too, or refused with SinkFailed.

        Raises SinkUnavailable when trying again may help (no connection, a timeout, a server that fails over): the
        release comes again on this sink, which must hold no open transaction and connect anew. Raises SinkFailed when
        the rows cannot go out; they stay staged, and the release is tried again at the next start.
        """

    def check_forget(self, ctx: Forget) -> None:  # noqa: B027 - a hook that most sinks need not override
        """Before anything is changed by a rewind: raises SinkFailed where `forget` could not do what it promises."""

    def forget(self, ctx: Forget) -> None:
        """Takes back what epochs of ``ctx.timeline`` behind ``ctx.epoch`` made visible; in the driver, during a rewind.

        Called on a started sink that is to repeat. Idempotent: after a crash anywhere inside, or right after, it comes
        again with the same arguments, also when ``next_timeline`` has released epochs already. When it returns, readers
        see what they saw after ``ctx.epoch``, and a driver of the abandoned timeline that wakes up later changes
        nothing any more. A sink that shows rows to people and keeps none may leave what was shown.

        Raises SinkUnavailable when trying again may help, SinkFailed when rows cannot be taken back.
        """
        raise NotImplementedError(f"the sink {self.kind} cannot take back what went out")

    def check_restated(self) -> None:  # noqa: B027 - a hook that most sinks need not override
        """Before a rewind that brings the target back by rows of a state: raises SinkFailed where whoever reads it
        would take such a row for more than the newest of its key."""

    def released(self, job: str) -> Position | Literal["unknown"]:
        """The newest epoch that the target has of this output of a job, released wholly or in part; None: it has none.

        On a started sink, in the driver. ``job``: id of the job's store. Asked where the store does not know how far
        the output has come; a sink that cannot tell is ``unknown``.
        """
        return "unknown"

    def keyed(self, job: str) -> KeyedTarget | None:
        """What this output has in the target, where that holds one row per key that can be compared and written again.

        On a started sink, in a process that need not be the job's. ``job``: id of the job's store.
        """
        return None

    def moved_to(self, target: str) -> Self | None:
        """A bound sink with another target of its kind (a folder, a table, a topic), and with nothing of what this one
        holds open. None: it has no target with a name, so past epochs cannot be written elsewhere.
        """
        return None

    def target_name(self) -> str:
        """Where rows go, spelled in one way, so that two sinks of a kind with the same name write to the same place."""
        return ""

    def count_rows(self) -> int | None:
        """How many rows the target shows, whoever wrote them, on a started sink; None: it cannot be counted."""
        return None

    def shown_rows(self) -> Iterator[pa.Table] | None:
        """The rows that the target shows, whoever wrote them, on a started sink, some at a time; with the columns of
        the type, each as the target has it. None: it cannot be read."""
        return None

    def takes(self, part: StagedPart) -> bool:
        """Whether `release` understands a part; asked in the driver, before an epoch is released.

        An earlier program may have written to another kind of sink under the name of this output. Where its rows wait
        in a form that is not this sink's, the start is refused, instead of writing them as something else.
        """
        return True

    def close(self) -> None:  # noqa: B027 - a hook that most sinks need not override
        """Once per run, in the driver, when the run ends cleanly."""

    def describe(self) -> str:
        """One short line for ``app.explain()``."""
        return self.kind

    def own_name(self) -> str:
        """What tells it from others of its kind: a folder's name, a table. Part of the name of an output nobody named.

        That name is identity, so this must not change from start to start. Empty for a sink that keeps nothing across
        a restart: outputs to several of those are numbered.
        """
        return ""

    def __getstate__(self) -> dict[str, Any]:
        """What travels to a worker: the description, without the driver's part and without the codec given there."""
        left_behind = {*self.driver_only, "codec"}
        return {name: value for name, value in self.__dict__.items() if name not in left_behind}


@runtime_checkable
class HiddenValue(Protocol):
    """A secret: its text is read where it is used, and never shown."""

    def reveal(self) -> str: ...
