"""How a connection of Postgres' protocol begins: TLS where it is asked for, who the client is, and what it is told.

Passwords are tokens of the users of a server, sent as they are: what is kept of a token is a salted hash, from which no
challenge could be made (see docs/decisions/0028). So other machines are let in over TLS only (`headrace.net.access`).
"""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.net.access import ANYBODY, User
from headrace.serve.pg import wire
from headrace.serve.pg.statements import Answering
from headrace.serve.pg.variables import REPORTED, Variables

if TYPE_CHECKING:
    from headrace.serve.pg.connection import PgConnection


def start(line: PgConnection) -> None:
    """What a client sends first: a wish for TLS, a wish to cancel, or who it is."""
    if len(line.input) < 8:
        return
    length, code = struct.unpack_from(">ii", line.input)
    if not 8 <= length <= wire.MOST_STARTUP_BYTES:
        line.fatal("08P01", "this is no client of Postgres")
        return
    if len(line.input) < length:
        return
    body = bytes(line.input[8:length])
    del line.input[:length]
    if code == wire.SSL_REQUEST and line.server.tls is not None and not _is_secure(line):
        # What came behind the wish came in the clear: nobody may slip it into the secured connection.
        line.input.clear()
        line.transport.write(b"S")
        line.task = asyncio.get_running_loop().create_task(_secure_line(line))
    elif code in (wire.SSL_REQUEST, wire.GSS_REQUEST):
        line.transport.write(b"N")
        start(line)
    elif code == wire.CANCEL_REQUEST:
        if len(body) >= 8:
            line.server.cancel(*struct.unpack_from(">II", body))
        line.transport.close()
    elif code >> 16 == 3:
        _welcome(line, body)
    else:
        line.fatal("0A000", "protocol 3.0 is spoken here")


def _is_secure(line: PgConnection) -> bool:
    return line.transport.get_extra_info("sslcontext") is not None


async def _secure_line(line: PgConnection) -> None:
    tls = line.server.tls
    assert tls is not None
    try:
        secured = await asyncio.get_running_loop().start_tls(
            line.transport, line, tls, server_side=True, ssl_handshake_timeout=line.server.limits.unfinished_s
        )
    except (OSError, ConnectionError) as error:
        line.server.refused(line, "a connection", f"the TLS handshake failed: {type(error).__name__}")
        line.abort()
        return
    finally:
        line.task = None
    if secured is not None:
        line.connection_made(secured)
        start(line)


def _welcome(line: PgConnection, body: bytes) -> None:
    words = [part.decode("utf-8", "replace") for part in body.split(b"\0")]
    line.told = dict(zip(words[::2], words[1::2]))
    line.told.pop("", None)
    if line.server.tls is not None and not _is_secure(line):
        line.fatal("28000", "TLS is needed here: sslmode=require", "a connection")
        return
    if reason := line.server.crowded():
        line.fatal("53300", reason, "a connection")
        return
    line.started = True
    if line.server.access.open:
        _let_in(line, ANYBODY)
    else:
        line.send(wire.ASK_PASSWORD)
    line.flush()
    line.cut()
    line.go_on()


def authenticate(line: PgConnection, body: bytes) -> None:
    password = body.rstrip(b"\0").decode("utf-8", "replace")
    name = line.told.get("user", "")
    user = line.server.access.find(password, name)
    if user is None:
        line.fatal("28P01", f'no token of the user "{name}"', "a connection")
        return
    _let_in(line, user)


def _let_in(line: PgConnection, user: User) -> None:
    line.user = user
    try:
        session, database = line.server.open_session(user, line.told.get("database", ""))
    except HeadraceError as error:
        line.fatal("3D000", error.what, "a connection")
        return
    options = {name: value for name, value in line.told.items() if name not in ("user", "database", "options")}
    variables = Variables({**options, "session_authorization": user.name})
    line.answering = Answering(session, line.server.catalog(database), variables)
    line.send(wire.AUTHENTICATED)
    for setting, value in {**REPORTED, "application_name": line.told.get("application_name", "")}.items():
        line.send(wire.parameter_status(setting, value))
    line.send(wire.backend_key(line.number, line.secret))
    line.ready()
