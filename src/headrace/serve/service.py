"""What every protocol answers from: the newest snapshot, kept fresh by a thread, and who waits for the next one.

A thread looks for new epochs, opens their files and warms what readers will touch; the event loop only swaps a
reference. So a request never waits for a file, and all that a request sees is of the one snapshot it began with.

Invariants
- `Service.snapshot` changes on the event loop only, and never goes back within a line of epochs.
- Trouble with the store never ends serving: the last snapshot is answered from while it lasts, and `trouble` says why
  it grows older.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import HeadraceError, StoreError
from headrace.model.nearest import nearest
from headrace.model.time import format_time
from headrace.net.access import Access, Limits
from headrace.net.problems import shorten
from headrace.read.follow import Follower
from headrace.read.snapshot import reaches
from headrace.serve.past import PastSnapshots

if TYPE_CHECKING:
    from headrace.read.snapshot import Snapshot
    from headrace.read.store import Store

log = logging.getLogger("headrace.serving")

FOLLOW_S: Final = 0.005
WARM_ROWS: Final = 20_000_000
"""Rows that are made ready before a snapshot is answered from; behind them readers open batches as they need them."""
_RETRY_S: Final = 0.2
_LONGEST_RETRY_S: Final = 5.0

Listener = Callable[["Snapshot | None", "Snapshot"], None]
"""Called on the event loop with the snapshot before and the new one."""


class Service:
    """The state of a job, for any number of protocols in one process."""

    def __init__(
        self,
        open_store: Callable[[], Store],
        *,
        where: str,
        access: Access | None = None,
        limits: Limits | None = None,
        follow_s: float = FOLLOW_S,
        memory_bytes: int = 384 * 2**20,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``open_store``: tried until the store is there. ``memory_bytes``: for answers that are kept ready."""
        self.where = where
        self.access = access or Access()
        self.limits = limits or Limits()
        self.memory_bytes = memory_bytes
        self.snapshot: Snapshot | None = None
        """What to answer from; None until the first epoch is published."""
        self.past = PastSnapshots(lambda: self.snapshot)
        """The epochs of the past that somebody asked for."""
        self.trouble = ""
        """Why nothing newer can be read just now; empty where all is well."""
        self.figures: dict[str, Callable[[], float]] = {}
        """What protocols tell of themselves, for those who watch over servers."""
        self.started_s = clock()
        self.clock = clock
        self._open_store = open_store
        self._follow_s = follow_s
        self._follower: Follower | None = None
        self._listeners: list[Listener] = []
        self._preparers: list[Listener] = []
        self._waiting: set[asyncio.Future[None]] = set()
        self._looked = asyncio.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    # --- life

    def start(self) -> None:
        """Begins to follow the store; called on the event loop that will answer."""
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._follow, args=(loop,), name="headrace-follow", daemon=True)
        self._thread.start()

    async def looked(self) -> None:
        """Comes back when the store was looked at once: what could be read then is answered from."""
        await self._looked.wait()

    @property
    def stopping(self) -> bool:
        """Whether nothing newer will come: who waits should say so, and end."""
        return self._stop.is_set()

    def let_go(self) -> None:
        """Lets everybody go who waits, now and from now on: comes before protocols are ended, which wait for them."""
        self._stop.set()
        self._wake()

    async def stop(self) -> None:
        """Ends following, and lets everybody go who waits."""
        self.let_go()
        if self._thread is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def listen(self, listener: Listener) -> None:
        """Calls it with every new snapshot."""
        self._listeners.append(listener)

    def prepare_with(self, preparer: Listener) -> None:
        """Calls it with every new snapshot before it is answered from, on the thread that opened it.

        Where something fails, what was prepared is given up and prepared once more, from the same snapshot before.
        """
        self._preparers.append(preparer)

    # --- waiting

    async def wait_for(self, reached: Callable[[Snapshot], bool], timeout_s: float) -> Snapshot | None:
        """The first snapshot of which that is true; None where the time is up before, or the server is stopped."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + timeout_s
        while True:
            snapshot = self.snapshot
            if snapshot is not None and reached(snapshot):
                return snapshot
            left = ends - loop.time()
            if left <= 0 or self._stop.is_set():
                return None
            future: asyncio.Future[None] = loop.create_future()
            self._waiting.add(future)
            try:
                await asyncio.wait_for(future, left)
            except TimeoutError:
                return None
            finally:
                self._waiting.discard(future)

    async def wait_for_epoch(self, epoch: int, timeout_s: float) -> Snapshot | None:
        """The first snapshot of that epoch or a later one."""
        return await self.wait_for(lambda snapshot: snapshot.epoch >= epoch, timeout_s)

    async def wait_for_offset(self, source: str, offset: Any, timeout_s: float) -> Snapshot | None:
        """The first snapshot in which a source is read up to an offset, in the words of that source."""
        return await self.wait_for(lambda snapshot: reaches(snapshot.offsets.get(source, ""), offset), timeout_s)

    # --- about itself

    @property
    def lag_epochs(self) -> int:
        """How many epochs are published that cannot be answered from yet."""
        follower, snapshot = self._follower, self.snapshot
        return 0 if follower is None or snapshot is None else max(0, follower.newest_epoch - snapshot.epoch)

    def age_ms(self, snapshot: Snapshot | None = None) -> int:
        """How long ago the epoch was published that answers are of; −1 before the first."""
        snapshot = snapshot or self.snapshot
        return -1 if snapshot is None else max(0, round(self.clock() * 1e3 - snapshot.published_us / 1e3))

    def facts(self, snapshot: Snapshot | None = None) -> dict[str, Any]:
        """What an answer means: epoch, age, watermarks, lag. ``snapshot``: for those who may not be at the newest."""
        snapshot = snapshot or self.snapshot
        if snapshot is None:
            return {"epoch": -1, "trouble": self.trouble}
        steps = sorted(snapshot.state.manifest.time.steps)
        watermarks = {step: snapshot.watermark_us(step) for step in steps}
        return {
            "app": snapshot.app,
            "epoch": snapshot.epoch,
            "timeline": snapshot.timeline,
            "store_id": snapshot.store_id,
            "published": format_time(snapshot.published_us),
            "age_ms": self.age_ms(snapshot),
            "lag_epochs": self.lag_epochs,
            "final": snapshot.final,
            "watermarks": {step: format_time(time) for step, time in watermarks.items() if time is not None},
            "trouble": self.trouble,
        }

    # --- the thread

    def _follow(self, loop: asyncio.AbstractEventLoop) -> None:
        pause = self._follow_s
        while not self._stop.wait(pause):
            try:
                self._look(loop)
                pause = self._follow_s
                self._set_trouble("")
            except (HeadraceError, OSError) as error:
                pause = self._retry(pause)
                self._set_trouble(_public_words(error), _one_line(error))
            except Exception:
                # Whatever is wrong with one epoch, the one before can still be read.
                pause = self._retry(pause)
                log.exception("a new epoch cannot be opened")
                self._set_trouble("an error of the server's own; its log has it")
            if not self._looked.is_set():
                loop.call_soon_threadsafe(self._looked.set)
        if self._follower is not None:
            self._follower.remember()

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._follower is None:
            self._follower = Follower(self._open_store(), on_new=lambda *pair: self._hand_over(loop, *pair))
        self._follower.look()

    def _hand_over(self, loop: asyncio.AbstractEventLoop, before: Snapshot | None, snapshot: Snapshot) -> None:
        """Makes a new snapshot ready and lets it be answered from.

        Where that fails the follower still has the one before: the next look opens the epoch once more, whatever is
        prepared then is told from what was handed over last, and there is trouble until it succeeds.
        """
        snapshot.warm(WARM_ROWS)
        for preparer in self._preparers:
            preparer(before, snapshot)
        loop.call_soon_threadsafe(self._swap, snapshot)

    def _retry(self, pause: float) -> float:
        if self.snapshot is None:
            # Somebody waits for the first epoch; looking costs little.
            return _RETRY_S
        return min(_LONGEST_RETRY_S, max(_RETRY_S, 2 * pause))

    def _set_trouble(self, trouble: str, details: str = "") -> None:
        """``details``: for the log, which may name files. Clients get ``trouble``, which names none."""
        if trouble != self.trouble:
            self.trouble = trouble
            if trouble:
                log.warning("%s", details or trouble)
            else:
                log.info("the store can be read")

    # --- on the event loop

    def _swap(self, snapshot: Snapshot) -> None:
        before = self.snapshot
        if before is not None and not snapshot.is_newer_than(before):
            return
        self.snapshot = snapshot
        for listener in self._listeners:
            try:
                listener(before, snapshot)
            except Exception:
                # One protocol's trouble is not the others'.
                log.exception("a new epoch was not taken note of")
        self._wake()

    def _wake(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)


def _public_words(error: HeadraceError | OSError) -> str:
    """What clients are told of an error: nothing of where the store lies."""
    if isinstance(error, OSError):
        return f"the store cannot be read: {error.strerror or type(error).__name__}"
    return f"waiting: {error.what}" if isinstance(error, StoreError) else error.what


def _one_line(error: HeadraceError | OSError) -> str:
    if isinstance(error, OSError):
        return str(error)
    found = f" ({error.found})" if error.found else ""
    where = f"{error.where}: " if error.where else ""
    waiting = "waiting: " if isinstance(error, StoreError) else ""
    return f"{waiting}{where}{error.what}{found}"


def nearest_addresses(name: str, readable: Sequence[str]) -> list[str]:
    """States that may be meant by an address that is none: those of the step, or such with a name that is near."""
    inside = [each for each in readable if each.startswith(f"{name}.")]
    return inside or nearest(shorten(name), readable)
