"""Commands by which a server tells about itself: INFO, COMMAND, CONFIG GET and what clients ask at their start."""

from __future__ import annotations

import os
import platform
import resource
import sys
from typing import TYPE_CHECKING, Any, Final

from headrace.model.time import format_time
from headrace.read.patterns import Pattern
from headrace.serve.resp import replies
from headrace.serve.resp.commands import COMMANDS, Command, Refusal, Request, command, find_command, number, spoken
from headrace.serve.resp.moments import ADDRESS, MOMENT
from headrace.serve.resp.scanning import count_keys
from headrace.serve.resp.talking import FORMS, VERSION

if TYPE_CHECKING:
    from headrace.serve.resp.session import RespSession

_OWN_FLAGS: Final = frozenset({"data", ADDRESS, MOMENT})
_COMMAND_HELP: Final = {
    "(no subcommand)": "Tells all commands of this server.",
    "COUNT": "How many there are.",
    "LIST": "Their names.",
    "INFO [<name> ...]": "Arity, flags and places of keys.",
    "DOCS [<name> ...]": "What they are for.",
    "GETKEYS <command> [<arg> ...]": "Which words of a command are keys.",
}
_CONFIG_HELP: Final = {"GET <pattern> [<pattern> ...]": "Settings by their names; they are given when a server starts."}


@command("INFO", -1, group="server", summary="Epoch, age, watermarks, clients, memory: by section.")
def info(session: RespSession, request: Request) -> bytes:
    wanted = {spoken(word).lower() for word in request[1:]} - {"default", "all", "everything"}
    parts = [_section(name, tell(session)) for name, tell in _SECTIONS.items() if not wanted or name.lower() in wanted]
    return replies.text("\r\n".join(parts))


def _section(name: str, facts: dict[str, Any]) -> str:
    return "".join([f"# {name}\r\n", *(f"{each}:{value}\r\n" for each, value in facts.items())])


def _server(session: RespSession) -> dict[str, Any]:
    uptime = max(0, int(session.service.clock() - session.service.started_s))
    return {
        "redis_version": VERSION,
        "redis_mode": "standalone",
        "server_name": "headrace",
        "os": f"{platform.system()} {platform.release()}",
        "process_id": os.getpid(),
        "uptime_in_seconds": uptime,
        "uptime_in_days": uptime // 86400,
    }


def _headrace(session: RespSession) -> dict[str, Any]:
    facts = _facts(session)
    watermarks = facts.pop("watermarks", {})
    return {
        **{name: int(value) if isinstance(value, bool) else value for name, value in facts.items()},
        **{f"watermark_{step}": time for step, time in watermarks.items()},
    }


def _facts(session: RespSession) -> dict[str, Any]:
    """What the service tells of itself, without steps that the client may not hear of."""
    snapshot, user = session.scope.snapshot, session.user
    facts = session.service.facts(snapshot)
    if snapshot is None or user is None or user.everything:
        return facts
    watermarks: dict[str, str] = facts.get("watermarks", {})
    known = {step: time for step, time in watermarks.items() if user.may_know(step, snapshot.addresses)}
    return {**facts, "watermarks": known}


def _clients(session: RespSession) -> dict[str, Any]:
    server = session.server
    listening = sum(1 for each in server.sessions() if each.listening)
    return {
        "connected_clients": server.connections,
        "maxclients": session.service.limits.connections,
        "pubsub_clients": listening,
    }


def _memory(session: RespSession) -> dict[str, Any]:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {"used_memory": peak, "used_memory_peak": peak, "maxmemory": 0, "maxmemory_policy": "noeviction"}


def _persistence(session: RespSession) -> dict[str, Any]:
    # What clients look at to know whether they may begin.
    return {"loading": int(session.scope.snapshot is None), "async_loading": 0, "aof_enabled": 0}


def _stats(session: RespSession) -> dict[str, Any]:
    server = session.server
    return {
        "total_connections_received": server.total_connections,
        "total_commands_processed": server.total_commands,
        "rejected_connections": server.rejected_connections,
        "pubsub_channels": len(server.channels.exact),
        "pubsub_patterns": len(server.channels.patterns),
    }


