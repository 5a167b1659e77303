"""What deltalake says no to, in words: which table, and what to do.

The package tells most things as text of one or two kinds of errors, so whether trying again may help has to be read
from it; a text nobody knows is tried again where the table lies in an object store, and reported at once where it lies
on a disk. Conflicts of two writers have a kind of their own, and are left to whoever writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from headrace.connectors.sink_contract import HiddenValue
from headrace.errors import HeadraceError, SinkFailed, SinkUnavailable
from headrace.model.packages import package

_PASSING: Final = re.compile(
    r"error sending request|after \d+ retries|tim(ed|e) ?out|connection|broken pipe|"
    r"\b50[0234]\b|SlowDown|InternalError|ServiceUnavailable",
    re.IGNORECASE,
)
"""What passes: a network, a server that is busy, away, or fails over."""
_FOR_GOOD: Final = re.compile(
    r"PermissionDenied|Unauthenticated|AccessDenied|Forbidden|InvalidAccessKeyId|SignatureDoesNotMatch|NoSuchBucket|"
    r"PermanentRedirect|\b40[13]\b|Missing (region|bucket)|credential",
    re.IGNORECASE,
)
"""What an object store answers until somebody changes rights, names or settings."""
_NO_CONFLICT: Final = re.compile(r"Log storage error|Transaction failed|feature|append-only")
"""Why a commit is not there, but for another that came first."""
_ARROWS: Final = re.compile(r"\s*\x1b\[31m↳\x1b\[0m\s*")
_STAYS: Final = "the rows stay staged in the store, and are released first when the job is started again"
_LOCAL_MOVES: Final = {
    r"No space left|StorageFull": "the disk is full: free some space",
    r"Permission ?denied|not permitted|Read-?only": "give the user that runs the job the right to write there",
    r"Invalid table location|Not ?a ?directory|File exists|AlreadyExists|Could not create": "choose a folder that can "
    "be made; a part of the path may be a file",
}
_REMOTE_MOVES: Final = {
    r"NoSuchBucket|Missing bucket|bucket does not exist": "create the bucket, or correct the path",
    r"Unknown scheme": "name a folder, or a URL as s3://, gs:// or abfss://",
    _FOR_GOOD.pattern: "set the variables of the environment by which the object store knows you, or storage_options=",
}
_MOVES: Final = {
    r"failed validation|constraint|invariant": "change or drop the constraint of the table, or filter such rows out",
    r"missing file .* when restore": "files of then were taken away (VACUUM): hold the output until its old end is "
    "passed, or write to another table",
    r"Invalid table version": "the table was taken away or replaced while the job ran: bring it back, or start again",
    r"feature|protocol|column mapp": "the table asks more of its writers than deltalake can do: write to another "
    "table, under the name of this output (write(…, name=…))",
}
"""What to do, by what is said; those of the place are looked at first."""


class Overtaken(Exception):
    """Others changed the table between our look at it and our commit, which is not there: look again."""


class DeltaTarget(NamedTuple):
    """A table, as the user named it."""

    path: str
    options: dict[str, str]
    where: str

    @property
    def remote(self) -> bool:
        return "://" in self.path

    @property
    def access(self) -> dict[str, str]:
        """The options with their secrets filled in. Raises SettingsError where one is not set."""
        return {
            name: value.reveal() if isinstance(value, HiddenValue) else value for name, value in self.options.items()
        }


def deltalake_module() -> Any:
    """deltalake, or in words how to get it."""
    with package("deltalake", extra="delta", where="sink.delta"):
        import deltalake
    return deltalake


@contextmanager
def telling(target: DeltaTarget, doing: str) -> Iterator[None]:
    """Puts what deltalake raises inside into our words; what is in our words already goes through.

    Raises Overtaken where others changed the table first.
    """
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        if _is_conflict(error):
            raise Overtaken from error
        raise translate_delta_error(error, target, doing) from error
    except BaseException as error:
        # A bug of the package ends its call, not the process; it comes as what no `except Exception` would catch.
        if type(error).__name__ != "PanicException":
            raise
        raise translate_delta_error(error, target, doing) from error


def translate_delta_error(error: BaseException, target: DeltaTarget, doing: str) -> SinkFailed:
    said = f"{type(error).__name__}: {_ARROWS.sub(': ', str(error).strip())}"
    if target.remote and _may_pass(error, said):
        return SinkUnavailable(
            f"Delta could not {doing} just now",
            where=target.where,
            expected="an object store that can be reached",
            found=said,
            next_move=f"look at the network, the endpoint and the service; {_STAYS}",
        )
    moves = {**(_REMOTE_MOVES if target.remote else _LOCAL_MOVES), **_MOVES}
    found = (move for pattern, move in moves.items() if re.search(pattern, said, re.IGNORECASE))
    move = next(found, "see the cause below; then start again")
    return SinkFailed(
        f"Delta could not {doing}",
        where=target.where,
        expected="a table of Delta that can be written to",
        found=said,
        next_move=f"{move}; {_STAYS}",
    )


def others_write(target: DeltaTarget, error: BaseException | None) -> SinkUnavailable:
    """Others wrote to the table each time that we were about to."""
    return SinkUnavailable(
        "others change the table all the time",
        where=target.where,
        expected="a moment in which nobody else changes the table's log",
        found=str(error),
        next_move=f"it is tried again; if it lasts, let fewer writers write to the table; {_STAYS}",
    )


def _is_conflict(error: Exception) -> bool:
    return isinstance(error, deltalake_module().exceptions.CommitFailedError) and not _NO_CONFLICT.search(str(error))


def _may_pass(error: BaseException, said: str) -> bool:
    if _FOR_GOOD.search(said) or isinstance(error, FileNotFoundError):
        return False
    return isinstance(error, OSError) or bool(_PASSING.search(said))
