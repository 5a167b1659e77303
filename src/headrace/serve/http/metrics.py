"""``/metrics``: the figures of one server process as Prometheus reads them: lines of name, labels and number.

With several processes on one port every answer is of the one that happened to be asked; a label says which. Figures of
a state are told to nobody here: they are the business of those who may read it. Of steps whose states the asking side
may not read it learns nothing.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from typing import Final, NamedTuple

from starlette.responses import Response

from headrace.net.access import User
from headrace.serve.http.asking import Asked
from headrace.serve.http.job import ServedJob
from headrace.serve.http.jobs import Jobs

TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_ABOUT: Final = {
    "epoch": ("gauge", "The epoch that answers are of; -1 before the first."),
    "age_seconds": ("gauge", "How long ago that epoch was published."),
    "lag_epochs": ("gauge", "Epochs that are published and cannot be answered from yet."),
    "trouble": ("gauge", "1 while nothing newer can be read."),
    "watermark_seconds": ("gauge", "How far event time has come in a step, since 1970."),
    "uptime_seconds": ("gauge", "How long this process answers already."),
    "memory_peak_bytes": ("gauge", "The most memory that this process has had."),
    "redis_connections": ("gauge", "Clients of Redis' protocol that are connected."),
    "redis_connections_total": ("counter", "Clients of Redis' protocol that have come so far."),
    "redis_rejected_connections_total": ("counter", "Clients of Redis' protocol for whom there was no room."),
    "redis_commands_total": ("counter", "Commands of Redis' protocol so far."),
    "redis_kept_replies": ("gauge", "Replies of GET that are kept ready."),
}


class Figure(NamedTuple):
    name: str
    value: float
    labels: dict[str, str]


async def read_metrics(jobs: Jobs, asked: Asked) -> Response:
    """``GET /metrics``."""
    asked.only()
    figures = [figure for job in jobs.all for figure in _figures(job, asked.user)]
    lines = []
    for name, (kind, about) in _ABOUT.items():
        mine = [figure for figure in figures if figure.name == name]
        if mine:
            lines += [f"# HELP headrace_{name} {about}", f"# TYPE headrace_{name} {kind}"]
            lines += [f"headrace_{name}{_labels(figure.labels)} {figure.value!r}" for figure in mine]
    return Response("\n".join([*lines, ""]), 200, {"Cache-Control": "no-store"}, TYPE)


def _figures(job: ServedJob, user: User) -> Iterator[Figure]:
    service, newest = job.service, job.newest
    labels = {"process": str(os.getpid()), "app": "" if newest is None else newest.app}
    yield Figure("epoch", -1 if newest is None else newest.epoch, labels)
    yield Figure("trouble", int(bool(service.trouble)), labels)
    yield Figure("lag_epochs", job.lag_epochs, labels)
    if newest is not None:
        yield Figure("age_seconds", job.age_ms(newest) / 1000, labels)
        for step in sorted(newest.state.manifest.time.steps):
            mark_us = newest.watermark_us(step)
            if mark_us is not None and user.may_know(step, newest.addresses):
                yield Figure("watermark_seconds", mark_us / 1e6, {**labels, "step": step})
    yield Figure("uptime_seconds", max(0.0, service.clock() - service.started_s), labels)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    yield Figure("memory_peak_bytes", peak, labels)
    for name, tell in service.figures.items():
        yield Figure(name, tell(), labels)


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items() if value) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
