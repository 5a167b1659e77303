"""What connections answer from: the states of the newest snapshot that a user may read, and answers kept ready.

Connections that see the same states in the same form share a `ReplyScope`. It keeps the replies of ``GET`` as they go
over the wire, so that a key asked for again costs one look into a dictionary. They are kept under keys as these stand
in a request, with their length in front (`asked`): so input is looked up as it comes, and what is found is a whole key,
because nothing else was ever put there. Memory is bounded: replies that were not asked for in a while go first.

A reply is kept across epochs until its key changes. What changed is taken out by the thread that opened the epoch,
before it is answered from; what the event loop puts in meanwhile, still of the epoch before, is noted and looked at
once more when the epoch begins. Where too much changed, or what a program declares of its states, everything goes.

Replies of states whose values expire, whose windows end, or whose keys can be written in several ways, are kept for one
epoch only: nobody would tell when they are wrong.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from headrace.model.key_text import text_key, written_key
from headrace.net.access import ANYBODY, User
from headrace.read.forms import JSON, json_of
from headrace.read.reader import Reader
from headrace.read.values import ValueReader
from headrace.serve.resp import replies
from headrace.serve.resp.refusing import too_long

if TYPE_CHECKING:
    from headrace.read.snapshot import Snapshot
    from headrace.serve.service import Service


KEPT_REPLY_BYTES: Final = 4096
"""Longer replies are made anew each time."""
_ENTRY_BYTES: Final = 160
"""What a kept reply costs beside its bytes."""
MOST_CHANGES: Final = 200_000
"""Up to so many changed rows are looked for one by one; beyond, dropping everything costs less."""
FEW_KEPT: Final = 1000
"""So few replies are not worth looking for what changed."""
_DROP_AT_ONCE: Final = 1024
_PINNED_BYTES: Final = 1 << 20
"""For the replies that a scope keeps which one client uses for a while."""
ENOUGH_BYTES: Final = 1 << 18
"""Replies are handed to the transport when so many bytes of them are there."""
_END: Final = b"\r\n"
_LENGTHS: Final = tuple(b"%d" % length for length in range(1024))
"""What stands before keys of each length. Longer ones are read word by word, like everything that is seldom."""

Changes = frozenset[bytes]
"""Keys that changed, as they are asked for."""


def asked(key: bytes) -> bytes:
    """A key as it stands in a request, behind its ``$``."""
    return b"%d\r\n%b\r\n" % (len(key), key)


def key_asked(piece: bytes) -> bytes | None:
    """The key that a piece of a request is; None where it is something else, or a very long one."""
    length, _, rest = piece.partition(_END)
    key = rest[:-2]
    return key if len(key) < 1024 and _LENGTHS[len(key)] == length and rest[-2:] == _END else None


class ReplyScope:
    """The states that some connections see, in one form."""

    def __init__(
        self, states: tuple[str, ...], form: str, version: int, dispose: Disposer, reply_bytes: int = 64 * 2**20
    ) -> None:
        """``states``: patterns of addresses; ``form``: JSON or MessagePack; ``version``: of the protocol."""
        self._user = User(states=states)
        self.form = form
        self.version = version
        self.null = replies.null(version)
        self.snapshot: Snapshot | None = None
        self.tables: dict[bytes, Reader] = {}
        """Address → state."""
        self.kept: dict[bytes, bytes] = {}
        """Key as it is asked for → reply of GET."""
        self._older: dict[bytes, bytes] = {}
        self._moment: dict[bytes, bytes] = {}
        """The same of states whose answers change by themselves."""
        self._lasting: dict[bytes, object] = {}
        """Address → what replies that are kept from epoch to epoch depend on beside their key."""
        self._makers: dict[bytes, Maker] = {}
        """Address → who makes the reply of GET for a key of it …"""
        self._passing: dict[bytes, Maker] = {}
        """… of states whose answers are good for this epoch only."""
        self._room = self._mark = self._moment_room = self._budget = 0
        self._dispose = dispose
        self._reply_bytes = reply_bytes
        self._coming: deque[tuple[Snapshot, Changes | None]] = deque()
        """Epochs that will be answered from next, with what they changed; None: too much, or nobody knows."""
        self._since: list[bytes] = []
        """Keys whose replies were put in since the first of them was prepared."""

    def get(self, key: bytes) -> bytes | None:
        """The reply of GET; None where no state here has its address."""
        piece = asked(key)
        return self.kept.get(piece) or self.make(piece, key)

    def get_asked(self, pieces: Sequence[bytes]) -> list[bytes]:
        """Replies of GET for pieces of input: up to one that is no whole key or of no state here, or until enough."""
        kept = self.kept
        found: list[bytes] = []
        size = 0
        for piece in pieces:
            reply = kept.get(piece)
            if reply is None:
                key = key_asked(piece)
                reply = None if key is None else self.make(piece, key)
                if reply is None:
                    break
                kept = self.kept
                size += len(reply)
            found.append(reply)
            if size > ENOUGH_BYTES:
                break
        return found

    def make(self, piece: bytes, key: bytes) -> bytes | None:
        """The reply for a key that is not among those kept; None where no state here has its address."""
        reply = self._older.get(piece)
        if reply is None:
            address, _, text = key.partition(b":")
            make = self._makers.get(address)
            if make is None:
                return self._of_this_epoch(address, piece, text)
            reply = make(text)
            if len(reply) > KEPT_REPLY_BYTES or reply is WRONG_TYPE:
                return reply if len(reply) <= self._reply_bytes else self._too_long(reply)
        self._room -= len(piece) + len(reply) + _ENTRY_BYTES
        if self._room < self._mark:
            self._make_room()
        self.kept[piece] = reply
        # Noted behind it: whoever prepares an epoch looks through what is kept after it has announced the epoch.
        if self._coming:
            self._since.append(piece)
        return reply

    def keep(self, made: dict[bytes, bytes]) -> None:
        """Keeps replies of GET that were made elsewhere, from this snapshot, by keys as they are asked for."""
        for piece, reply in made.items():
            if len(reply) <= KEPT_REPLY_BYTES:
                self._room -= len(piece) + len(reply) + _ENTRY_BYTES
                self.kept[piece] = reply
        if self._coming:
            self._since += made
        if self._room < self._mark:
            self._make_room()

    def _make_room(self) -> None:
        """When what is kept fills three quarters of the budget it becomes the older half of what is kept.

        Who is asked for again comes back from there, until the newer half fills a quarter and the older one goes.
        """
        self._dispose.add(self._older)
        self._older, self._mark = {}, 0
        if self._room < 0:
            self._older, self.kept = self.kept, {}
            self._room = self._budget * 3 // 4
            self._mark = self._budget // 2

    def _of_this_epoch(self, address: bytes, piece: bytes, text: bytes) -> bytes | None:
        reply = self._moment.get(piece)
        if reply is None:
            make = self._passing.get(address)
            if make is None:
                return None
            reply = make(text)
            if len(reply) > self._reply_bytes:
                return self._too_long(reply)
            self._moment_room -= len(piece) + len(reply) + _ENTRY_BYTES
            if len(reply) <= KEPT_REPLY_BYTES and self._moment_room > 0:
                self._moment[piece] = reply
        return reply

    def _too_long(self, reply: bytes) -> bytes:
        return replies.error(too_long(len(reply), self._reply_bytes))

    @property
    def busy(self) -> bool:
        """Whether it keeps enough to be worth care."""
        return self.replies > FEW_KEPT

    @property
    def replies(self) -> int:
        """How many replies it keeps from epoch to epoch."""
        return len(self.kept) + len(self._older)

    def prepare(self, snapshot: Snapshot, changes: Changes | None) -> None:
        """Takes out what an epoch changed, before it is answered from; called by the thread that opened it."""
        self._coming.append((snapshot, changes))
        kept, older = self.kept, self._older
        for piece in changes or ():
            kept.pop(piece, None)
            older.pop(piece, None)

    def advance(self, snapshot: Snapshot, budget: int) -> None:
        """Answers from a newer snapshot."""
        self.snapshot = snapshot
        self.tables = {
            address.encode(): table
            for address, table in snapshot.tables().items()
            if self._user.everything or self._user.may_read(address)
        }
        before, lasting = self._lasting, self._find_lasting(snapshot)
        self._lasting = lasting
        makers = {address: maker_of(table, self.form, self.null) for address, table in self.tables.items()}
        self._makers = {address: make for address, make in makers.items() if address in lasting}
        self._passing = {address: make for address, make in makers.items() if address not in lasting}
        self._dispose.add(self._moment)
        self._moment, self._moment_room = {}, budget // 8
        self._budget = budget - budget // 8
        known = self._changes_until(snapshot)
        if known is None or before != lasting:
            self.drop()
        else:
            for piece in self._since:
                if any(piece in changes for changes in known):
                    self.kept.pop(piece, None)
                    self._older.pop(piece, None)
        if not self._coming:
            self._since = []

    def _find_lasting(self, snapshot: Snapshot) -> dict[bytes, object]:
        """The states whose replies are kept from epoch to epoch, with everything beside a key that they depend on.

        A state that was empty had no keys to tell their type, and a changed program may tell what is stored otherwise.
        """
        return {
            address: (type(table), table.kind, snapshot.declared(table.address))
            for address, table in self.tables.items()
            if table.stable and table.by_text
        }

    def _changes_until(self, snapshot: Snapshot) -> list[Changes] | None:
        """What was prepared for a snapshot and those before it that were passed over; None: not everything is known."""
        found: list[Changes] = []
        reached, known = False, True
        while self._coming and not reached:
            prepared, changes = self._coming.popleft()
            reached = prepared is snapshot
            known = known and changes is not None
            found.append(changes or frozenset())
        return found if reached and known else None

    def drop(self) -> None:
        """Forgets all replies."""
        self._dispose.add(self.kept)
        self._dispose.add(self._older)
        self.kept, self._older = {}, {}
        self._room, self._mark = self._budget * 3 // 4, 0


class Scopes:
    """All scopes of a process; advanced together."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.dispose = Disposer()
        self._lock = threading.Lock()
        """For the list of scopes, which two threads walk over."""
        self._scopes: WeakValueDictionary[tuple[tuple[str, ...], str, int], ReplyScope] = WeakValueDictionary()
        """Those that somebody uses …"""
        self._common = [self.of(ANYBODY, JSON, version) for version in (2, 3)]
        """… and those that nearly everybody does: they keep what is ready when nobody is connected for a while."""
        service.prepare_with(self._prepare)
        service.listen(self._advance)

    def of(self, user: User, form: str, version: int) -> ReplyScope:
        states = ("*",) if user.everything else user.states
        with self._lock:
            found = self._scopes.get((states, form, version))
            if found is not None:
                return found
            found = ReplyScope(states, form, version, self.dispose, self._service.limits.reply_bytes)
            self._scopes[states, form, version] = found
        if self._service.snapshot is not None:
            found.advance(self._service.snapshot, self._share())
        return found

    def pinned(self, snapshot: Snapshot | None, user: User, form: str, version: int) -> ReplyScope:
        """A scope that nobody shares, and that stays with a snapshot; None: with there being none."""
        states = ("*",) if user.everything else user.states
        found = ReplyScope(states, form, version, self.dispose, self._service.limits.reply_bytes)
        if snapshot is not None:
            found.advance(snapshot, _PINNED_BYTES)
        return found

    @property
    def kept_replies(self) -> int:
        """How many replies are ready, in all scopes."""
        return sum(scope.replies for scope in self._all())

    def _all(self) -> list[ReplyScope]:
        with self._lock:
            return list(self._scopes.values())

    def _share(self) -> int:
        """What each may keep. Those that keep nothing need nothing."""
        return self._service.memory_bytes // max(1, sum(scope.busy for scope in self._all()))

    def _prepare(self, before: Snapshot | None, snapshot: Snapshot) -> None:
        scopes = self._all()
        changes = None
        if before is not None and any(scope.busy for scope in scopes):
            changes = find_changes(before, snapshot)
        for scope in scopes:
            scope.prepare(snapshot, changes)

    def _advance(self, before: Snapshot | None, snapshot: Snapshot) -> None:
        for scope in self._all():
            scope.advance(snapshot, self._share())


