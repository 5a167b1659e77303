"""Lists over HTTP: jobs, their states, the types of a state, and the newest epochs in short.

``/metrics`` gives the figures of one server process as Prometheus reads them. With several processes on one port every
answer is of the one that happened to be asked; a label says which. Figures of a state are told to nobody there: they
are the business of those who may read it. Of steps whose states the asking side may not read it learns nothing.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from starlette.responses import Response

from headrace.model.time import format_time
from headrace.net.access import User
from headrace.read.forms import JSON
from headrace.read.reader import Reader
from headrace.read.snapshot import Snapshot
from headrace.read.steps import count_old_rows
from headrace.serve.http.asking import TIMES, AskedRequest
from headrace.serve.http.job import NEWEST_EPOCHS, ServedJob, answer, headers_of, tag_of, time_json, watermark_of
from headrace.serve.http.jobs import EPOCH_PARAMETERS, Jobs, download, unchanged
from headrace.serve.http.reading import read_page
from headrace.state.manifest import Manifest

PAGE_PARAMETERS: Final = ("prefix", "limit", "after")


async def list_jobs(jobs: Jobs, asked: AskedRequest) -> Response:
    """``GET /v1/jobs``."""
    asked.only()
    told = {"jobs": [_about_job(job, job.newest) for job in jobs.all if job.newest is not None]}
    return answer(told, asked.form, {"Cache-Control": "private, no-cache"})


async def describe_job(jobs: Jobs, asked: AskedRequest) -> Response:
    """``GET /v1/jobs/{app}``."""
    asked.only()
    job = jobs.job(asked)
    newest = job.snapshot()
    told = _about_job(job, newest)
    marks = newest.state.manifest.time.steps
    known = (step for step in sorted(marks) if asked.user.may_know(step, newest.addresses))
    steps = {step: _time_text(newest.watermark_us(step)) for step in known}
    told |= {"states": _readable(asked, newest), "watermarks": steps}
    return answer(told, asked.form, headers_of(job, newest))


async def list_states(jobs: Jobs, asked: AskedRequest) -> Response:
    """``GET /v1/jobs/{app}/state``."""
    asked.only(*EPOCH_PARAMETERS)
    job = await jobs.await_job(asked)
    snapshot = await jobs.snapshot(asked, job)
    headers = headers_of(job, snapshot)
    if (same := unchanged(asked, snapshot, headers)) is not None:
        return same
    states = [_about_state(snapshot, table) for table in _tables(asked, snapshot)]
    told = {"app": snapshot.app, "epoch": snapshot.epoch, "states": states}
    return answer(told, asked.form, {**headers, "ETag": tag_of(snapshot)})


async def read_state(jobs: Jobs, asked: AskedRequest) -> Response:
    """``GET /v1/jobs/{app}/state/{address}``: what it is, a page of it, or all of it."""
    asked.only("format", "count", TIMES, *PAGE_PARAMETERS, *EPOCH_PARAMETERS)
    export = asked.export()
    found = await jobs.find(asked)
    if found.unchanged is not None:
        return found.unchanged
    if export is not None and not asked.has("limit", "after"):
        return await download(jobs, asked, found, export)
    if asked.has(*PAGE_PARAMETERS):
        return await read_page(jobs, asked, found)
    told = {
        "app": found.snapshot.app,
        "epoch": found.snapshot.epoch,
        **_about_state(found.snapshot, found.table, asked.text_form),
    }
    if asked.flag("count"):
        told["keys"] = await jobs.in_thread(found.table.count)
    return answer(told, asked.form, found.headers)


async def list_epochs(jobs: Jobs, asked: AskedRequest) -> Response:
    """``GET /v1/jobs/{app}/epochs``: the newest manifests in short, the newest first."""
    asked.only("limit")
    job = jobs.job(asked)
    limit = asked.number("limit", 20, least=1, most=NEWEST_EPOCHS)
    snapshot = job.snapshot()
    manifests = await jobs.in_thread(job.manifests, limit)
    told = {"app": snapshot.app, "epochs": [_about_epoch(manifest) for manifest in manifests]}
    return answer(told, asked.form, headers_of(job, snapshot))


async def health(jobs: Jobs, asked: AskedRequest) -> Response:
    """``GET /health``: 200 when every job can be answered for; says nothing that needs a token."""
    ready = all(job.newest is not None for job in jobs.all)
    lag = max((job.lag_epochs for job in jobs.all), default=0)
    told = {"status": "ok" if ready else "waiting for the first epoch", "lag_epochs": lag}
    return answer(told, asked.form, {"Cache-Control": "no-store"}, 200 if ready else 503)


# --- in short


def _about_job(job: ServedJob, newest: Snapshot) -> dict[str, Any]:
    return {
        "app": newest.app,
        "epoch": newest.epoch,
        "timeline": newest.timeline,
        "age_ms": job.age_ms(newest),
        "lag_epochs": job.lag_epochs,
        "watermark": _time_text(watermark_of(newest, None)),
        "final": newest.final,
        "trouble": job.service.trouble,
    }


def _readable(asked: AskedRequest, snapshot: Snapshot) -> list[str]:
    return [address for address in snapshot.addresses if asked.user.may_read(address)]


def _tables(asked: AskedRequest, snapshot: Snapshot) -> list[Reader]:
    found = (snapshot.table(address) for address in _readable(asked, snapshot))
    return [table for table in found if table is not None]


def _about_state(snapshot: Snapshot, table: Reader, form: str = JSON) -> dict[str, Any]:
    step, _, declared = snapshot.declared(table.address)
    old = count_old_rows(table.views, declared)
    return {
        "state": table.address,
        "step": step,
        "kind": table.kind,
        "rows": table.stored_rows,
        **({"old_rows": old} if old else {}),
        "watermark": time_json(snapshot.watermark_us(step), form),
    }


def _about_epoch(manifest: Manifest) -> dict[str, Any]:
    return {
        "epoch": manifest.epoch,
        "timeline": manifest.timeline,
        "published": format_time(manifest.published_us),
        "rows_read": sum(task.rows_read for task in manifest.tasks),
        "parallelism": manifest.parallelism,
        "final": manifest.final,
    }


def _time_text(at_us: int | None) -> str | None:
    return None if at_us is None else format_time(at_us)


# --- figures


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


async def read_metrics(jobs: Jobs, asked: AskedRequest) -> Response:
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
