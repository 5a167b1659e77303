"""Who may read: users, their tokens and states, and limits on what one client may ask of a server.

Tokens are made here, of 32 random bytes, shown once and kept as salted SHA-256: a token cannot be guessed, so the hash
needs not be slow, and one look-up stays cheap enough for every request of HTTP. Users stand in a TOML file::

    [users.web]
    states = ["hourly", "fraud.*"]          # patterns; without the line: every state
    commands_per_second = 5000              # of all its connections together; without the line: no limit

    [[users.web.tokens]]
    id = "Zm9vYmFy"                         # the first characters of the token, to find it by
    salt = "…"
    sha256 = "…"

Without users everybody who reaches the server may read; that is why it listens on loopback unless told otherwise
(`check_binding`).

What this module deliberately does not do: speak a protocol. Each of them turns its refusals into its own words and
tells `Access.trail` of them.

Who was refused what, and why, is one line each in the log ``headrace.audit``, never so many that they fill a disk. A
host that is refused over and over is written down as long as it stays within `LINES_PER_SECOND`, after a first burst of
`LINES_AT_ONCE`. What is beyond is counted, and the number told with the next line, or when the flood is over. Hosts are
counted one by one, so that nobody hides behind the noise of another.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import re
import secrets
import ssl
import time
import tomllib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.durable import make_folder, write_whole
from headrace.errors import SettingsError

ID_CHARS: Final = 8
_PREFIX: Final = "hr_"
_TOKEN_BYTES: Final = 32
_PATTERN: Final = re.compile(r"[A-Za-z0-9_.*?\[\]!-]{1,200}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much one client may ask of a server process."""

    request_bytes: int = 4 * 2**20
    keys: int = 10_000
    """Keys (or fields) of one request."""
    connections: int = 10_000
    """Of one port; those that are in their TLS handshake count."""
    handshakes_per_address: int = 256
    """TLS handshakes of one address that are unfinished at the same time."""
    commands_per_second: int = 0
    """Of one connection; 0: no limit. Users may have limits of their own."""
    reply_bytes: int = 64 * 2**20
    """Of one reply over Redis' protocol, whole transactions included, of a page, and of one request for many keys over
    HTTP; and of messages that wait for a client: more, and it is cut off."""
    unfinished_s: float = 30.0
    """How long a TLS handshake may take, a request to arrive, and a client to name itself where it has to."""
    unread_s: float = 60.0
    """How long a client may leave replies unread that it has asked for, over either protocol."""
    idle_s: float = 0.0
    """How long a client may say nothing; 0: forever."""


class Token(msgspec.Struct, frozen=True):
    """What is kept of a token."""

    id: str
    salt: str
    sha256: str

    def fits(self, token: str) -> bool:
        return hmac.compare_digest(_hash(token, self.salt), self.sha256)


class User(msgspec.Struct, frozen=True, eq=False, omit_defaults=True):
    """Who may read what. Users are compared by identity: a changed file makes new ones."""

    name: str = ""
    states: tuple[str, ...] = ("*",)
    """Patterns of addresses."""
    commands_per_second: int = 0
    tokens: tuple[Token, ...] = ()

    @property
    def everything(self) -> bool:
        return "*" in self.states

    def may_read(self, address: str) -> bool:
        return any(fnmatchcase(address, pattern) for pattern in self.states)

    def may_know(self, step: str, addresses: Iterable[str]) -> bool:
        """Whether it may hear of a step: where it may read a state of it. ``addresses``: of all states there are."""
        return self.everything or any(
            self.may_read(address) for address in addresses if address.partition(".")[0] == step
        )


ANYBODY: Final = User("default")
"""Whoever connects where no users are named."""