class Disposer:
    """Frees dictionaries little by little: freeing a million entries at once would hold everybody up."""

    def __init__(self) -> None:
        self._dead: list[dict[bytes, bytes]] = []

    def add(self, dead: dict[bytes, bytes]) -> None:
        if dead:
            self._dead.append(dead)

    def work(self) -> bool:
        """Frees some; answers whether there is more."""
        if not self._dead:
            return False
        dead = self._dead[-1]
        for _ in range(min(_DROP_AT_ONCE, len(dead))):
            dead.popitem()
        if not dead:
            self._dead.pop()
        return bool(self._dead)


def find_changes(before: Snapshot, snapshot: Snapshot) -> Changes | None:
    """What changed between two snapshots, as keys are asked for; None where it is too much."""
    if before.line != snapshot.line or snapshot.changed_rows(before) > MOST_CHANGES:
        return None
    found: set[bytes] = set()
    for address, keys in snapshot.changed(before):
        head = f"{address}:".encode()
        # Only replies of states whose keys are text, or null, are kept from epoch to epoch.
        found.update(asked(head + text) for key in keys if (text := written_key(key)) is not None)
    return frozenset(found)


# --- making the reply of GET: the shortest way that the state allows


WRONG_TYPE: Final = replies.error("WRONGTYPE Operation against a key holding the wrong kind of value")

