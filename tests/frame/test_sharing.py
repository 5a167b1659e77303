"""How the tests are shared between processes: what takes seconds to start must not be started in each of them."""

from __future__ import annotations

import pytest


def test_tests_of_a_file_stay_together(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("loadgroup", False):
        pytest.skip("all tests run in this process")
    # Versions of pytest and xdist that do not fit leave the name of the group out, and say nothing: each test goes
    # alone to whoever is free, and every process starts Spark, a broker and a database.
    assert request.node.nodeid.endswith("@tests/frame/test_sharing.py")
