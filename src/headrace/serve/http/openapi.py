"""The description of what can be asked, for machines (``/openapi.json``) and for people (``/docs``).

Both are made from one table, so what is served and what is described cannot differ; a test compares the table to the
routes. The page for people holds all it needs: it asks no other host for anything.
"""

from __future__ import annotations

import html
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec

VERSION: Final = "1"
STATE: Final = "/v1/jobs/{app}/state/{address}"


class Parameter(NamedTuple):
    name: str
    about: str
    schema: dict[str, Any]


_TEXT: Final = {"type": "string"}
_EPOCH: Final = {"type": "integer", "minimum": 0}
_OF_EPOCH: Final = (
    Parameter("at", "a past epoch that is still kept: its number, a savepoint's name, or a time", _TEXT),
    Parameter("wait_epoch", "wait until this epoch is published: what was written in it will be seen", _EPOCH),
    Parameter("wait_offset", "wait until sources are read so far: JSON, source → offset in its own words", _TEXT),
    Parameter("timeline", "the timeline of `wait_epoch`; the present one by default", _EPOCH),
    Parameter("store", "the store that `wait_epoch` is of: nothing is waited for where it is another", _TEXT),
    Parameter("timeout", "how long to wait, like 500ms or 5s; 10s by default, up to 60s", _TEXT),
)
_TIMES: Final = Parameter(
    "times", "how times are written in JSON and CSV: iso (the default), or us for microseconds since 1970",
    {"type": "string", "enum": ["iso", "us"]},
)  # fmt: skip
_IN_PATH: Final = {
    "app": "name of the job",
    "address": "the state: `step`, or `step.state`",
    "key": "the key, percent-encoded; text as it is, anything else as JSON",
}


class Operation(NamedTuple):
    method: str
    path: str
    name: str
    about: str
    parameters: tuple[Parameter, ...] = ()
    types: tuple[str, ...] = ("application/json",)
    example: str = ""
    errors: tuple[int, ...] = (400, 401, 403, 404, 429)


