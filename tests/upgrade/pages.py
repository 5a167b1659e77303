"""One job and its changed programs: hits of pages, counted in whatever way a version of the program says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import headrace as hr
from headrace.testing import Harness

START = "2024-01-01T12:00"


class Hit(hr.Record):
    page: str
    at: hr.Timestamp
    n: int = 1
    x: float = 0.5


class Said(hr.Record):
    page: str
    what: str


Make = Callable[[Any], Any]
"""A version of the program: from the stream of hits to the step."""


def keeping(kind: Any, write: Callable[[Any, Hit], None], read: Callable[[Any], Any], **more: Any) -> Make:
    """A step `kept` whose function keeps one state, `held`. ``more``: other names, ``ttl``, states ``beside`` it."""
    options = {"name": "kept", "was": None, "state": "held", "state_was": None, "ttl": None, **more}

    def make(hits: Any) -> Any:
        class Keep(hr.Process[Hit, Said, str]):
            __annotations__ = {options["state"]: kind, **options.get("beside", {})}

            def on_event(self, event: Hit, ctx: hr.Context[str]) -> Iterator[Said]:
                handle = getattr(self, options["state"])
                write(handle, event)
                yield Said(ctx.key, repr(read(handle)))

            def on_timer(self, timer: Any, ctx: hr.Context[str]) -> Iterator[Said]:
                yield Said(ctx.key, f"{timer.name} fired")

            if options["state_was"] or options["ttl"]:
                locals()[options["state"]] = hr.state(was=options["state_was"], ttl=options["ttl"])

        return hits.key_by(Hit.page).process(Keep()).named(options["name"], was=options["was"])

    return make


def add(state: Any, event: Hit) -> None:
    state.set((state.get() or 0) + event.n)


VALUE = keeping(hr.ValueState[int], add, lambda state: state.get())


class Version:
    """A program on a store, begun; leaving it ends it."""

    def __init__(
        self, store: Path, make: Make, *, drop: Sequence[str] = (), parallelism: int = 2, **options: Any
    ) -> None:
        self.app = hr.App("pages")
        self.hits = self.app.read("hits", hr.source.items([]), Hit, time=Hit.at)
        self.step = make(self.hits)
        self.step.show()
        self.h = Harness(self.app, start=START, store=store, parallelism=parallelism, drop=drop, **options)

    def __enter__(self) -> Version:
        return self

    def __exit__(self, *_: Any) -> None:
        self.h.close()

    def epoch(self, *hits: tuple[str, str, int], watermark: str | None = None) -> list[Any]:
        self.h.push(self.hits, *(Hit(page, self.h.at(at), n) for page, at, n in hits))
        self.h.epoch(watermark=watermark, clock=watermark)
        return self.h.take(self.step)

    def crash(self, *hits: tuple[str, str, int]) -> None:
        self.h.push(self.hits, *(Hit(page, self.h.at(at), n) for page, at, n in hits))
        self.h.crash(at="before_publish")

    @property
    def fates(self) -> dict[str, str]:
        """Name → what became of it, where anything did."""
        return {line.name: line.fate for line in self.h._coordinator.upgrade.changes}


def run_old(store: Path, make: Make, watermark: str = "12:30") -> None:
    """The old program: an epoch that is published, and one that dies."""
    with Version(store, make) as old:
        old.epoch(("a", "12:10", 2), ("b", "12:20", 3), watermark=watermark)
        old.crash(("a", "12:31", 100))
