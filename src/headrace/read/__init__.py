"""Reading state from outside: views of what a published epoch holds, without a JVM and without the program."""

from __future__ import annotations

from headrace.read.steps import StateInfo
from headrace.read.store import Store
from headrace.read.view import StateView

__all__ = ["StateInfo", "StateView", "Store"]