class Access:
    """The users of a server. A file that changes is read again; one that has become wrong changes nothing."""

    def __init__(self, path: Path | None = None) -> None:
        self.trail = Trail()
        """Who was refused what."""
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._users: dict[str, User] = {}
        self._by_id: dict[str, list[User]] = {}
        if path is not None:
            self._read(path)

    @property
    def open(self) -> bool:
        """Whether nobody has to name themselves."""
        return self._path is None

    @property
    def users(self) -> Mapping[str, User]:
        return self._users

    def is_known(self, user: User) -> bool:
        """Whether a user that was let in still may: by the same lines of the file."""
        return self.open or self._users.get(user.name) is user

    def find(self, token: str, name: str | None = None) -> User | None:
        """The user of a token, who must have that name where one is given."""
        for user in self._by_id.get(token[: len(_PREFIX) + ID_CHARS], ()):
            if (name is None or user.name == name) and any(each.fits(token) for each in user.tokens):
                return user
        return None

    def look(self) -> bool:
        """Reads the file again if it changed; answers whether it did. A wrong file is told once and ignored."""
        if self._path is None:
            return False
        try:
            if _stamp(self._path) == self._stamp:
                return False
            self._read(self._path)
        except (SettingsError, OSError) as error:
            self._stamp = _stamp(self._path) if self._path.exists() else None
            log.error("the users of %s stay as they were: %s", self._path, error)
            return False
        return True

    def _read(self, path: Path) -> None:
        stamp = _stamp(path)
        found = read_users(path)
        # Who stands there as before is the same user as before, so that their connections stay.
        same = {name: user for name, user in self._users.items() if name in found and _equal(user, found[name])}
        self._users = found | same
        self._by_id = {}
        for user in self._users.values():
            for token in user.tokens:
                self._by_id.setdefault(_PREFIX + token.id, []).append(user)
        self._stamp = stamp


class Meter:
    """Counts commands against a limit per second; may be ahead by one second's worth."""

    def __init__(self, per_second: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_second = per_second
        self._clock = clock
        self._left = float(per_second)
        self._seen = clock()

    def allows(self, commands: int = 1) -> bool:
        now = self._clock()
        self._left = min(float(self.per_second), self._left + (now - self._seen) * self.per_second)
        self._seen = now
        if self._left < commands:
            return False
        self._left -= commands
        return True


def make_token() -> tuple[str, Token]:
    """A new token, and what is kept of it."""
    token = _PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
    salt = secrets.token_hex(16)
    return token, Token(token[len(_PREFIX) : len(_PREFIX) + ID_CHARS], salt, _hash(token, salt))


def add_user(path: Path, name: str, states: tuple[str, ...]) -> str:
    """Makes a token for a new user, or a further one for a known user, and writes it into the file; gives the token."""
    if not _NAME.fullmatch(name):
        raise SettingsError(
            "invalid user name",
            expected="letters, digits, - and _, 64 at most",
            found=repr(name),
            next_move="choose another name",
        )
    for pattern in states:
        if not _PATTERN.fullmatch(pattern):
            raise SettingsError(
                "invalid pattern of states",
                expected="a name as hourly, fraud.shops or fraud.*",
                found=repr(pattern),
                next_move="* stands for any characters",
            )
    known = read_users(path) if path.exists() else {}
    token, kept = make_token()
    lines = [f'\n[[users."{name}".tokens]]', f'id = "{kept.id}"', f'salt = "{kept.salt}"', f'sha256 = "{kept.sha256}"']
    if name not in known:
        listed = ", ".join(f'"{pattern}"' for pattern in states or ("*",))
        lines = [f'\n[users."{name}"]', f"states = [{listed}]", *lines]
    elif states:
        raise SettingsError(
            f"the user {name!r} is there already, with states of its own",
            where=str(path),
            found=", ".join(known[name].states),
            next_move="change its line `states` in the file, and leave --state out here",
        )
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    # Whole, or not at all: a server may be reading it at this moment.
    make_folder(path.absolute().parent)
    content = before + "\n".join(lines) + "\n"
    write_whole(path.absolute(), [content.encode()], unique=True, mode=0o600)
    return token


def read_users(path: Path) -> dict[str, User]:
    """The users of a file, by name."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        unknown = set(content) - {"users"}
        if unknown:
            raise ValueError(f"a table {min(unknown)!r} that means nothing here")
        users = content.get("users", {})
        if not isinstance(users, dict) or not all(isinstance(told, dict) for told in users.values()):
            raise TypeError("users that are no tables")
        return {name: _convert({**told, "name": name}) for name, told in users.items()}
    except (OSError, UnicodeDecodeError, ValueError, TypeError, msgspec.ValidationError) as error:
        raise SettingsError(
            "the file of users cannot be read",
            where=str(path),
            expected="TOML with a table [users.NAME] for each, as `headrace token NAME --users FILE` writes it",
            found=str(error),
            next_move="make a user: headrace token NAME --users FILE",
        ) from error


def check_binding(host: str, *, users: bool, tls: bool, insecure: bool, danger: str) -> None:
    """Refuses to let strangers in: other machines need both tokens and TLS, or somebody who says it is meant so.

    ``danger``: what others could do, as ``read everything here``.
    """
    if is_loopback(host) or insecure or (users and tls):
        return
    missing = [name for name, there in (("users (--users)", users), ("TLS (--tls-cert, --tls-key)", tls)) if not there]
    raise SettingsError(
        f"other machines could {danger}",
        where=f"--bind {host}",
        expected="both users with tokens and TLS, or a network that is safe by other means",
        found=f"no {' and no '.join(missing)}",
        next_move="make a token (headrace token NAME --users FILE) and give a certificate; "
        "--insecure says that the network is safe",
    )


def is_loopback(host: str) -> bool:
    if host in ("localhost", ""):
        return host == "localhost"
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def tls_of(certificate: str | None, key: str | None) -> ssl.SSLContext | None:
    """The server's side of TLS; None where neither file is given."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise SettingsError(
            "TLS wants both a certificate and its key",
            expected="--tls-cert and --tls-key",
            found="only --tls-key" if certificate is None else "only --tls-cert",
            next_move="give the other file too, or neither",
        )
    return make_tls(Path(certificate), Path(key))


