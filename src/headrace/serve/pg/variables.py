"""Statements of Postgres' that are about a session and change nothing here: settings of clients, and what is shown."""

from __future__ import annotations

import re
from typing import Final

from headrace.errors import StatementFailed
from headrace.snapshots.errors import BAD_SETTING
from headrace.snapshots.settings import bare

VERSION: Final = "16.0"
REPORTED: Final = {
    "server_version": VERSION,
    "server_encoding": "UTF8",
    "client_encoding": "UTF8",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "integer_datetimes": "on",
    "standard_conforming_strings": "on",
    "is_superuser": "off",
    "in_hot_standby": "on",
    "default_transaction_read_only": "on",
    "application_name": "",
}
"""What a client is told when it connects; the server can be read only, as a standby can."""
MORE: Final = {
    "transaction_isolation": "repeatable read",
    "default_transaction_isolation": "repeatable read",
    "transaction_read_only": "on",
    "search_path": "public",
    "max_identifier_length": "63",
    "max_index_keys": "32",
    "server_version_num": "160000",
    "extra_float_digits": "1",
    "statement_timeout": "0",
    "lc_collate": "C",
    "lc_ctype": "C",
    "bytea_output": "hex",
    "session_authorization": "headrace",
    "is_superuser": "off",
    "standard_conforming_strings": "on",
    "row_security": "off",
}
_SHOW: Final = re.compile(r"SHOW\s+(?:SESSION\s+)?(\"?[\w. ]+\"?)", re.IGNORECASE)
_SET: Final = re.compile(
    r"SET\s+(?:SESSION\s+|LOCAL\s+)?\"?([\w.]+)\"?\s*(?:=|\bTO\b)\s*(.*)", re.IGNORECASE | re.DOTALL
)
_HARMLESS: Final = re.compile(
    r"(SET|RESET|DISCARD|DEALLOCATE|LISTEN|UNLISTEN|SAVEPOINT|RELEASE|CLOSE|ROLLBACK(?=\s+((WORK|TRANSACTION)\s+)?TO))\b",
    re.IGNORECASE,
)


class Variables:
    """What a client has set of its session; nothing of it changes an answer."""

    def __init__(self, told: dict[str, str]) -> None:
        """``told``: what the client said when it connected."""
        self._set = {name.lower(): value for name, value in told.items()}

    def show(self, statement: str) -> tuple[str, str] | None:
        """Name and value, where a statement asks for a setting."""
        found = _SHOW.fullmatch(bare(statement))
        if found is None:
            return None
        name = found[1].strip('"').lower().replace("transaction isolation level", "transaction_isolation")
        name = "timezone" if name == "time zone" else name
        known = {each.lower(): value for each, value in (MORE | REPORTED).items()}
        value = self._set.get(name, known.get(name))
        if value is None:
            raise StatementFailed(f'unrecognized configuration parameter "{name}"', code="42704")
        return name, value

    def is_set(self, statement: str) -> bool:
        """Whether a statement is one that `set` takes note of."""
        return _HARMLESS.match(bare(statement)) is not None

    def set(self, statement: str) -> str | None:
        """Takes note of what a statement sets; its tag. None: it is another kind of statement."""
        text = bare(statement)
        verb = _HARMLESS.match(text)
        if verb is None:
            return None
        found = _SET.fullmatch(text)
        if found is not None:
            value = found[2].strip().strip("'")
            if found[1].lower() == "client_encoding" and value.lower().replace("-", "") not in ("utf8", "unicode"):
                raise StatementFailed(f"the encoding {value} is not spoken here", code=BAD_SETTING, expected="UTF8")
            self._set[found[1].lower()] = value
        tag = verb[1].upper()
        return f"{tag} ALL" if tag in ("DISCARD", "DEALLOCATE") and text.upper().endswith("ALL") else tag
