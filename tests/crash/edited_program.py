"""A job that is edited while it runs and is idle, in a process of its own: started by `tests.crash.processes`."""

from __future__ import annotations

import sys
from pathlib import Path

import headrace as hr
from tests.crash.program import UNCOMPILED


class Hit(hr.Record):
    page: str
    n: int = 1


def build(rows: int, per_epoch: int) -> hr.App:
    app = hr.App("edited")
    hits = app.read("hits", hr.source.items([Hit("a")] * rows, per_epoch=per_epoch), Hit)
    hits.key_by(Hit.page).aggregate(n=hr.sum("n")).named("totals").queryable()
    return app


def main(folder: str, rows: str, per_epoch: str, until: str) -> None:
    store = str(Path(folder) / "store")
    app = build(int(rows), int(per_epoch))
    app.run(until=until, store=store, epoch="50ms", parallelism=1, master="local[1]", spark=UNCOMPILED, plain=True)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(*sys.argv[1:])
