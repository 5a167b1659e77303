"""`redis`: rows as strings, hashes or entries of streams in Redis, exactly once.

Tasks make the bytes (`rows`); the release ships them, with a guard that moves in the same script as the rows
(`guard`). One script is atomic, and an epoch that fits into one is visible at once. A larger epoch is written by
several, so readers may see a part of it for a moment; over all, each row is written exactly once.

This module deliberately knows nothing of Redis Cluster: rows and guard could not change together there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.connectors.redis.guard import GuardAnswer, print_of, read_groups, write_group
from headrace.connectors.redis.rows import PACKS, Format, RowForm, Shape, Template, pack_table
from headrace.connectors.redis.server import (
    check_url,
    connect,
    error_code,
    is_away,
    is_cluster,
    is_denied,
    is_too_old,
    shown_url,
)
from headrace.connectors.redis.undo import UndoAnswer, check_chain, take_back
from headrace.connectors.sink_contract import Forget, Guarantee, Release, Rewind, Sink, StageTask, StageWriter
from headrace.connectors.staged import PartWriter
from headrace.errors import HeadraceError, ProgramError, SinkFailed, SinkUnavailable
from headrace.model.crash import reach
from headrace.model.report import StagedPart
from headrace.model.shapes import is_record_class
from headrace.model.time import Span, span_us
from headrace.model.values import type_name

if TYPE_CHECKING:
    from typing import Self

    import pyarrow as pa
    import redis

    from headrace.connectors.keyed_target import KeyedTarget, Position
    from headrace.model.rows import RowCodec

_NOTHING_SEEN = (-1, -1)


class RedisSink(Sink):
    kind: ClassVar[str] = "redis"
    guarantee: Guarantee = "exactly once"
    driver_only: ClassVar[tuple[str, ...]] = ("_client", "_seen")

    def __init__(
        self,
        url: str,
        key: str,
        shape: Shape,
        *,
        field: str | None,
        format: Format,
        ttl: Span | None,
        maxlen: int | None,
        guard: str,
        undo: Span | None,
    ) -> None:
        self.where = f"sink.redis(key={key!r})"
        self.url = check_url(url, self.where)
        self.guard = guard
        self.accepts_updates = shape != "stream"  # type: ignore[misc]
        self._check_choices(shape, field, format, ttl, maxlen)
        ttl_ms = 0 if ttl is None else span_us(ttl, what="ttl", where=self.where) // 1000
        if ttl is not None and ttl_ms < 1:
            raise self._wrong(
                "ttl is too short", "at least a millisecond", repr(ttl), "leave it out for rows that stay"
            )
        self.form = RowForm(
            shape,
            Template(key, "key", self.where),
            None if field is None else Template(field, "field", self.where),
            format,
            ttl_ms,
            maxlen or 0,
        )
        self.undo_ms = 0 if undo is None else span_us(undo, what="undo", where=self.where) // 1000
        if undo is not None and self.undo_ms < 1:
            raise self._wrong(
                "undo is too short",
                "at least a millisecond",
                repr(undo),
                "leave it out, and the output can be held only",
            )
        if self.undo_ms:
            self.rewinds: frozenset[Rewind] = frozenset({"repeat", "hold"})
        # Strings and hashes hold one row of a key each; entries of a stream stand for themselves.
        self.accepts_changelog = shape != "stream"  # type: ignore[misc]
        self.changelog_key = self.form.key_fields if shape != "stream" else None
        self._client: redis.Redis | None = None
        self._seen = _NOTHING_SEEN
        """Timeline and epoch that this process has seen written."""

    def _wrong(self, what: str, expected: str, found: str, next_move: str) -> ProgramError:
        return ProgramError(what, where=self.where, expected=expected, found=found, next_move=next_move)

    def _check_choices(self, shape: Any, field: Any, format: Any, ttl: Any, maxlen: Any) -> None:
        if shape not in ("string", "hash", "stream"):
            raise self._wrong(
                "rows cannot become this", '"string", "hash" or "stream"', repr(shape), "choose one of them"
            )
        if format not in ("json", "msgpack"):
            raise self._wrong("there is no such format", '"json" or "msgpack"', repr(format), "choose one of them")
        if field is not None and shape == "string":
            raise self._wrong(
                "a string has no fields", 'field= with as_="hash" or "stream"', repr(field), "leave it out"
            )
        if format == "msgpack" and shape != "string" and field is None:
            move = 'leave format out, or write whole rows into one field: field="payload"'
            raise self._wrong("fields are written as text, one by one", 'format="json"', '"msgpack"', move)
        if shape == "stream" and ttl is not None:
            raise self._wrong("entries of a stream do not expire", "ttl= with strings or hashes", repr(ttl),
                              "bound the stream with maxlen=")  # fmt: skip
        if maxlen is not None and (shape != "stream" or isinstance(maxlen, bool) or maxlen < 1):
            raise self._wrong("maxlen cannot be used like this", "a whole number of at least 1, with streams",
                              f"maxlen={maxlen!r} with as_={shape!r}", "leave it out")  # fmt: skip

    def bind(self, codec: RowCodec, output: str) -> Self:
        form = self.form
        form.key.check(codec)
        if form.field is not None:
            form.field.check(codec)
        elif form.shape != "string" and not is_record_class(codec.type):
            raise self._wrong(
                f"a {type_name(codec.type)} has no fields to write one by one",
                "a Record, whose fields become those of the hash or entry",
                type_name(codec.type),
                'write whole rows into one field: field="payload"',
            )
        bound = super().bind(codec, output)
        bound._seen = _NOTHING_SEEN
        bound._client = None
        return bound

    def moved_to(self, target: str) -> Self | None:
        elsewhere = self._copied()
        elsewhere.where = f"sink.redis(key={target!r})"
        elsewhere.form = self.form._replace(key=Template(target, "key", elsewhere.where))
        elsewhere._client, elsewhere._seen = None, _NOTHING_SEEN
        if self.codec is not None:
            elsewhere.form.key.check(self.codec)
        return elsewhere

    def target_name(self) -> str:
        return self.form.key.text

    def start(self) -> None:
        try:
            info: Any = self.connected().info()
        except Exception as error:
            raise self.in_words(error, "at the start") from error
        if is_too_old(info):
            raise SinkFailed(
                "this Redis is too old", where=self.place, expected="Redis 7 or newer, or Valkey",
                found=str(info.get("redis_version")), next_move="update the server",
            )  # fmt: skip
        if is_cluster(info):
            raise SinkFailed(
                "Redis Cluster is not supported", where=self.place,
                expected="one server (with replicas, if you like)", found="a node of a cluster",
                next_move="write to a server that is no node of a cluster: rows and guard must change together",
            )  # fmt: skip
        policy = str(info.get("maxmemory_policy", ""))
        if self.form.shape == "stream" and int(info.get("maxmemory", 0)) and policy.startswith("allkeys"):
            raise SinkFailed(
                "this Redis may throw away any key, also the guard that keeps entries from being written twice",
                where=self.place, expected="maxmemory-policy noeviction, or one of volatile-…", found=policy,
                next_move="CONFIG SET maxmemory-policy noeviction, or write to another server",
            )  # fmt: skip

    def open_writer(self, codec: RowCodec, task: StageTask) -> StageWriter:
        form = self.form
        return PartWriter(task, lambda table: pack_table(table, codec, form), PACKS)

    def guard_key(self, job: str) -> str:
        """Where a job keeps what it has written of this output."""
        return self.guard.replace("{job}", job).replace("{output}", self.output)

    def released(self, job: str) -> Position:
        try:
            held: Any = self.connected().hmget(self.guard_key(job), "timeline", "epoch")
        except Exception as error:
            raise self.in_words(error, f"output {self.output}") from error
        return None if held[0] is None else (int(held[0]), int(held[1]))

    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        told = print_of(parts)
        done = 0
        for group in read_groups(parts, ctx):
            if not group.last and group.first + len(group.packs) <= done:
                continue
            if group.first:
                reach("between_files", ctx.epoch)
            try:
                answer = write_group(
                    self.connected(), self.guard_key(ctx.job), group, ctx, told, self._seen, self.undo_ms
                )
            except Exception as error:
                raise self.in_words(error, f"output {self.output}, epoch {ctx.epoch}") from error
            if answer.outcome == "done":
                break
            if answer.outcome != "wrote":
                raise self._refusal(answer, ctx)
            [done] = answer.numbers
        self._seen = (int(ctx.timeline), ctx.epoch)

    def check_forget(self, ctx: Forget) -> None:
        self._check_chain(self._undoing(check_chain, ctx), ctx)

    def forget(self, ctx: Forget) -> None:
        self.check_forget(ctx)
        while True:
            answer = self._undoing(take_back, ctx)
            self._check_chain(answer, ctx)
            if answer.outcome == "done":
                return
            reach("forgetting", ctx.epoch)

    def _undoing(self, step: Callable[[redis.Redis, str, Forget], UndoAnswer], ctx: Forget) -> UndoAnswer:
        try:
            return step(self.connected(), self.guard_key(ctx.job), ctx)
        except Exception as error:
            raise self.in_words(error, f"output {self.output}, going back to epoch {ctx.epoch}") from error

    def _check_chain(self, answer: UndoAnswer, ctx: Forget) -> None:
        if answer.outcome == "missing":
            raise SinkFailed(
                "Redis has no earlier values of these keys",
                where=self.place,
                expected=f"former rows since epoch {ctx.epoch} of timeline {ctx.timeline}, because of undo=",
                found=f"none of epoch {answer.epoch}: it was written without undo=, or they have expired",
                next_move=f"go back to epoch {answer.epoch} or later, hold the output (--hold {ctx.output}), or write "
                "under other keys; keep former rows longer from now on with a larger undo=",
            )

    def keyed(self, job: str) -> KeyedTarget | None:
        if self.form.shape == "stream":
            return None
        from headrace.connectors.redis.keyed import RedisKeyed

        return RedisKeyed(self, job)

    def shown_rows(self) -> Iterator[pa.Table] | None:
        if self.form.shape == "stream":
            return None
        from headrace.connectors.redis.shown import read_shown

        return read_shown(self)

    def connected(self) -> redis.Redis:
        if self._client is None:
            self._client = connect(self.url)
        return self._client

    def takes(self, part: StagedPart) -> bool:
        return part.format == PACKS

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def own_name(self) -> str:
        return self.form.key.text

    def describe(self) -> str:
        return f"redis {self.form.shape} {self.form.key.text} at {shown_url(self.url)}"

    # -- errors -------------------------------------------------------------------------------------------------

    @property
    def place(self) -> str:
        return f"{self.where}, {shown_url(self.url)}"

    def in_words(self, error: Exception, when: str) -> HeadraceError:
        """What a client raised, as ours. Nothing half open stays behind: the next call connects anew."""
        self.close()
        if isinstance(error, HeadraceError):
            return error
        found = f"{type(error).__name__}: {error}"
        where = f"{self.place}, {when}"
        if is_away(error):
            return SinkUnavailable(
                "Redis cannot take rows just now", where=where, found=found,
                next_move="look whether it runs, can be reached and is no read-only replica",
            )  # fmt: skip
        if is_denied(error):
            return SinkFailed(
                "Redis does not let this job write", where=where, found=found,
                expected=f"a user who may INFO, EVAL, and write {self.guard} and {self.form.key.text}",
                next_move="give the user the right, or correct user and password in the address; then start again",
            )  # fmt: skip
        if error_code(error) == "OOM" or "maxmemory" in str(error) or type(error).__name__ == "OutOfMemoryError":
            return SinkFailed(
                f"Redis has no memory left for {self.form.key.text}", where=where, found=found,
                next_move="raise maxmemory, delete keys or give rows a ttl=, and start again: nothing of this piece of "
                "the epoch was written, and its rows stay staged",
            )  # fmt: skip
        return SinkFailed(
            "Redis refused to run the script that writes rows", where=where, found=found,
            next_move="mend what it says and start again: the rows stay staged and go out first",
        )  # fmt: skip

    def _refusal(self, answer: GuardAnswer, ctx: Release) -> SinkFailed:
        place = f"{self.place}, output {self.output}, epoch {ctx.epoch}"
        if answer.outcome == "failed":
            return self.failed_row(answer.key, answer.error, place)
        guard, (timeline, epoch) = self.guard_key(ctx.job), answer.numbers
        there = f"the guard {guard} says timeline {timeline}, epoch {epoch}" if epoch >= 0 else f"no guard {guard}"
        mine = f"timeline {ctx.timeline}, epoch {ctx.epoch}"
        if answer.outcome == "lost":
            return SinkFailed(
                "Redis has lost what this job had written",
                where=place, expected=f"epoch {self._seen[1]} of timeline {self._seen[0]}, which was written before",
                found=there,
                next_move="look why (no appendonly, a failover, FLUSHALL). Started again, the job goes on with "
                f"{mine}; rows of the epochs before are missing there, and only a job that reads its input again "
                "(--fresh) writes them anew",
            )  # fmt: skip
        if answer.outcome == "other":
            return SinkFailed(
                "Redis has other rows under the number of this epoch",
                where=place, expected=f"the rows of {mine} of this store", found=there,
                next_move="another store has written there: leave guard= out, so that each has its own; or, if the "
                f"other's job is gone for good, DEL {guard}",
            )  # fmt: skip
        return SinkFailed(
            "Redis already has a later epoch of this output",
            where=place, expected=f"nothing behind {mine}", found=there,
            next_move="another driver has gone on with this store, so this one is not needed any more. If the store "
            f"was brought back from an older copy, DEL {guard} and start again",
        )  # fmt: skip

    def failed_row(self, key: str, error: str, place: str) -> SinkFailed:
        """Redis said no to the row of a key."""
        code = error.partition(" ")[0].lstrip("-")
        move = "mend what it says and start again: what was written before this row is not written again"
        if code == "WRONGTYPE":
            move = f"delete or rename {key}, or give key= another beginning, and start again: what was written "
            move += "before this row is not written again"
        return SinkFailed(
            f"Redis refused to write {key}", where=place,
            expected=f"a {self.form.shape}, or no such key yet", found=error, next_move=move,
        )  # fmt: skip
