"""Packages that only some programs need: each comes with an extra of Headrace, and its absence is told in words.

They are imported where they are used, so that a program is built and explained without them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.errors import EnvironmentMissing


@contextmanager
def package(name: str, *, extra: str, where: str = "", instead: str = "") -> Iterator[None]:
    """Around an import. `instead`: another way to get there, for the end of the advice.

    >>> with package("psycopg", extra="postgres", where="sink.postgres"):
    ...     import a_package_that_nobody_has
    Traceback (most recent call last):
        ...
    headrace.errors.EnvironmentMissing: sink.postgres: the package psycopg is not installed
      found:    No module named 'a_package_that_nobody_has'
      next:     pip install "headrace[postgres]", on every machine that runs this program
    """
    try:
        yield
    except ImportError as error:
        raise EnvironmentMissing(
            f"the package {name} is not installed",
            where=where,
            found=str(error),
            next_move=f'pip install "headrace[{extra}]", {instead or "on every machine that runs this program"}',
        ) from error