def _replication(session: RespSession) -> dict[str, Any]:
    up = "down" if session.service.trouble or session.scope.snapshot is None else "up"
    return {"role": "slave", "master_link_status": up, "slave_read_only": 1, "connected_slaves": 0}


def _cluster(session: RespSession) -> dict[str, Any]:
    return {"cluster_enabled": 0}


def _keyspace(session: RespSession) -> dict[str, Any]:
    if session.scope.snapshot is None:
        return {}
    keys = count_keys(session)
    return {f"db{place}": f"keys={keys},expires=0,avg_ttl=0" for place in range(len(FORMS))} if keys else {}


_SECTIONS: Final = {
    "Server": _server,
    "Headrace": _headrace,
    "Clients": _clients,
    "Memory": _memory,
    "Persistence": _persistence,
    "Stats": _stats,
    "Replication": _replication,
    "Cluster": _cluster,
    "Keyspace": _keyspace,
}


@command("COMMAND", -1, group="server", summary="The commands of this server: COUNT, LIST, INFO, DOCS, GETKEYS.")
def command_(session: RespSession, request: Request) -> bytes:
    wanted = request[1].upper() if len(request) > 1 else b""
    match wanted:
        case b"":
            return replies.array(_describe(each, session.version) for each in COMMANDS.values())
        case b"COUNT":
            return replies.integer(len(COMMANDS))
        case b"LIST":
            return replies.array(replies.text(each.name) for each in COMMANDS.values())
        case b"INFO":
            found = [find_command(name) for name in request[2:]] if request[2:] else list(COMMANDS.values())
            return replies.array(session.null() if each is None else _describe(each, session.version) for each in found)
        case b"DOCS":
            named = [find_command(name) for name in request[2:]] if request[2:] else list(COMMANDS.values())
            docs = {each.name: _document(each) for each in named if each is not None}
            return replies.plain(docs, session.version)
        case b"GETKEYS":
            return _keys_of(request[2:])
        case b"HELP":
            return replies.help_lines("COMMAND", _COMMAND_HELP)
    raise Refusal(f"ERR unknown subcommand '{spoken(request[1])}'. Try COMMAND HELP.")


def _flags(each: Command) -> list[str]:
    return sorted(each.flags - _OWN_FLAGS)


def _describe(each: Command, version: int) -> bytes:
    parts = [
        replies.text(each.name),
        replies.integer(each.arity),
        replies.members(map(replies.simple, _flags(each)), version),
        *map(replies.integer, each.keys),
        replies.members([replies.simple("@read" if "data" in each.flags else "@connection")], version),
        replies.EMPTY,
        replies.EMPTY,
        replies.EMPTY,
    ]
    return replies.array(parts)


def _document(each: Command) -> dict[str, Any]:
    return {"summary": each.summary, "since": "1.0.0", "group": each.group, "complexity": "O(1)"}


def _keys_of(request: Request) -> bytes:
    found = find_command(request[0]) if request else None
    if found is None:
        raise Refusal("ERR Invalid command specified")
    first, last, step = found.keys
    if not first:
        raise Refusal("ERR The command has no key arguments")
    words = request[first : None if last == -1 else last + 1 : step]
    return replies.array(map(replies.bulk, words))


@command("CONFIG", -2, group="server", summary="CONFIG GET pattern: the few settings that clients ask for.")
def config(session: RespSession, request: Request) -> bytes:
    if request[1].upper() == b"HELP":
        return replies.help_lines("CONFIG", _CONFIG_HELP)
    if request[1].upper() != b"GET":
        if request[1].upper() in (b"SET", b"REWRITE", b"RESETSTAT"):
            session.refused(f"CONFIG {spoken(request[1]).upper()}", "settings are given when a server is started")
            raise Refusal("ERR settings of a server are given when it is started: headrace serve --help")
        raise Refusal(f"ERR unknown subcommand '{spoken(request[1])}'. Try CONFIG HELP.")
    if len(request) < 3:
        raise Refusal("ERR wrong number of arguments for 'config|get' command")
    limits = session.service.limits
    known = {
        "maxclients": limits.connections,
        "timeout": int(limits.idle_s),
        "proto-max-bulk-len": limits.request_bytes,
        "databases": len(FORMS),
        "save": "",
        "appendonly": "no",
        "maxmemory": 0,
        "maxmemory-policy": "noeviction",
        "notify-keyspace-events": "",
        "io-threads": 1,
    }
    patterns = [Pattern(spoken(word).lower()) for word in request[2:]]
    found = {name: str(value) for name, value in known.items() if any(each.matches(name) for each in patterns)}
    return replies.plain(found, session.version)