_JSON_OR_PACKED: Final = ("application/json", "application/msgpack")
OPERATIONS: Final = (
    Operation("GET", "/health", "health", "200 when every job can be answered for", errors=(503,), example="/health"),
    Operation("GET", "/metrics", "metrics", "figures of this process, as Prometheus reads them", types=("text/plain",),
              errors=(400, 401, 429), example="/metrics"),
    Operation("GET", "/openapi.json", "openapi", "this description", errors=()),
    Operation("GET", "/docs", "docs", "this description for people", types=("text/html",), errors=()),
    Operation("GET", "/v1/jobs", "listJobs", "the jobs that are served here", errors=(401, 429), example="/v1/jobs"),
    Operation("GET", "/v1/jobs/{app}", "describeJob", "a job: its epoch, age, watermarks and states"),
    Operation(
        "GET", "/v1/jobs/{app}/epochs", "listEpochs", "the newest epochs in short, the newest first",
        (Parameter("limit", "how many; 20 by default", {"type": "integer", "minimum": 1, "maximum": 1000}),),
        errors=(400, 401, 404, 429, 503),
    ),
    Operation(
        "GET", "/v1/jobs/{app}/changes", "streamChanges",
        "changes as server-sent events, pushed when an epoch is published; `Last-Event-ID` goes on where one left off",
        (
            Parameter("state", "a state to watch; may be given several times; all by default", _TEXT),
            Parameter("key", "a key to watch; may be given several times; all by default", _TEXT),
            Parameter("values", "false: tell keys only; msgpack: values as MessagePack in base64",
                      {"type": "string", "enum": ["true", "false", "msgpack"]}),
            _TIMES,
        ),
        types=("text/event-stream",), example="/v1/jobs/tweets/changes?state=hourly&key=tweet-42",
        errors=(400, 401, 403, 404, 413, 429, 503),
    ),
    Operation("GET", "/v1/jobs/{app}/state", "listStates", "the states of a job", _OF_EPOCH,
              errors=(400, 401, 404, 410, 429, 503, 504)),
    Operation(
        "GET", STATE, "readState",
        "what a state is; with `prefix`, `limit` or `after` a page of its keys and values; with `format` all of it",
        (
            Parameter("format", "the whole state, streamed",
                      {"type": "string", "enum": ["arrow", "parquet", "csv", "json", "ndjson"]}),
            Parameter("prefix", "only keys whose text begins so", _TEXT),
            Parameter("limit", "keys per page; 100 by default", {"type": "integer", "minimum": 1, "maximum": 10_000}),
            Parameter("after", "`next` of the page before", {"type": "string", "pattern": "^[0-9a-f]{1,16}$"}),
            Parameter("count", "true: count the keys, too", {"type": "boolean"}),
            _TIMES,
            *_OF_EPOCH,
        ),
        types=(*_JSON_OR_PACKED, "application/vnd.apache.arrow.stream", "application/vnd.apache.parquet", "text/csv",
               "application/x-ndjson"),
        example="/v1/jobs/tweets/state/hourly?prefix=tweet-4&limit=10",
        errors=(400, 401, 403, 404, 410, 422, 429, 503, 504),
    ),
    Operation(
        "POST", STATE + "/get", "readKeys", "the values of many keys, all of one epoch, in the order asked",
        (_TIMES, *_OF_EPOCH), types=_JSON_OR_PACKED, errors=(400, 401, 403, 404, 408, 410, 413, 422, 429, 503, 504),
    ),
    Operation(
        "GET", STATE + "/{key}", "readKey", "the value of a key; of a windowed state the newest window",
        (Parameter("window", "that window, as `start/end`", _TEXT), _TIMES, *_OF_EPOCH),
        types=_JSON_OR_PACKED, example="/v1/jobs/tweets/state/hourly/tweet-42",
        errors=(400, 401, 403, 404, 410, 422, 429, 503, 504),
    ),
    Operation(
        "GET", STATE + "/{key}/windows", "readWindows",
        "every window of a key that is kept, by their ends; with `from`, `to`, `order`, `limit` or `after` a page of "
        "those that lie between two times, from state and archive together: `windows`, and `next` where others follow",
        (
            Parameter("from", "windows that begin here or later: a time, or microseconds since 1970", _TEXT),
            Parameter("to", "windows that end here or earlier", _TEXT),
            Parameter("order", "by their ends: asc (the default) or desc", {"type": "string", "enum": ["asc", "desc"]}),
            Parameter("limit", "windows per page; 100 by default",
                      {"type": "integer", "minimum": 1, "maximum": 10_000}),
            Parameter("after", "`next` of the page before",
                      {"type": "string", "pattern": "^-?[0-9]{1,19}\\.-?[0-9]{1,19}$"}),
            _TIMES,
            *_OF_EPOCH,
        ),
        types=_JSON_OR_PACKED, example="/v1/jobs/tweets/state/hourly/tweet-42/windows?from=2024-01-01&to=2024-02-01",
        errors=(400, 401, 403, 404, 410, 422, 429, 502, 503, 504),
    ),
)  # fmt: skip

_OPEN: Final = frozenset({"/health", "/openapi.json", "/docs"})
_ERROR: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["status", "what"],
            "properties": {
                "status": {"type": "integer"},
                **dict.fromkeys(("what", "where", "expected", "found", "next_move"), _TEXT),
            },
        }
    },
}
_HEADERS: Final = {
    "Headrace-Epoch": "the epoch that all of the answer is of",
    "Headrace-Timeline": "its timeline; a job that begins anew has a greater one",
    "Headrace-Store": "the id of its store; another one, made anew in the same place, has another",
    "Headrace-Age-Ms": "how long ago it was published",
    "Headrace-Watermark": "how far event time had come, where the step has one",
    "Headrace-Value-Version": "of one key: the version of its step it was written in, where its type is an older one",
    "Headrace-Newest-Version": "beside it, the newest version of the step",
}


