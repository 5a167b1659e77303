"""A schema registry in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.services.registry import FakeRegistry, running_registry


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with running_registry() as running:
        yield running
