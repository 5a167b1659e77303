"""Options of programs and of the server beside one, each said once; commands name them in their signatures."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import typer

from headrace.cli.completing import complete_moments, complete_programs, complete_stores

MAX_PORT: Final = 65_535

# --- which program, and with what

File = Annotated[
    str,
    typer.Argument(
        metavar="APP.PY[:NAME]",
        help="The program, also a file of SQL; :NAME picks one of several apps.",
        autocompletion=complete_programs,
    ),
]
Store = Annotated[
    str, typer.Argument(metavar="STORE", help="Folder or URL of the store.", autocompletion=complete_stores)
]


def check_newest(store: str) -> str:
    """The store, if it is written without a moment of its past."""
    from headrace.state.moments import parse_address

    if parse_address(store).moment is not None:
        raise typer.BadParameter(f"the past of a job is not changed by this: leave out what is behind the @ in {store}")
    return store


def check_one_moment(store: str, at: str | None) -> None:
    """A moment is said once."""
    from headrace.state.moments import parse_address

    if at is not None and parse_address(store).moment is not None:
        raise typer.BadParameter(f"two moments are said, {store} and --at {at}: leave one of them out")


At = Annotated[
    str | None,
    typer.Option("--at", metavar="MOMENT", help="As it was: an epoch (41), a savepoint (before-v2), a time in UTC."),
]
Moment = Annotated[
    str,
    typer.Argument(
        metavar="STORE[@MOMENT]",
        help="Folder or URL of the store; behind the @ an epoch, a savepoint or a time, else the newest epoch.",
        autocompletion=complete_moments,
    ),
]
Epoch = Annotated[
    str | None,
    typer.Argument(metavar="EPOCH", help="One epoch in detail, per level and shard; also a savepoint or a time."),
]
Profile = Annotated[str | None, typer.Option("--profile", help="Profile of headrace.toml.")]
Vars = Annotated[list[str] | None, typer.Option("--var", metavar="NAME=VALUE", help="What hr.var gives; repeatable.")]

# --- how it runs

StorePath = Annotated[
    str | None, typer.Option("--store", help="Folder or URL of the checkpoint store.", autocompletion=complete_stores)
]
Parallelism = Annotated[int | None, typer.Option("--parallelism", "-p", help="Number of shards.")]
EpochEvery = Annotated[
    str | None,
    typer.Option("--epoch", help="How often an epoch begins: 500ms, or adaptive(latency=1s, spend=20%)."),
]
Master = Annotated[str | None, typer.Option("--master", help="Where Spark runs: local[2], spark://host:7077.")]
Until = Annotated[
    Literal["stopped", "caught_up", "drained"],
    typer.Option("--until", help="End when told to, when the input of now is read, or at the end of all input."),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Throw away what is in the store and start over.")]
StartFrom = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="[STORE@]MOMENT",
        help="Go back to a savepoint, an epoch or a time (before-v2, 41); or begin with one of another store.",
    ),
]
Repeat = Annotated[
    list[str] | None,
    typer.Option("--repeat", metavar="OUTPUT", help="With --from: take back what went out, and give it out anew; all."),
]
Hold = Annotated[
    list[str] | None,
    typer.Option("--hold", metavar="OUTPUT", help="With --from: give nothing out until the old end is passed; all."),
]
Again = Annotated[bool, typer.Option("--again", help="With --from: go back there once more.")]
OriginalLost = Annotated[
    bool,
    typer.Option("--original-lost", help="In a copy of a savepoint: go on as the job itself, for its store is gone."),
]
Drop = Annotated[
    list[str] | None,
    typer.Option(
        "--drop", metavar="STEP[.STATE]", help="Give up stored state that the program does not fit; repeatable."
    ),
]
Takeover = Annotated[bool, typer.Option("--takeover", help="End another driver that runs on this store.")]
Plain = Annotated[bool, typer.Option("--plain", help="Log lines instead of a live table.")]

# --- the server beside it

_BESIDE: Final = "The server beside the job"

Serve = Annotated[
    str | None,
    typer.Option(
        "--serve",
        metavar="[[ADDRESS:]PORT]",
        help="Serve state beside the job: Redis' protocol on 127.0.0.1:6399 by default, and HTTP.",
    ),
]
HttpPort = Annotated[
    int | None,
    typer.Option("--http-port", min=0, max=MAX_PORT, metavar="PORT", help="For HTTP [8399].", rich_help_panel=_BESIDE),
]
PgPort = Annotated[
    int | None,
    typer.Option(
        "--pg-port", min=0, max=MAX_PORT, metavar="PORT", help="For Postgres' protocol.", rich_help_panel=_BESIDE
    ),
]
Processes = Annotated[
    int | None, typer.Option("--processes", help="How many share the ports [1].", rich_help_panel=_BESIDE)
]
Users = Annotated[
    str | None,
    typer.Option("--users", metavar="FILE", help="Users with tokens and states, in TOML.", rich_help_panel=_BESIDE),
]
TlsCert = Annotated[
    str | None, typer.Option("--tls-cert", metavar="FILE", help="Certificate chain, PEM.", rich_help_panel=_BESIDE)
]
TlsKey = Annotated[str | None, typer.Option("--tls-key", metavar="FILE", help="Its key, PEM.", rich_help_panel=_BESIDE)]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Listen for other machines without tokens or TLS.", rich_help_panel=_BESIDE)
]
Origins = Annotated[
    list[str] | None,
    typer.Option("--origin", help="A web page that may read over HTTP; repeatable.", rich_help_panel=_BESIDE),
]
