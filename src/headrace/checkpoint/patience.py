"""Patience: a call to a sink whose target cannot be reached is made again, until it succeeds or the time is up.

Pauses grow twofold from try to try, up to `MAX_PAUSE_S`, and each is shortened by chance, so that many jobs that lost
the same server do not come back to it at the same moment. Between tries it is looked whether the run was asked to stop
and whether a newer driver has taken over. Only `SinkUnavailable` is worth another try; everything else is the caller's.

What is waited for is kept here (`waits`) and written into the store, once per try, for those who look from outside.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from threading import Event, Lock
from typing import Final

import msgspec

from headrace.connectors.sink_contract import Sink
from headrace.errors import HeadraceError, SinkUnavailable
from headrace.model.amounts import count_of
from headrace.model.sink_waits import AT_START, SinkWait, SinkWaits, tell_patience
from headrace.model.time import format_span
from headrace.state import layout
from headrace.state.store import StoreFiles

log = logging.getLogger("headrace.release")

FIRST_PAUSE_S: Final = 0.25
MAX_PAUSE_S: Final = 15.0
_SLICE_S: Final = 0.25
"""How often a pause looks up: a person who stops the run should not notice that it waits."""
_REASON_CHARS: Final = 200


def derive_pause_s(tries: int, chance: float) -> float:
    """How long to pause after so many tries; ``chance`` is a number from 0 to 1.

    >>> [derive_pause_s(tries, 1.0) for tries in (1, 2, 3, 9)]
    [0.25, 0.5, 1.0, 15.0]
    >>> derive_pause_s(3, 0.0)
    0.5
    """
    whole = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(tries - 1, 20))
    return whole * (0.5 + 0.5 * chance)


class Patience:
    """How long one run waits for its sinks. Calls may come from several threads."""

    def __init__(
        self,
        span_us: int = 0,
        *,
        stop: Event | None = None,
        store: StoreFiles | None = None,
        clock: Callable[[], float] = time.time,
        pause: Callable[[float], bool] | None = None,
    ) -> None:
        """``span_us``: 0 makes a call once. ``stop``: set when the run was asked to end. ``store``: where waits are
        noted. ``pause`` waits for some seconds, and tells whether the run was asked to end meanwhile."""
        self.check: Callable[[], None] = _nothing
        """Raises when this driver has to give way; looked at between two tries."""
        self._span_us = span_us
        self._stop = stop or Event()
        self._pause = pause or self._stop.wait
        self._clock = clock
        self._notes = _WaitNotes(store)

    @property
    def waits(self) -> tuple[SinkWait, ...]:
        """What is waited for at this moment."""
        return self._notes.waits

    def insist(
        self, call: Callable[[], None], sink: Sink, output: str, epoch: int = AT_START, abandon: Event | None = None
    ) -> None:
        """Makes a call until it does not raise SinkUnavailable. ``abandon``: set when waiting has become pointless."""
        first_us: int | None = None
        tries = 0
        try:
            while True:
                tries += 1
                try:
                    call()
                    break
                except SinkUnavailable as error:
                    if self._span_us <= 0:
                        raise
                    now_us = round(self._clock() * 1e6)
                    first_us = now_us if first_us is None else first_us
                    until_us = first_us + self._span_us
                    wait = SinkWait(output, sink.describe(), epoch, _reason(error), tries, first_us, until_us)
                    self._tell(wait)
                    if now_us >= until_us:
                        raise self._gave_up(wait) from error
                    left_s = (until_us - now_us) / 1e6
                    if self._rests(min(derive_pause_s(tries, random.random()), left_s), abandon):
                        raise self._end_of_wait(wait) from error
        finally:
            if first_us is not None:
                self._notes.drop(output)
        if first_us is not None:
            waited_s = self._clock() - first_us / 1e6
            log.warning("%s is back after %.0f s and %s tries", sink.describe(), waited_s, tries)

    def settle(self) -> None:
        """Nothing is waited for: what an earlier driver noted is taken away."""
        self._notes.settle()

    def _tell(self, wait: SinkWait) -> None:
        if wait.tries == 1:
            log.warning("waiting for %s: %s; it is tried for up to %s", wait.sink, wait.reason, tell_patience(wait))
        self._notes.put(wait)

    def _rests(self, seconds: float, abandon: Event | None) -> bool:
        """Pauses; tells whether to give up."""
        until = self._clock() + seconds
        while True:
            self.check()
            if self._stop.is_set() or (abandon is not None and abandon.is_set()):
                return True
            left_s = until - self._clock()
            if left_s <= 0:
                return False
            if self._pause(min(_SLICE_S, left_s)):
                return True

    def _gave_up(self, wait: SinkWait) -> SinkUnavailable:
        span = format_span(self._span_us)
        return SinkUnavailable(
            f"{wait.sink} could not be reached for {span}",
            where=_place(wait),
            expected=f"it to come back within the setting sink_patience ({span})",
            found=f"{wait.reason}, {count_of(wait.tries, 'time')}",
            next_move="bring it back and start again: the rows stay staged in the store and are released first",
        )

    def _end_of_wait(self, wait: SinkWait) -> SinkUnavailable:
        return SinkUnavailable(
            f"the run ended while it waited for {wait.sink}",
            where=_place(wait),
            found=f"{wait.reason}, {count_of(wait.tries, 'time')}",
            next_move="start again when it is back: the rows stay staged in the store and are released first",
        )


class _WaitNotes:
    """The waits of all threads, here and in the store."""

    def __init__(self, store: StoreFiles | None) -> None:
        self._store = store
        self._lock = Lock()
        self._waits: dict[str, SinkWait] = {}
        # A driver that died waiting has left its note.
        self._written = True

    @property
    def waits(self) -> tuple[SinkWait, ...]:
        with self._lock:
            return tuple(wait for _, wait in sorted(self._waits.items()))

    def put(self, wait: SinkWait) -> None:
        with self._lock:
            self._waits[wait.output] = wait
            self._write()

    def drop(self, output: str) -> None:
        with self._lock:
            self._waits.pop(output, None)
            if self._waits:
                self._write()

    def settle(self) -> None:
        with self._lock:
            if self._written and not self._waits:
                self._write()

    def _write(self) -> None:
        if self._store is None:
            return
        noted = SinkWaits(tuple(wait for _, wait in sorted(self._waits.items())))
        try:
            if noted.waits:
                self._store.write(layout.UNRELEASED, msgspec.json.encode(noted))
            else:
                self._store.delete(layout.UNRELEASED)
            self._written = bool(noted.waits)
        except (HeadraceError, OSError) as error:
            log.warning("could not note what is waited for: %s", error)


def _reason(error: SinkUnavailable) -> str:
    told = (error.found or error.what).strip().splitlines()
    return told[0][:_REASON_CHARS] if told else type(error).__name__


def _place(wait: SinkWait) -> str:
    return f"output {wait.output}" + ("" if wait.epoch == AT_START else f", epoch {wait.epoch}")


def _nothing() -> None:
    pass
