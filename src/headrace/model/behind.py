"""How far a job is behind its input: what is there and not read yet, source by source."""

from __future__ import annotations

import msgspec


class Behind(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is left of one source at the end of an epoch, as far as it can tell."""

    left: int
    unit: str = "rows"
