"""Runs of a program beside the caller, or on its thread: what `app.start` and `app.run` give back."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from headrace.checkpoint.commands import Stop
from headrace.read.store import Store as StoreView
from headrace.read.store import manifest_of
from headrace.read.view import StateView
from headrace.spark.job import Job, Until, Watch
from headrace.state.moments import plain_address
from headrace.state.savepoints import Savepoint, create_savepoint

if TYPE_CHECKING:
    from headrace.dataflow.app import App
    from headrace.dataflow.settings import Settings
    from headrace.edit.editor import Editor

SHOWN: Final = 8
"""Epochs in the table that a notebook shows."""


class Run:
    """A program that runs beside you: in a notebook, a test, or a service of your own."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name=f"headrace-{job.program.app}", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._job.run()
        except BaseException as error:
            self._error = error
            self._job.started.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until the run has ended (True) or the time is up (False); raises what ended it, if it was not you."""
        self._thread.join(timeout_s)
        if self._error is not None:
            raise self._error
        return not self._thread.is_alive()

    def stop(self, *, savepoint: str = "", note: str = "", drain: bool = False) -> Savepoint | None:
        """Ends the run after the current epoch, and waits for that.

        ``savepoint``: pins the last epoch under this name, and gives the savepoint back; one that cannot be taken is
        refused while the run still goes on. ``drain``: first reads the input of now to its end and fires everything, as
        ``until="drained"`` does; nothing can be resumed after that.
        """
        self._job.stop(Stop(savepoint, note, drain))
        self.wait()
        # Taken by the run itself, before it let the next driver in; here it is read back.
        return (
            create_savepoint(self._job.store, name=savepoint, note=note, place=self._job.place) if savepoint else None
        )

    def savepoint(self, name: str = "", *, note: str = "") -> Savepoint:
        """Pins the newest published epoch until somebody deletes the savepoint; the run goes on.

        At once, whatever the size of the state. Without a name it is called after its epoch.
        """
        return create_savepoint(self._job.store, name=name, note=note)

    def edit(self, why: str) -> Editor:
        """Changes single keys by hand while the run goes on; they are true with an epoch that it publishes.

        ``with run.edit("ticket 4711") as edit: edit.set("fraud.total", "c1", 5)``
        """
        from headrace.edit.editor import Editor

        return Editor(self._job.store.url, why=why)

    @property
    def epoch(self) -> int:
        """The newest published epoch; −1 before the first."""
        return self._job.published

    @property
    def store(self) -> StoreView:
        """The store as a reader sees it: the newest published epoch."""
        return StoreView(plain_address(self._job.store.url))

    def _repr_html_(self) -> str:
        """State, newest epochs and rows per second at this moment, as a notebook shows them."""
        from headrace.screens import epochs_html

        if self._error is not None:
            state = f"failed: {self._error}"
        elif not self._thread.is_alive():
            state = "ended"
        else:
            state = "running" if self._job.started.is_set() else "starting Spark"
        if self.epoch < 0:
            return epochs_html(self._job.program.app, state, [])
        store = self.store
        return epochs_html(self._job.program.app, state, [manifest_of(store, each) for each in store.epochs()[-SHOWN:]])

    def state(self, name: str, value: Any = None) -> StateView[Any]:
        """A state of the newest published epoch, by its address: ``step`` or ``step.state``."""
        return self.store.state(name, value)


def start(app: App, settings: Settings, until: Until, session: Any = None, watch: Watch | None = None) -> Run:
    """Runs a program beside the caller."""
    return Run(Job(app, settings, until, session, watch))


def run(app: App, settings: Settings, until: Until, session: Any = None, watch: Watch | None = None) -> Job:
    """Runs a program to its end on the calling thread."""
    job = Job(app, settings, until, session, watch)
    job.run()
    return job
