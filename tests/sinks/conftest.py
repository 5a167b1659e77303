"""Databases and tables for tests of sinks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services.postgres import Postgres
from tests.sinks.postgres_tables import Written


@pytest.fixture
def dsn(postgres: Postgres) -> str:
    return postgres.database()


@pytest.fixture
def written(dsn: str, tmp_path: Path) -> Iterator[Callable[..., Written]]:
    made: list[Written] = []

    def make(type: Any, **how: Any) -> Written:
        made.append(Written(how.pop("dsn", dsn), tmp_path, type, **how))
        return made[-1]

    yield make
    for each in made:
        each.sink.close()
