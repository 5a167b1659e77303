"""Why rows and a schema do not go together, as both formats find it; connectors make their own errors of it."""

from __future__ import annotations


class SchemaMistake(ValueError):
    """A text that is no schema; its message says why."""


class SchemaMisfit(ValueError):
    """What was written under a schema cannot become rows of a type, or the other way round; the message says why."""


class UnfitValue(ValueError):
    """A value that a schema has no way to say."""
