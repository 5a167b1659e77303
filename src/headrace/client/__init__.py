"""Asking for state over the network: typed, from any of several servers, never older than an answer before."""

from __future__ import annotations

from headrace.client.client import AsyncClient, Client
from headrace.client.views import AsyncServedView, ServedView

__all__ = ["AsyncClient", "AsyncServedView", "Client", "ServedView"]