@cache
def openapi_json() -> bytes:
    """The OpenAPI document."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation)
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace",
            "version": VERSION,
            "description": "State of stream processing jobs, read while they run; every answer is of one epoch.",
        },
        "paths": paths,
        "components": {
            "schemas": {"Error": _ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
    return msgspec.json.encode(document)


def _described(operation: Operation) -> dict[str, Any]:
    told: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.about,
        "parameters": [*_path_parameters(operation), *map(_query_parameter, operation.parameters)],
        "responses": _responses(operation),
        "security": [] if operation.path in _OPEN else [{"token": []}, {}],
    }
    if operation.method == "POST":
        body = {
            "type": "object",
            "required": ["keys"],
            "additionalProperties": False,
            "properties": {"keys": {"type": "array", "maxItems": 10_000}, "windows": {"type": "boolean"}},
        }
        told["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return told


def _path_parameters(operation: Operation) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "description": about, "schema": _TEXT}
        for name, about in _IN_PATH.items()
        if f"{{{name}}}" in operation.path
    ]


def _query_parameter(parameter: Parameter) -> dict[str, Any]:
    told = {"name": parameter.name, "in": "query", "description": parameter.about, "schema": parameter.schema}
    if parameter.name in ("state", "key"):
        told["schema"] = {"type": "array", "items": parameter.schema}
    return told


def _responses(operation: Operation) -> dict[str, Any]:
    good: dict[str, Any] = {"description": operation.about, "content": {kind: {} for kind in operation.types}}
    if operation.path not in _OPEN and "{app}" in operation.path:
        good["headers"] = {name: {"description": about, "schema": _TEXT} for name, about in _HEADERS.items()}
    bad = {"description": "an error in parts", "content": {"application/json": {"schema": _ERROR_REF}}}
    told = {"200": good, **{str(status): bad for status in operation.errors}}
    if "{address}" in operation.path and operation.method == "GET":
        told["304"] = {"description": "the epoch is the one that `If-None-Match` names"}
    if operation.name == "health":
        told["503"] = {"description": "no epoch has been published yet", "content": {"application/json": {}}}
    return told


_ERROR_REF: Final = {"$ref": "#/components/schemas/Error"}

_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Headrace</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
code {{ font: 14px/1.4 ui-monospace, monospace; background: #f2f4f6; padding: .1em .3em; border-radius: 3px; }}
h2 {{ font-size: 1.1rem; margin: 2rem 0 .3rem; border-top: 1px solid #ddd; padding-top: 1rem; }}
table {{ border-collapse: collapse; }} td {{ padding: .1rem 1rem .1rem 0; vertical-align: top; }}
@media (prefers-color-scheme: dark) {{ body {{ background: #15191d; color: #dde; }} code {{ background: #242a31; }} }}
</style></head><body>
<h1>Headrace</h1>
<p>State of stream processing jobs, read while they run. Every answer is of one published epoch, and says which one in
its headers: {headers}. The same for machines: <a href="openapi.json"><code>/openapi.json</code></a>.</p>
{operations}
</body></html>
"""


@cache
def docs_page() -> bytes:
    """The page for people."""
    headers = ", ".join(f"<code>{name}</code>" for name in _HEADERS)
    return _PAGE.format(headers=headers, operations="\n".join(map(_section, OPERATIONS))).encode()


def _section(operation: Operation) -> str:
    rows = "".join(
        f"<tr><td><code>{html.escape(p.name)}</code></td><td>{_marked(p.about)}</td></tr>" for p in operation.parameters
    )
    example = f"<p>Like <code>{html.escape(operation.example)}</code></p>" if operation.example else ""
    return (
        f"<h2><code>{operation.method} {html.escape(operation.path)}</code></h2><p>{_marked(operation.about)}</p>"
        f"{f'<table>{rows}</table>' if rows else ''}{example}"
    )


def _marked(text: str) -> str:
    parts = html.escape(text).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))
