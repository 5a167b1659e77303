"""Clients of Redis' protocol as tests of access and limits use them."""

from __future__ import annotations

import socket
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.serve.served import Served


def connect(served: Served, **options: Any) -> redis.Redis:
    """A client that does not try again."""
    return redis.Redis(port=served.port, retry=Retry(NoBackoff(), 0), socket_timeout=90, **options)


def read_all(connection: socket.socket) -> bytes:
    """What is sent until the other side ends it, in whatever way."""
    parts = []
    try:
        while data := connection.recv(65_536):
            parts.append(data)
    except ConnectionError:
        pass
    return b"".join(parts)
