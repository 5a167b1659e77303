"""State over HTTP: keys, pages, whole states, and changes as they are published."""

from __future__ import annotations

from headrace.query.http.app import HttpApp
from headrace.query.http.server import HttpServer

__all__ = ["HttpApp", "HttpServer"]