def make_tls(certificate: Path, key: Path) -> ssl.SSLContext:
    """The server's side of TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(
            "the certificate cannot be used",
            where=f"{certificate}, {key}",
            expected="a certificate chain and its key, in PEM files",
            found=f"{type(error).__name__}: {error}",
            next_move="look whether both files can be read, and whether the key is that of the certificate",
        ) from error
    return context


def _convert(told: dict[str, Any]) -> User:
    unknown = set(told) - set(User.__struct_fields__)
    if unknown:
        raise ValueError(f"{min(unknown)!r} of the user {told['name']!r}, which means nothing here")
    return msgspec.convert(told, User)


def _equal(one: User, other: User) -> bool:
    return msgspec.structs.astuple(one) == msgspec.structs.astuple(other)


def _hash(token: str, salt: str) -> str:
    return hashlib.sha256(f"{salt}:{token}".encode("utf-8", "replace")).hexdigest()


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size


# --- who was refused


LINES_PER_SECOND: Final = 10
LINES_AT_ONCE: Final = 1000
MOST_HOSTS: Final = 1000
"""So many are told apart; who was not refused for the longest time is forgotten first."""

log: Final = logging.getLogger("headrace.audit")


def audit(peer: str, user: str, request: str, reason: str) -> None:
    """One line for a request that was refused: who, what, why."""
    log.warning("refused %s from %s (user %s): %s", _line(request), peer, user or "-", _line(reason))


class Trail:
    """The lines of one server."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._hosts: OrderedDict[str, _Host] = OrderedDict()

    def refused(self, peer: str, user: str, request: str, reason: str) -> None:
        """Writes down a refused request. ``peer``: a host, or a host with a port behind a colon."""
        name = peer.rpartition(":")[0] or peer
        host = self._hosts.get(name)
        if host is None:
            host = self._hosts[name] = _Host(name, self._clock())
            while len(self._hosts) > MOST_HOSTS:
                self._hosts.popitem(last=False)[1].tell_left_out()
        self._hosts.move_to_end(name)
        if host.may_write(self._clock()):
            host.tell_left_out()
            audit(peer, user, request, reason)
        else:
            host.left_out += 1

    def catch_up(self) -> None:
        """Tells of what was left out, where that is over; called now and then."""
        for host in self._hosts.values():
            if host.left_out and host.may_write(self._clock()):
                host.tell_left_out()


class _Host:
    def __init__(self, name: str, now_s: float) -> None:
        self.left_out = 0
        self._name = name
        self._lines = float(LINES_AT_ONCE)
        self._seen_s = now_s

    def may_write(self, now_s: float) -> bool:
        self._lines = min(float(LINES_AT_ONCE), self._lines + (now_s - self._seen_s) * LINES_PER_SECOND)
        self._seen_s = now_s
        if self._lines < 1:
            return False
        self._lines -= 1
        return True

    def tell_left_out(self) -> None:
        if self.left_out:
            log.warning("refused %d further requests from %s, too many for a line each", self.left_out, self._name)
            self.left_out = 0


def _line(text: str) -> str:
    """What a client sent, on one line of bounded length."""
    clean = "".join(char if char.isprintable() else "?" for char in text[:200])
    return clean if len(text) <= 200 else clean + "…"