@command("TIME", 1, "fast", group="server", summary="The clock of the server.")
def time_(session: RespSession, request: Request) -> bytes:
    seconds, rest = divmod(session.service.clock(), 1)
    return replies.plain([str(int(seconds)), str(int(rest * 1e6))], session.version)


@command("ROLE", 1, "fast", group="server", summary="A replica of the job, which alone writes.")
def role(session: RespSession, request: Request) -> bytes:
    facts = session.service.facts()
    linked = "connected" if not facts["trouble"] and facts["epoch"] >= 0 else "connecting"
    return replies.plain(["slave", facts.get("app", ""), 0, linked, max(0, facts["epoch"])], session.version)


@command("MODULE", -2, group="server", summary="MODULE LIST: there are none.")
def nothing(session: RespSession, request: Request) -> bytes:
    return replies.EMPTY


@command("ACL", -2, group="server", summary="ACL WHOAMI: the user of this connection.")
def acl(session: RespSession, request: Request) -> bytes:
    if request[1].upper() == b"WHOAMI":
        return replies.text(session.user.name if session.user is not None else "")
    session.refused(f"ACL {spoken(request[1]).upper()}", "users stand in the file that the server was started with")
    raise Refusal("ERR users stand in the file that the server was started with: headrace token --help")


@command("CLUSTER", -2, group="cluster", summary="There is no cluster here.")
def cluster(session: RespSession, request: Request) -> bytes:
    raise Refusal("ERR This instance has cluster support disabled")


# --- Headrace's own


@command("HEADRACE.INFO", -1, "readonly", "fast", MOMENT, group="headrace", summary="Epoch, age, lag and watermarks.")
def headrace_info(session: RespSession, request: Request) -> bytes:
    return replies.plain(_facts(session), session.version)


@command(
    "HEADRACE.EPOCH", -1, "readonly", "fast", "data", MOMENT, group="headrace", summary="The epoch that answers are of."
)
def headrace_epoch(session: RespSession, request: Request) -> bytes:
    return replies.integer(session.snapshot.epoch)


@command("HEADRACE.STATES", -1, "readonly", "data", MOMENT, group="headrace", summary="The states that may be read.")
def headrace_states(session: RespSession, request: Request) -> bytes:
    told = {
        address.decode(): {
            "kind": table.kind,
            "rows": table.stored_rows,
            "watermark": _time(session.snapshot.watermark_us(address.decode().partition(".")[0])),
        }
        for address, table in sorted(session.scope.tables.items())
    }
    return replies.plain(told, session.version)


def _time(time_us: int | None) -> str | None:
    return None if time_us is None else format_time(time_us)


@command("HEADRACE.WAIT", -3, "readonly", group="headrace", summary="WAIT epoch ms, or WAIT source offset ms.")
async def headrace_wait(session: RespSession, request: Request) -> bytes:
    """The epoch that was reached; null where the time was up before."""
    if len(request) > 4:
        raise Refusal("ERR wrong number of arguments for 'headrace.wait' command")
    timeout_s = number(request[-1], "timeout is not an integer or out of range") / 1000
    if not 0 <= timeout_s <= 3600:
        raise Refusal("ERR timeout is negative, or longer than an hour")
    service = session.service
    if len(request) == 3:
        found = await service.wait_for_epoch(number(request[1], "epoch is not an integer"), timeout_s)
    else:
        found = await service.wait_for_offset(spoken(request[1]), _offset(request[2]), timeout_s)
    return session.null() if found is None else replies.integer(found.epoch)


def _offset(word: bytes) -> Any:
    import json

    try:
        return json.loads(word)
    except (ValueError, RecursionError):
        raise Refusal('ERR an offset is a number, or JSON as the source keeps it: {"topic": {"0": 12}}') from None
