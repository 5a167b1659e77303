"""What went wrong with a remote store, in our words: from whatever a client raised to an error with a next move.

Clients wrap each other's exceptions, so the whole chain is looked at: for the code that the service answered, and for
the names of types. No client is imported for that, and none of their stacks is shown where the cause is known.

What this module deliberately does not do: decide whether to try again.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlparse

from headrace.errors import EnvironmentMissing, StoreError
from headrace.state.store import missing_file, request_failed

_NO_BUCKET: Final = frozenset({"NoSuchBucket", "ContainerNotFound"})
_WHO_ARE_YOU: Final = frozenset({
    "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "TokenRefreshRequired",
    "NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound", "NoRegionError",
    "TokenRetrievalError", "UnauthorizedSSOTokenError", "SSOTokenLoadError", "InvalidConfigError",
    "DefaultCredentialsError", "ClientAuthenticationError",
})  # fmt: skip
_NOT_ALLOWED: Final = frozenset({"AccessDenied", "AllAccessDisabled", "Forbidden", "403", "PermissionError"})
_NO_ANSWER: Final = frozenset({
    "EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ConnectionClosedError", "HTTPClientError",
    "ProxyConnectionError", "ConnectionError", "ConnectionRefusedError", "ConnectionResetError", "TimeoutError",
    "FSTimeoutError", "ClientConnectorError", "ClientConnectorDNSError", "ServerTimeoutError", "gaierror",
    "ServiceRequestError",
})  # fmt: skip
_DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_EXTRAS: Final = {"s3": "s3", "s3a": "s3"}
_CHAIN_MAX: Final = 10


def store_failed(url: str, path: str, error: Exception) -> StoreError:
    """The error to raise for a request about a path; without a cause of its own where the reason is known."""
    signs = set(_signs(error))
    text = f"{type(error).__name__}: {error}"
    if signs & _NO_BUCKET:
        return StoreError(
            "the bucket of this store does not exist",
            where=f"store {url}",
            expected=f"a bucket {urlparse(url).netloc!r} that was made before",
            found=text,
            next_move="make the bucket, or correct the address (store=… or --store); also check region and endpoint",
        )
    if signs & _WHO_ARE_YOU:
        return StoreError(
            "there are no credentials that this store accepts",
            where=f"store {url}",
            expected="credentials of the usual kind, on the driver and on every executor",
            found=text,
            next_move="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or what this store asks for",
        )
    if signs & _NOT_ALLOWED:
        return StoreError(
            "this store does not allow it",
            where=f"store {url}",
            expected="permission to list, read, write and delete objects below this address",
            found=f"{text} ({path})",
            next_move="allow these credentials s3:ListBucket, GetObject, PutObject and DeleteObject, or use others",
        )
    if isinstance(error, FileNotFoundError):
        return missing_file(url, path)
    if signs & _NO_ANSWER:
        return StoreError(
            "this store does not answer",
            where=f"store {url}",
            expected="an answer from the object store",
            found=text,
            next_move="check the network and the endpoint (AWS_ENDPOINT_URL), then start again: nothing is lost",
        )
    return request_failed(url, path, error)


def is_explained(error: StoreError) -> bool:
    """Whether an error says all there is to know, so that the client's stack would only hide it."""
    return bool(error.expected)


def no_bucket(error: Exception) -> bool:
    return not _NO_BUCKET.isdisjoint(_signs(error))


def is_disk_full(error: Exception) -> bool:
    """Whether a disk of this machine is full; object stores have other words for it."""
    return isinstance(error, OSError) and error.errno in _DISK_FULL


def cache_failed(folder: Path, error: OSError) -> StoreError:
    return StoreError(
        "the cache for files of a remote store cannot be written",
        where=str(folder),
        expected="a folder of this machine with room for the state that it works on",
        found=f"{type(error).__name__}: {error}",
        next_move="free some space, or point HEADRACE_CACHE_DIR at a larger disk; HEADRACE_CACHE_GB limits its size",
    )


def missing_package(url: str, error: Exception) -> EnvironmentMissing:
    scheme = url.partition("://")[0]
    extra = _EXTRAS.get(scheme)
    known = isinstance(error, ImportError)
    return EnvironmentMissing(
        f"stores at {scheme}:// need a package that is not installed"
        if known
        else f"nobody knows stores at {scheme}://",
        where=f"store {url}",
        expected="a file system that fsspec knows",
        found=str(error),
        next_move=f'pip install "headrace[{extra}]"'
        if extra
        else "install the fsspec package for it, on every machine",
    )


def _signs(error: BaseException | None) -> Iterator[str]:
    """Names of types and codes of answers, along the chain of causes."""
    for _ in range(_CHAIN_MAX):
        if error is None:
            return
        yield from (kind.__name__ for kind in type(error).__mro__)
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            yield str(response.get("Error", {}).get("Code", ""))
        error = error.__cause__ or error.__context__
