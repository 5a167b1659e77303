"""The epochs that a server answers from, for sessions of SQL, which ask on threads of their own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.errors import NoSuchMoment

if TYPE_CHECKING:
    from headrace.read.snapshot import Snapshot
    from headrace.serve.service import Service
    from headrace.state.moments import Moment


class ServedSnapshots:
    """The newest epoch of a service, and past ones that it keeps open."""

    def __init__(self, service: Service, loop: asyncio.AbstractEventLoop) -> None:
        self._service = service
        self._loop = loop

    def ready(self) -> bool:
        return self._service.snapshot is not None

    def newest(self) -> Snapshot:
        found = self._service.snapshot
        if found is None:
            raise NoSuchMoment(
                "no epoch can be read yet", found=self._service.trouble, next_move="ask again when the job has run one"
            )
        return found

    def at(self, moment: Moment) -> Snapshot:
        """Not on the event loop."""
        return asyncio.run_coroutine_threadsafe(self._service.past.at(moment), self._loop).result()
