"""``headrace ingest``: a log that takes events by HTTP, for jobs to read."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.exits import Json, Trace, report_errors
from headrace.cli.options import MAX_PORT
from headrace.model.amounts import count_of

if TYPE_CHECKING:
    from headrace.ingest.serving import Tell
    from headrace.ingest.streams import Streams
    from headrace.model.rows import RowCodec


def ingest(
    log: Annotated[str, typer.Option("--log", metavar="DIR", help="Folder of the log; made where it is not.")],
    stream: Annotated[
        list[str] | None,
        typer.Option("--stream", help="Take events for this stream, with partitions: clicks:4; repeatable."),
    ] = None,
    types: Annotated[
        list[str] | None,
        typer.Option(
            "--type", metavar="[STREAM=]FILE[:NAME]",
            help="Check events: a Record of a program, or an app, whose sources then say it; repeatable.",
        ),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", "-p", min=0, max=MAX_PORT, metavar="PORT", help="For HTTP; 0 takes a free one.")
    ] = 8400,
    bind: Annotated[str, typer.Option("--bind", help="Address to listen on.")] = "127.0.0.1",
    keep: Annotated[str | None, typer.Option("--keep", help="How long events are kept: 7d. Else for ever.")] = None,
    keep_mb: Annotated[int | None, typer.Option("--keep-mb", help="How much is kept of each partition.")] = None,
    remember: Annotated[str, typer.Option("--remember", help="How long idempotency keys are remembered.")] = "1d",
    segment_mb: Annotated[int, typer.Option("--segment-mb", help="Size of a file of the log.")] = 64,
    users: Annotated[
        str | None, typer.Option("--users", metavar="FILE", help="Users with tokens and streams, in TOML.")
    ] = None,
    tls_cert: Annotated[str | None, typer.Option("--tls-cert", metavar="FILE", help="Certificate chain, PEM.")] = None,
    tls_key: Annotated[str | None, typer.Option("--tls-key", metavar="FILE", help="Its key, PEM.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen for other machines without tokens or TLS.")
    ] = False,
    origin: Annotated[
        list[str] | None, typer.Option("--origin", help="A web page that may send events; repeatable.")
    ] = None,
    max_request_kb: Annotated[int, typer.Option("--max-request-kb", help="Size of one request.")] = 16 * 1024,
    max_event_kb: Annotated[int, typer.Option("--max-event-kb", help="Size of one event.")] = 1024,
    max_pending_mb: Annotated[int, typer.Option("--max-pending-mb", help="Of all requests that wait.")] = 128,
    max_rate: Annotated[int, typer.Option("--max-rate", help="Requests per second of an address; 0: any.")] = 0,
    as_json: Json = False,
    trace: Trace = False,
) -> None:  # fmt: skip
    """Take events by HTTP and keep them, durable before they are answered. Ctrl-C ends it.

    Example: headrace ingest --log ./log

    Example: headrace ingest --log ./log --stream clicks:4 --type clicks=tweets.py:Click --keep 7d

    Example: headrace ingest --log ./log --type social.py

    Then: curl -d '{"user": "ann"}' localhost:8400/streams/clicks/events
    """
    with report_errors(trace=trace, as_json=as_json):
        from headrace.ingest.log import LogOptions
        from headrace.ingest.serving import IngestOptions, serve
        from headrace.model.time import span_us

        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
        kept = LogOptions(
            segment_bytes=segment_mb * 2**20,
            keep_us=None if keep is None else span_us(keep, what="--keep"),
            keep_bytes=None if keep_mb is None else keep_mb * 2**20,
            remember_us=span_us(remember, what="--remember"),
        )
        options = IngestOptions(
            log=log, port=port, bind=bind, users=users, tls_cert=tls_cert, tls_key=tls_key, insecure=insecure,
            origins=tuple(origin or ()), max_rate=max_rate, request_bytes=max_request_kb * 1024,
            event_bytes=max_event_kb * 1024, pending_bytes=max_pending_mb * 2**20, kept=kept,
        )  # fmt: skip
        serve(options, plan_streams(stream or [], types or []), _json_teller() if as_json else _tell)


def plan_streams(named: list[str], types: list[str]) -> Streams:
    """What ``--stream`` and ``--type`` say together."""
    from headrace.ingest.streams import Streams, StreamSpec, parse_stream

    partitions = dict(map(parse_stream, named))
    codecs: dict[str, RowCodec] = {}
    for spec in types:
        codecs |= read_types(spec)
    default = codecs.pop("", None)
    every = {name: StreamSpec(partitions.get(name, 1), codecs.get(name, default)) for name in {**partitions, **codecs}}
    return Streams(every, None if every else StreamSpec(codec=default))


def read_types(spec: str) -> dict[str, RowCodec]:
    """Stream → the type of its events, as ``[STREAM=]FILE[:NAME]`` says; the stream ``""`` stands for all others."""
    from headrace.cli.loading import find_app, import_file, split_spec
    from headrace.dataflow.app import App
    from headrace.ingest.layout import is_stream_name
    from headrace.model.rows import codec_of

    stream, equals, rest = spec.partition("=")
    if not equals or not is_stream_name(stream):
        stream, rest = "", spec
    path, name = split_spec(rest)
    module = import_file(path)
    value: Any = getattr(module, name, None) if name else None
    if name is None or value is None or isinstance(value, App):
        return _types_of(find_app(module, name, path), spec)
    return {stream: codec_of(value, where=f"--type {spec}")}


def _types_of(app: Any, spec: str) -> dict[str, RowCodec]:
    """The streams that an app reads, with their types."""
    from headrace.connectors.ingest import IngestSource
    from headrace.dataflow.graph import ReadNode
    from headrace.errors import ProgramError

    reads = [(node.source, node.codec) for node in app.nodes if isinstance(node, ReadNode)]
    types = {source.stream: codec for source, codec in reads if isinstance(source, IngestSource)}
    if not types:
        raise ProgramError(
            "this app reads no log",
            where=f"--type {spec}",
            expected="app.read(…, hr.source.ingest(…), Type), or the name of a Record: FILE:NAME",
        )
    return types


def _json_teller() -> Tell:
    from headrace.cli.show import print_json_line

    return print_json_line


def _tell(told_of: dict[str, Any]) -> None:
    """What happens, in a line each."""
    match told_of.get("event"):
        case "listening":
            port, log = told_of["port"], told_of["log"]
            print(f"taking events for {log} on port {port}; Ctrl-C ends it", flush=True)
            name = next(iter(told_of["streams"]), "events")
            print(f"try: curl -d '{{…}}' localhost:{port}/streams/{name}/events", flush=True)
        case "ended":
            requests, commits = count_of(told_of["requests"], "request"), count_of(told_of["commits"], "commit")
            print(f"ended after {requests} in {commits}", flush=True)
