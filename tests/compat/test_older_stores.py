"""Stores that earlier versions wrote are read, and their jobs go on: with every kind of state.

`before_types.zip` was written by the last version whose manifests said nothing of types; `contents.json` is what that
version read from it.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace as hr
from tests.compat.program import EPOCHS, START, build, contents, outputs, push

HERE = Path(__file__).parent
STORES = sorted(HERE.glob("*.zip"))
MORE = 3
"""Epochs that follow; the last is behind everything that is open."""


@pytest.fixture(params=STORES, ids=lambda path: path.stem)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with zipfile.ZipFile(request.param) as packed:
        packed.extractall(tmp_path / "store")
    return tmp_path / "store"


def going_on(store: Path, *, begun: bool) -> Iterator[dict[str, list[str]]]:
    app, streams = build()
    with hr.testing.Harness(app, start=START, store=store) as h:
        for epoch in range(EPOCHS if begun else 0, EPOCHS + MORE):
            push(h, streams, epoch)
            given = outputs(h, streams)
            if epoch >= EPOCHS:
                yield given
        h.epoch(watermark="23:59")
        yield outputs(h, streams)


def test_an_older_store_reads_as_the_version_read_it_that_wrote_it(store: Path) -> None:
    assert contents(store) == json.loads((HERE / "contents.json").read_text())


def test_a_job_goes_on_from_an_older_store_as_if_nothing_had_happened(store: Path, tmp_path: Path) -> None:
    anew = tmp_path / "anew"
    assert list(going_on(store, begun=True)) == list(going_on(anew, begun=False))
    assert contents(store) == contents(anew)
