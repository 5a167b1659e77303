"""Names of sources, steps and outputs: identity of everything that a store keeps."""

from __future__ import annotations

import re

from headrace.errors import ProgramError

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_MAX_LENGTH = 100
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def check_name(name: object, what: str, where: str) -> str:
    """Refuse a name that could not stand in a path, an address or a URL."""
    if isinstance(name, str) and _NAME.fullmatch(name) and len(name) <= _MAX_LENGTH:
        return name
    raise ProgramError(
        f"this cannot be the name of {what}",
        where=where,
        expected=f"small letters, digits and underscores, a letter first, at most {_MAX_LENGTH}",
        found=repr(name),
        next_move=f"call it {proposal(name)!r}" if isinstance(name, str) and proposal(name) else "give it a name",
    )


def proposal(name: str) -> str:
    """The nearest good name, or nothing."""
    plain = re.sub(r"[^a-z0-9]+", "_", snake_case(name).lower()).strip("_")
    plain = re.sub(r"^[0-9_]+", "", plain)
    return plain[:_MAX_LENGTH]


def slug(text: str) -> str:
    """What of a text can stand inside a name; nothing, if there is no letter or digit in it.

    >>> slug("Daily totals/"), slug("sales-2024")
    ('daily_totals', 'sales_2024')
    """
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")


def snake_case(name: str) -> str:
    """The name of a step that is named by its class.

    >>> snake_case("FraudCheck"), snake_case("HTTPCalls2")
    ('fraud_check', 'http_calls2')
    """
    return _HUMP.sub("_", name.lstrip("_")).lower()