Maker = Callable[[bytes], bytes]
"""From the text of a key, without its address, to the reply of GET."""


def maker_of(table: Reader, form: str, null: bytes) -> Maker:
    """Who makes the replies of a state in a form; ``null``: what is said of a key that is not there."""
    if isinstance(table, ValueReader) and table.plain_json and form == JSON:
        return _plain_maker(table, null)
    if table.kind in ("value", "windows"):
        return _any_maker(table, form, null)
    return _wrong_maker(table, null)


def _plain_maker(table: ValueReader, null: bytes) -> Maker:
    """Values of keys that are text, as JSON: what nearly everybody asks for."""
    raw = table.finder.raw
    ends = (b"l", b'"')

    def make(text: bytes) -> bytes:
        # The end decides for speed: only `null`, in quotes or without, is not written as it is.
        found = raw(b"s" + text if text[-1:] not in ends else text_key(text))
        if found is None:
            return null
        value = json_of(found)
        return b"$%d\r\n%b\r\n" % (len(value), value)

    return make


def _any_maker(table: Reader, form: str, null: bytes) -> Maker:
    def make(text: bytes) -> bytes:
        try:
            value = table.get(table.key_of(text), form)
        except ValueError:
            return null
        return null if value is None else b"$%d\r\n%b\r\n" % (len(value), value)

    return make


def _wrong_maker(table: Reader, null: bytes) -> Maker:
    def make(text: bytes) -> bytes:
        try:
            # A key that is not there is of no kind, so it cannot be of the wrong one.
            return WRONG_TYPE if table.has(table.key_of(text)) else null
        except ValueError:
            return null

    return make
