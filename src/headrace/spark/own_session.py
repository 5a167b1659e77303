"""The session of one run: a given one, or one that is made when it is first needed and left at the end."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from py4j.protocol import Py4JNetworkError

from headrace.errors import JvmDied
from headrace.spark.connectors import check_connectors, needed_connectors
from headrace.spark.session import check_session, leave_session, make_session, owns_context

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.dataflow.settings import Settings
    from headrace.plan.physical import Program


class OwnSession:
    """Where a run's Spark is."""

    def __init__(self, program: Program, settings: Settings, given: SparkSession | None) -> None:
        self._program = program
        self._settings = settings
        self._given = given
        self._session = given

    def open(self) -> SparkSession:
        """The session; one that is given, or was made before, is checked again."""
        needed = needed_connectors(self._program)
        if self._session is None:
            self._session = make_session(self._program.app, self._settings.master, self._settings.spark, needed)
        else:
            check_session(self._session)
            check_connectors(self._session, needed)
        return self._session

    def drop(self, died: JvmDied) -> None:
        """Lets go of a JVM that died. Raises where it is not ours to start another."""
        if self._given is not None or (self._session is not None and not owns_context(self._session)):
            raise died
        self._session = None

    def leave(self) -> None:
        """At the end of the run; a given session is its owner's."""
        if self._given is None and self._session is not None:
            with suppress(ConnectionError, Py4JNetworkError):
                leave_session(self._session)
