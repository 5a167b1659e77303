"""How a run is asked to end, from its own process or another one, and what is kept of it.

A run is asked while it goes on, and answers when it has ended: its last epoch is published and its outputs are out,
then it is pinned where a savepoint was asked for, then the answer is written. What cannot be done is refused at once,
and the run goes on as if nobody had asked.
"""

from __future__ import annotations

import logging
import threading
from typing import NamedTuple

from headrace.checkpoint.commands import ChangeState, Inbox, JobAnswer, JobCommand, Stop, parts_of
from headrace.edit.running import LiveEdits
from headrace.errors import HeadraceError, StoreError
from headrace.model import crash
from headrace.state import layout
from headrace.state.savepoints import check_free, create_savepoint
from headrace.state.store import StoreFiles

log = logging.getLogger("headrace.runner")


class _Wish(NamedTuple):
    order: Stop
    command: JobCommand | None
    """None: it was asked in this process."""


class Ending:
    """The wishes that a run end. `ask` may be called from any thread, all else is the run's own."""

    def __init__(self, store: StoreFiles, edits: LiveEdits | None = None) -> None:
        """``edits``: gets the commands that are no wish to end."""
        self.event = threading.Event()
        """Set when the run is to end after its epoch."""
        self.asked_by = ""
        self._store = store
        self._edits = edits or LiveEdits(store)
        self._wishes: list[_Wish] = []
        self._inbox: Inbox | None = None

    @property
    def drains(self) -> bool:
        """Whether all input is to be read and everything to be fired before the end."""
        return any(wish.order.drain for wish in self._wishes)

    def listen(self, fence: int) -> None:
        """From now on commands of other processes are met."""
        self._inbox = Inbox(self._store, fence)

    def ask(self, order: Stop, published: int, command: JobCommand | None = None) -> None:
        """Notes a wish. Raises StoreError where its savepoint cannot be taken; ``published``: the newest epoch."""
        if order.savepoint:
            if published < 0:
                raise _nothing_to_keep(self._store)
            check_free(self._store, order.savepoint)
        self._wishes.append(_Wish(order, command))
        if not order.drain:
            self.event.set()

    def glance(self, published: int) -> None:
        """Looks for commands, if it is time to."""
        if self._inbox is not None:
            for command in self._inbox.glance():
                self._meet(command, published)

    def settle(self, place: layout.ManifestName | None, *, final: bool) -> None:
        """The run has ended well: takes the savepoints and answers. Raises what was asked for here and cannot be done.

        ``place``: its newest epoch; ``final``: whether that is the last of drained input.
        """
        epoch = -1 if place is None else place.epoch
        # Who asked while the run was about to end by itself gets what was asked for as well.
        self._meet_last(epoch)
        failure: HeadraceError | None = None
        for order, command in self._wishes:
            answer = JobAnswer(epoch, order.savepoint)
            try:
                if order.drain and not final:
                    raise _not_drained(self._store, epoch)
                self._pin(order, place)
            except HeadraceError as error:
                answer = JobAnswer(epoch, refusal=parts_of(error))
                failure = failure or (error if command is None else None)
            self._answer(command, answer)
        if failure is not None:
            raise failure

    def give_up(self, epoch: int, error: BaseException) -> None:
        """The run has ended badly: those who asked are told why. ``epoch``: the newest that is published."""
        self._meet_last(epoch)
        for _, command in self._wishes:
            self._answer(command, JobAnswer(epoch, refusal=parts_of(error)))

    def _meet_last(self, epoch: int) -> None:
        """The commands that nobody has looked at yet."""
        if self._inbox is not None:
            for command in self._inbox.look():
                self._meet(command, epoch)
        self._edits.give_up(epoch)

    def _meet(self, command: JobCommand, published: int) -> None:
        if isinstance(command.order, ChangeState):
            assert self._inbox is not None
            self._edits.ask(command, self._inbox)
            return
        try:
            self.ask(command.order, published, command)
        except HeadraceError as error:
            self._answer(command, JobAnswer(published, refusal=parts_of(error)))
            return
        self.asked_by = command.by
        log.info("%s asked the run to end", command.by)

    def _pin(self, order: Stop, place: layout.ManifestName | None) -> None:
        if not order.savepoint:
            return
        if place is None:
            raise _nothing_to_keep(self._store)
        create_savepoint(self._store, name=order.savepoint, note=order.note, place=place)
        crash.reach("stop_pinned", place.epoch)

    def _answer(self, command: JobCommand | None, answer: JobAnswer) -> None:
        if command is None or self._inbox is None:
            return
        try:
            self._inbox.answer(command, answer)
        except StoreError as error:
            log.warning("%s could not be told what became of the command: %s", command.by, error)


def _nothing_to_keep(store: StoreFiles) -> StoreError:
    return StoreError(
        "no epoch has been published yet, so there is nothing to keep",
        where=store.url,
        next_move="wait for the job's first epoch, or stop it without a savepoint",
    )


def _not_drained(store: StoreFiles, epoch: int) -> StoreError:
    return StoreError(
        "the run was to be drained, and ended before it was",
        where=store.url,
        expected="all input of then read and everything fired",
        found=f"it had been asked to stop, or had come to its own end, after epoch {epoch}",
        next_move='start it again with --until drained (until="drained")',
    )
