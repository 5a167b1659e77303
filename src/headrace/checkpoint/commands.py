"""Commands to the driver of a store from other processes: durable, numbered, each answered once.

A command is a file that is created only if absent, in the folder of the driver's fence: ``commands/<fence>/<number>``.
So it is for that driver and no other, and commands are met in the order in which they were given. A driver reads the
next number, one small read, and most of the time there is none. It looks between epochs and beside them, on the
thread that watches the query; in a remote store every few seconds only. No epoch waits for a look.

Invariants
- A command that no driver has answered may or may not have been carried out: the driver may have died behind the deed.
  Whoever waits is told so, and looks at what the command was to bring about.
- What was meant for an older driver is never carried out by a newer one, which drops it.

What this module deliberately does not do: carry anything out.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from headrace.checkpoint.fence import BEAT_S, STALE_S, Beat, Owner, has_died, read_holder, read_owner
from headrace.errors import AlreadyExists, HeadraceError, MissingFile, StoreError
from headrace.state import layout
from headrace.state.store import StoreFiles

log = logging.getLogger("headrace.commands")

Clock = Callable[[], float]

GLANCE_S: Final = 2.0
"""How often a driver looks for commands in a remote store, where every look is a request."""
_POLL_S: Final = 0.2
_REMOTE_POLL_S: Final = 1.0
_LISTEN_POLLS: Final = round(2 * BEAT_S / _REMOTE_POLL_S)
"""So often a silent driver is looked at: two heartbeats long."""
_KEEP_FENCES: Final = 1
"""Of so many drivers before this one answers stay, for those who are still waiting for them."""


class Stop(msgspec.Struct, frozen=True, omit_defaults=True, tag="stop"):
    """End after the current epoch."""

    savepoint: str = ""
    """Under this name the last epoch is pinned; empty: it is not."""
    note: str = ""
    drain: bool = False
    """First read the input of now to its end and fire everything, as ``until="drained"`` does."""


class ChangeState(msgspec.Struct, frozen=True, tag="change"):
    """Make these edits true with an epoch, all of them or none (`headrace.edit`)."""

    edits: list[dict[str, Any]]
    why: str


class JobCommand(msgspec.Struct, frozen=True, kw_only=True):
    fence: int
    number: int
    order: Stop | ChangeState
    by: str
    """Who gave it, for people."""
    asked_us: int
    """When, by the clock of whoever gave it."""
    mark: str
    """Unique to whoever gave it: after a lost answer of the store it tells its own from another."""


class ErrorParts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The parts of an error, on their way to another process."""

    what: str
    where: str = ""
    expected: str = ""
    found: str = ""
    next_move: str = ""

    def error(self) -> StoreError:
        return StoreError(
            self.what, where=self.where, expected=self.expected, found=self.found, next_move=self.next_move
        )


class JobAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a command."""

    epoch: int = -1
    """The newest published epoch then; −1: none was."""
    savepoint: str = ""
    changes: list[Any] = []
    """Of edits: key, before and after of each."""
    refusal: ErrorParts | None = None
    """None: it was carried out."""


def parts_of(error: BaseException) -> ErrorParts:
    if isinstance(error, HeadraceError):
        return ErrorParts(error.what, error.where, error.expected, error.found, error.next_move)
    return ErrorParts(f"{type(error).__name__}: {error}")


# --- the driver's side


class Inbox:
    """The commands for one driver. Not for several threads at once."""

    def __init__(self, store: StoreFiles, fence: int, clock: Clock = time.time) -> None:
        self._store = store
        self._fence = fence
        self._clock = clock
        self._pause_s = 0.0 if _is_local(store) else GLANCE_S
        self._looked_s: float | None = None
        self._next = 0
        drop_commands(store, fence - _KEEP_FENCES)

    def glance(self) -> Iterator[JobCommand]:
        """New commands, if it is time to look for some. A store that does not answer is only noted."""
        now = self._clock()
        if self._looked_s is not None and 0 <= now - self._looked_s < self._pause_s:
            return
        self._looked_s = now
        yield from self.look()

    def look(self) -> Iterator[JobCommand]:
        """New commands, whether or not it is time."""
        while True:
            number = self._next
            try:
                text = self._store.read(layout.command(self._fence, number))
            except MissingFile:
                return
            except StoreError as error:
                log.warning("could not look for commands: %s", error)
                return
            self._next += 1
            try:
                yield msgspec.json.decode(text, type=JobCommand)
            except msgspec.DecodeError as error:
                # Given by a newer version, maybe. Those behind it are met all the same.
                self._write(number, JobAnswer(refusal=_not_understood(error)))

    def answer(self, command: JobCommand, answer: JobAnswer) -> None:
        self._write(command.number, answer)

    def _write(self, number: int, answer: JobAnswer) -> None:
        self._store.write(layout.answer(self._fence, number), msgspec.json.encode(answer))


def drop_commands(store: StoreFiles, before: int) -> None:
    """Deletes what was asked of drivers before a fence."""
    for path in store.list(layout.COMMANDS):
        fence = layout.parse_command_fence(path)
        if fence is not None and fence < before:
            store.delete(path)


# --- the side of whoever asks


def send_command(
    store: StoreFiles,
    order: Stop | ChangeState,
    clock: Clock = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> JobCommand:
    """Gives a command to the driver of a store. Raises StoreError where nobody drives it.

    A driver that is silent by the clock of this machine is listened to for a while: its own clock may be another.
    """
    me = read_owner()
    while True:
        try:
            driver = _read_driver(store, me, clock)
        except StoreError:
            silent = _read_silent(store, me)
            if silent is None or not _is_heard(store, silent, clock, sleep):
                raise
            driver = silent
        numbers = map(layout.parse_command, store.list(layout.commands(driver.fence)))
        number = 1 + max((number for number in numbers if number is not None), default=-1)
        command = JobCommand(
            fence=driver.fence, number=number, order=order, by=f"{me.user} on {me.host}",
            asked_us=round(clock() * 1e6), mark=os.urandom(8).hex(),
        )  # fmt: skip
        with contextlib.suppress(AlreadyExists):
            store.create(layout.command(driver.fence, number), msgspec.json.encode(command))
            return command


def is_driven(store: StoreFiles, clock: Clock = time.time) -> bool:
    """Whether a job seems to run on a store; one that does not answer may turn out dead."""
    try:
        _read_driver(store, read_owner(), clock)
    except StoreError:
        return False
    return True


def await_answer(
    store: StoreFiles,
    command: JobCommand,
    *,
    tell: Callable[[Beat], None] = lambda driver: None,
    sleep: Callable[[float], None] = time.sleep,
    monotonic: Clock = time.monotonic,
) -> JobAnswer:
    """Waits for the answer to a command; ``tell`` is called with each sign of life of its driver.

    Raises StoreError where the driver refused, or ended, died or lost the store without an answer.
    """
    watch = _Silence(store, command.fence, monotonic)
    while True:
        # In this order: a driver answers before it ends.
        beat, gone = watch.look()
        answer = _read_answer(store, command)
        if answer is not None:
            if answer.refusal is not None:
                raise answer.refusal.error()
            return answer
        if gone:
            raise _no_answer(store, beat, gone)
        tell(beat)
        sleep(watch.poll_s)


def await_end(
    store: StoreFiles, fence: int, *, sleep: Callable[[float], None] = time.sleep, monotonic: Clock = time.monotonic
) -> None:
    """Waits until a driver that was stopped is gone, so that another one may start."""
    watch = _Silence(store, fence, monotonic)
    while not watch.look()[1]:
        sleep(watch.poll_s)


class _Silence:
    """Watches the heartbeat of a driver until it is gone: it said so, its process is no more, or it fell silent."""

    def __init__(self, store: StoreFiles, fence: int, monotonic: Clock) -> None:
        self.poll_s = _POLL_S if _is_local(store) else _REMOTE_POLL_S
        self._store = store
        self._fence = fence
        self._monotonic = monotonic
        self._me = read_owner()
        self._beats = -1
        self._heard_s = monotonic()

    def look(self) -> tuple[Beat, str]:
        """The newest sign of life, and why the driver counts as gone; an empty text while it lives."""
        beat = read_holder(self._store)
        assert beat is not None, "a command was given to a driver, and there is no fence"
        if beat.fence > self._fence:
            return beat, "another driver has taken over"
        if beat.ended:
            return beat, "it has ended"
        if has_died(beat, self._me):
            return beat, "its process is gone"
        now = self._monotonic()
        if beat.beats != self._beats:
            self._beats, self._heard_s = beat.beats, now
        return beat, "it has been silent for too long" if now - self._heard_s >= STALE_S else ""


def _read_driver(store: StoreFiles, me: Owner, clock: Clock) -> Beat:
    """The driver of a store, as far as can be seen at once; one that seems to live may turn out dead."""
    beat = read_holder(store)
    now_us = round(clock() * 1e6)
    if beat is None or beat.ended:
        found = "nobody ever did" if beat is None else f"{beat.describe(now_us)} has ended"
    elif has_died(beat, me):
        found = f"{beat.describe(now_us)} is gone"
    elif now_us - beat.at_us >= STALE_S * 1e6:
        found = beat.describe(now_us)
    else:
        return beat
    raise StoreError(
        "no job runs on this store",
        where=store.url,
        expected="a driver that has given a sign of life",
        found=found,
        next_move="nothing is left to stop; a savepoint of a stopped job: headrace savepoint STORE",
    )


def _read_silent(store: StoreFiles, me: Owner) -> Beat | None:
    """A driver of which nothing is known but that it has not been heard of for long."""
    beat = read_holder(store)
    return None if beat is None or beat.ended or has_died(beat, me) else beat


def _is_heard(store: StoreFiles, beat: Beat, clock: Clock, sleep: Callable[[float], None]) -> bool:
    log.warning("waiting for a sign of life of the job: %s", beat.describe(round(clock() * 1e6)))
    for _ in range(_LISTEN_POLLS):
        sleep(_REMOTE_POLL_S)
        latest = read_holder(store)
        if latest is not None and (latest.fence, latest.beats) != (beat.fence, beat.beats):
            return latest.fence == beat.fence and not latest.ended
    return False


def _no_answer(store: StoreFiles, beat: Beat, why: str) -> StoreError:
    return StoreError(
        "the job went away and gave no answer",
        where=store.url,
        expected="an answer to what it was asked",
        found=f"process {beat.pid} on {beat.host} (fence {beat.fence}): {why}",
        next_move="look at its log; headrace epochs tells what is published, headrace savepoints what is kept",
    )


def _not_understood(error: Exception) -> ErrorParts:
    return ErrorParts(
        "the job does not understand what it was asked",
        found=str(error),
        next_move="use the version of headrace that the job runs with",
    )


def _read_answer(store: StoreFiles, command: JobCommand) -> JobAnswer | None:
    try:
        return msgspec.json.decode(store.read(layout.answer(command.fence, command.number)), type=JobAnswer)
    except MissingFile:
        return None


def _is_local(store: StoreFiles) -> bool:
    return store.local_path(layout.COMMANDS) is not None
