"""Servers of published state: Redis' protocol and HTTP."""
