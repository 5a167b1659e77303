"""Reading state from outside: views of what a published epoch holds, without a JVM and without the program."""

from __future__ import annotations

from headrace.query.store import StateInfo, Store
from headrace.query.view import StateView

__all__ = ["StateInfo", "StateView", "Store"]
