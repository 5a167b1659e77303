"""What several files of tests about served state share: a store with a state of every kind, a server, and the audit."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.serve.kinds import make_kinds
from tests.serve.made_store import MadeStore
from tests.serve.served import Served


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where it lies."""
    return make_kinds(tmp_path_factory.mktemp("access") / "store").path


@pytest.fixture
def served(made: MadeStore) -> Iterator[Served]:
    """A server of the store that the file makes, which answers from its first epoch."""
    with Served(made.path) as server:
        server.wait_for(0)
        yield server


@pytest.fixture
def audited(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """Lines of the audit."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Keep()
    logging.getLogger("headrace.audit").addHandler(handler)
    yield lines
    logging.getLogger("headrace.audit").removeHandler(handler)
