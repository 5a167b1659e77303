"""``headrace serve`` and ``headrace token``: state for whoever speaks Redis' protocol or HTTP, and who that may be."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import options
from headrace.cli.exits import Json, Trace, report_errors

if TYPE_CHECKING:
    from headrace.serve.serving import Tell

Users = Annotated[str | None, typer.Option("--users", metavar="FILE", help="Users with tokens and states, in TOML.")]


def serve(
    store: options.Store,
    port: Annotated[
        int,
        typer.Option(
            "--port", "-p", min=0, max=options.MAX_PORT, metavar="PORT", help="For Redis' protocol; 0 takes a free one."
        ),
    ] = 6399,
    http_port: Annotated[
        int | None,
        typer.Option(
            "--http-port", min=0, max=options.MAX_PORT, metavar="PORT", help="For HTTP; without it there is none."
        ),
    ] = None,
    pg_port: Annotated[
        int | None,
        typer.Option(
            "--pg-port", min=0, max=options.MAX_PORT, metavar="PORT", help="For Postgres' protocol; else there is none."
        ),
    ] = None,
    bind: Annotated[str, typer.Option("--bind", help="Address to listen on.")] = "127.0.0.1",
    processes: Annotated[int, typer.Option("--processes", help="How many processes share the ports.")] = 1,
    follow_ms: Annotated[float, typer.Option("--follow-ms", help="How often to look for a new epoch.")] = 5.0,
    cache: Annotated[
        str | None, typer.Option("--cache", metavar="DIR", help="Be a replica: fetch files here before reading them.")
    ] = None,
    users: Users = None,
    tls_cert: Annotated[str | None, typer.Option("--tls-cert", metavar="FILE", help="Certificate chain, PEM.")] = None,
    tls_key: Annotated[str | None, typer.Option("--tls-key", metavar="FILE", help="Its key, PEM.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen for other machines without tokens or TLS.")
    ] = False,
    origin: Annotated[
        list[str] | None, typer.Option("--origin", help="A web page that may read over HTTP; repeatable.")
    ] = None,
    memory_mb: Annotated[int, typer.Option("--memory-mb", help="For answers a process keeps ready.")] = 384,
    sql_memory_mb: Annotated[int, typer.Option("--sql-memory-mb", help="Of SQL, and as much of columns.")] = 512,
    sql_timeout_s: Annotated[float, typer.Option("--sql-timeout-s", help="Of one statement of SQL.")] = 60.0,
    max_connections: Annotated[int, typer.Option("--max-connections", help="Of each process.")] = 10_000,
    max_keys: Annotated[int, typer.Option("--max-keys", help="Of one request.")] = 10_000,
    max_request_kb: Annotated[int, typer.Option("--max-request-kb", help="Size of one request.")] = 4096,
    max_reply_mb: Annotated[int, typer.Option("--max-reply-mb", help="Values of one GET, MGET or POST …/get.")] = 64,
    max_rate: Annotated[int, typer.Option("--max-rate", help="Commands per second of a connection; 0: any.")] = 0,
    idle_s: Annotated[float, typer.Option("--idle-s", help="End connections that say nothing; 0: never.")] = 0.0,
    as_json: Json = False,
    trace: Trace = False,
) -> None:
    """Serve the state of a job, running or not, over Redis' protocol, HTTP and Postgres' protocol. Ctrl-C ends it.

    Example: headrace serve ./.headrace/tweets

    Example: headrace serve ./state --port 6399 --http-port 8399 --processes 2

    Example: headrace serve ./state --pg-port 5439

    Example: headrace serve s3://bucket/tweets --cache /var/cache/tweets --bind 0.0.0.0 --users users.toml
    --tls-cert cert.pem --tls-key key.pem
    """
    with report_errors(trace=trace, as_json=as_json):
        from headrace.net.access import Limits
        from headrace.serve.serving import Options
        from headrace.serve.serving import serve as run_server

        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
        limits = Limits(
            request_bytes=max_request_kb * 1024, keys=max_keys, connections=max_connections,
            reply_bytes=max_reply_mb * 2**20, commands_per_second=max_rate, idle_s=idle_s,
        )  # fmt: skip
        asked = Options(
            store=store, port=port, http_port=http_port, bind=bind, processes=processes, follow_ms=follow_ms,
            cache=cache, users=users, tls_cert=tls_cert, tls_key=tls_key, insecure=insecure,
            origins=tuple(origin or ()), memory_mb=memory_mb, limits=limits, pg_port=pg_port,
            sql_memory_mb=sql_memory_mb, sql_timeout_s=sql_timeout_s,
        )  # fmt: skip
        run_server(asked, _json_teller() if as_json else _teller(store))


def token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the user: letters, digits, - and _.")],
    users: Annotated[str, typer.Option("--users", metavar="FILE", help="The file; made where it is not.")],
    state: Annotated[
        list[str] | None, typer.Option("--state", help="States that a new user may read, as hourly or fraud.*.")
    ] = None,
    as_json: Json = False,
    trace: Trace = False,
) -> None:
    """Make a token for a user, and the user where there is none. It is shown once; only its hash is kept.

    Example: headrace token web --users users.toml --state hourly --state "fraud.*"
    """
    with report_errors(trace=trace, as_json=as_json):
        from headrace.net.access import add_user

        made = add_user(Path(users), name, tuple(state or ()))
        if as_json:
            from headrace.cli.show import print_json

            print_json({"user": name, "token": made, "users": users})
            return
        print(made)
        typer.echo(f"the token of {name}; it is kept in {users} as a hash only, so it cannot be shown again", err=True)


def _json_teller() -> Tell:
    from headrace.cli.show import print_json_line

    return print_json_line


def _teller(store: str) -> Tell:
    """What happens, in a line each."""

    def tell(told_of: dict[str, Any]) -> None:
        match told_of.get("event"):
            case "listening":
                ports = [f"Redis' protocol on port {told_of['port']}"]
                if "http_port" in told_of:
                    ports.append(f"HTTP on port {told_of['http_port']}")
                if "pg_port" in told_of:
                    ports.append(f"Postgres' protocol on port {told_of['pg_port']}")
                print(f"serving {store}: {', '.join(ports)}; Ctrl-C ends it", flush=True)
            case "serving":
                works = " or ".join(told_of["try"])
                print(f"epoch {told_of['epoch']} of {told_of['app']}: try {works}", flush=True)
            case "restarting":
                print(f"a server process ended with code {told_of['code']}; starting another", flush=True)
            case "ended":
                print(told_of["text"], flush=True)

    return tell
