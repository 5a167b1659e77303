"""A Redis server, as source and sink reach it: its address, a client, and what its errors mean.

An address may hold a password, so it is shown without one. Nothing here keeps a connection: whoever connects closes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from headrace.errors import ProgramError
from headrace.model.packages import package

if TYPE_CHECKING:
    import redis

SCHEMES: Final = ("redis", "rediss", "unix")
CONNECT_S: Final = 5.0
ANSWER_S: Final = 30.0
"""How long one command may take."""
NEEDED_VERSION: Final = 7
"""Streams tell how many entries they ever had, and scripts what they do, since Redis 7."""

_COME_AGAIN: Final = frozenset(
    {"BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "READONLY", "TRYAGAIN", "UNKILLABLE"}
)
"""Codes of answers that another try may change: it starts, fails over, runs a long script, or cannot write its disk."""


def check_url(url: str, where: str) -> str:
    """The address, if it is one of a Redis server. A secret that is not set is found when the program runs."""
    if getattr(url, "missing", False) or (isinstance(url, str) and urlsplit(url).scheme in SCHEMES):
        return url
    raise ProgramError(
        "invalid address of a Redis server",
        where=where,
        expected="redis://user:password@host:port/database, rediss://… with TLS, or unix://path",
        found=shown_url(url) if isinstance(url, str) else repr(url),
        next_move='give url="redis://localhost:6379", or url=hr.secret("REDIS_URL")',
    )


def shown_url(url: str) -> str:
    """The address without what is secret in it.

    >>> shown_url("redis://app:hunter2@cache:6380/1")
    'redis://cache:6380/1'
    """
    if hasattr(url, "missing"):  # a secret says its name
        return repr(url)
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def connect(url: str, *, tries: int = 0) -> redis.Redis:
    """A client; it connects with its first command. `tries`: how often it repeats one that got no answer."""
    with package("redis", extra="redis", where=shown_url(url)):
        import redis
        from redis.backoff import ExponentialBackoff
        from redis.retry import Retry
    client: redis.Redis = redis.Redis.from_url(
        url,
        socket_connect_timeout=CONNECT_S,
        socket_timeout=ANSWER_S,
        retry=Retry(ExponentialBackoff(cap=1, base=0.1), tries),
        protocol=2,
    )
    return client


def error_code(error: BaseException) -> str:
    """The first word of a server's answer, such as WRONGTYPE."""
    word = str(error).partition(" ")[0].lstrip("-")
    return word if word.isupper() else ""


def is_away(error: BaseException) -> bool:
    """Whether the server cannot serve just now, so that trying again may help."""
    from redis import exceptions as redis_errors

    if is_denied(error):
        return False
    gone = (redis_errors.ConnectionError, redis_errors.TimeoutError, redis_errors.ReadOnlyError)
    gone_too = (redis_errors.ClusterDownError, redis_errors.TryAgainError, OSError)
    return isinstance(error, gone + gone_too) or error_code(error) in _COME_AGAIN


def is_denied(error: BaseException) -> bool:
    """Whether the server knows us and does not let us: a wrong password, a right that is missing."""
    from redis import exceptions as redis_errors

    denied = (redis_errors.AuthenticationError, redis_errors.AuthorizationError, redis_errors.NoPermissionError)
    # Inside a script the answer has no code of its own.
    in_script = str(error).startswith("The user executing the script can't") or "ACL failure in script" in str(error)
    return in_script or isinstance(error, denied) or error_code(error) in ("NOPERM", "NOAUTH", "WRONGPASS")


def is_cluster(info: dict[str, Any]) -> bool:
    """Whether an answer to INFO comes from a node of a cluster."""
    return str(info.get("cluster_enabled", "0")) == "1"


def is_too_old(info: dict[str, Any]) -> bool:
    version = str(info.get("redis_version", "0")).partition(".")[0]
    return int(version or 0) < NEEDED_VERSION
