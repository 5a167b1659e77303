"""The catalog that clients of Postgres ask for: ``pg_catalog`` and ``information_schema``, of the tables of an epoch.

It is a small DuckDB database of its own, with tables and functions that are called as those of Postgres, and holds no
state. Which statements are for it is told by the names in them (`asks_catalog`). The words of such a statement that
DuckDB does not have are rewritten first (`rewritten`): operators and types with a schema in front, casts to
``regclass``.

What psql and psycopg ask is there; what is asked beside that is empty or null, or refused by its name.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.model.packages import package
from headrace.serve.pg.catalog_tables import FUNCTIONS, catalog_tables
from headrace.snapshots.database import signature_of
from headrace.snapshots.errors import of_duckdb
from headrace.snapshots.literals import with_literals

if TYPE_CHECKING:
    import duckdb

    from headrace.snapshots.session import SqlSession

_MOST: Final = 8
_CATALOG: Final = re.compile(
    r"\b(pg_[a-z_]+|information_schema|current_database|current_catalog|current_schemas?|current_user|session_user"
    r"|version|set_config|current_setting|has_\w+_privilege|obj_description|txid_current\w*|to_reg\w+|format_type)\b(?=\s*[.(\s;,]|$)",
    re.IGNORECASE,
)
_REWRITES: Final = [
    # How Grafana asks whether a schema is on the search path.
    (
        re.compile(
            r"\bIN\s*\(\s*SELECT\s+CASE\s+WHEN\s+trim\(s\[i\]\).*?string_to_array\(\s*current_setting\(\s*'[^']*'\s*\)"
            r"\s*,\s*'[^']*'\s*\)\s*s\s*\)",
            re.IGNORECASE | re.DOTALL,
        ),
        "IN ('public')",
    ),
    (re.compile(r"OPERATOR\s*\(\s*pg_catalog\.([^)\s]+)\s*\)", re.IGNORECASE), r"\1"),
    (re.compile(r"COLLATE\s+(\"?pg_catalog\"?\.)?\"?(default|C)\"?", re.IGNORECASE), ""),
    (re.compile(r"\bpg_catalog\.", re.IGNORECASE), ""),
    (re.compile(r"\binformation_schema\.(\w+)", re.IGNORECASE), r"information_schema_\1"),
    (re.compile(r"'([^']*)'::regclass(::oid)?", re.IGNORECASE), r"regclass_oid('\1')"),
    (re.compile(r"(\$\d+)::regclass", re.IGNORECASE), r"regclass_oid(\1)"),
    (re.compile(r"\bCAST\s*\(\s*('[^']*'|\$\d+)\s+AS\s+regclass\s*\)", re.IGNORECASE), r"regclass_oid(\1)"),
    (re.compile(r"([\w.]+)::regclass(::text)?", re.IGNORECASE), r"regclass_name(\1)"),
    (re.compile(r"([\w.]+)::regtype(::text)?", re.IGNORECASE), r"format_type(\1, NULL)"),
    (re.compile(r"([\w.]+)::regnamespace(::text)?", re.IGNORECASE), r"regnamespace_name(\1)"),
    (
        re.compile(r"('[^']*')\s*::\s*(text|varchar|name)\s*\[\]", re.IGNORECASE),
        r"string_split(trim(\1, '{}'), ',')",
    ),
    (
        re.compile(
            r"::\s*(\"char\"|name|regproc|pg_node_tree|cstring|regoper|oidvector|int2vector)\b(\[\])?", re.IGNORECASE
        ),
        r"::varchar\2",
    ),
    (re.compile(r"\bAS\s+(\"char\"|name)\s*\)", re.IGNORECASE), "AS varchar)"),
    (re.compile(r"::\s*(oid|xid)\b(\[\])?", re.IGNORECASE), r"::bigint\2"),
    (re.compile(r"\bAS\s+(oid|regclass)\s*\)", re.IGNORECASE), "AS bigint)"),
    (re.compile(r"!~\s*('[^']*')"), r"NOT SIMILAR TO '.*' || \1 || '.*'"),
    (re.compile(r"\bcurrent_(database\s*\(\s*\)|catalog)", re.IGNORECASE), "headrace_database()"),
    (re.compile(r"\bcurrent_schema\s*\(\s*\)|\bcurrent_schema\b(?!s)", re.IGNORECASE), "'public'"),
    (re.compile(r"\bcurrent_schemas\s*\([^)]*\)", re.IGNORECASE), "['pg_catalog', 'public']"),
    (
        re.compile(r"\b(current_user|session_user|user)\b(\s*\(\s*\))?(?=\s*(,|;|$|\)|::|AS\b))", re.IGNORECASE),
        "headrace_user()",
    ),
    (re.compile(r"\bversion\s*\(\s*\)", re.IGNORECASE), "headrace_version()"),
    (re.compile(r"\bjson_build_object\s*\(", re.IGNORECASE), "json_object("),
]


def asks_catalog(statement: str) -> bool:
    """Whether a statement is about the catalog and not about state.

    >>> asks_catalog("SELECT relname FROM pg_catalog.pg_class"), asks_catalog("SELECT * FROM hourly")
    (True, False)
    """
    return _CATALOG.search(_without_texts(statement)) is not None


_TEXT: Final = re.compile(r"'(?:[^']|'')*'")
_MARK: Final = re.compile("\x01(\\d+)\x01")


def _without_texts(statement: str) -> str:
    return _TEXT.sub("''", statement)


def rewritten(statement: str) -> str:
    """A statement in words that DuckDB has; what stands in quotes stays as it is.

    >>> rewritten("SELECT current_user, 'current_user,'")
    "SELECT headrace_user(), 'current_user,'"
    """
    texts = _TEXT.findall(statement)
    places = iter(range(len(texts)))
    statement = _TEXT.sub(lambda _: f"'\x01{next(places)}\x01'", statement)
    for pattern, words in _REWRITES:
        statement = pattern.sub(words, statement)
    return _MARK.sub(lambda found: texts[int(found[1])][1:-1], statement)


class PgCatalog:
    """The catalogs of sets of tables. May be asked by several threads."""

    def __init__(self, database: str) -> None:
        """``database``: its name, for clients."""
        self._database = database
        self._known: OrderedDict[object, duckdb.DuckDBPyConnection] = OrderedDict()
        self._lock = threading.Lock()

    def schema_of(self, statement: str, parameters: Sequence[Any], session: SqlSession) -> pa.Schema:
        """The columns of the answer, without computing it."""
        connection = self._open(session).cursor()
        try:
            query = with_literals(rewritten(statement), parameters)
            return connection.sql(query).limit(0).to_arrow_table().schema
        except Exception as error:
            raise of_duckdb(error, statement) from None
        finally:
            connection.close()

    def run(self, statement: str, parameters: Sequence[Any], session: SqlSession) -> pa.Table:
        """The answer to a statement about the tables that a session sees."""
        connection = self._open(session).cursor()
        try:
            query = with_literals(rewritten(statement), parameters)
            try:
                return connection.sql(query).to_arrow_table()
            except Exception:
                # Only a plain statement says where it is wrong.
                connection.execute(query)
                raise
        except Exception as error:
            raise of_duckdb(error, statement) from None
        finally:
            connection.close()

    def _open(self, session: SqlSession) -> duckdb.DuckDBPyConnection:
        tables = session.tables()
        name = signature_of(tables)
        with self._lock:
            known = self._known.get(name)
            if known is None:
                known = self._known[name] = self._make(tables)
            self._known.move_to_end(name)
            while len(self._known) > _MOST:
                self._known.popitem(last=False)
            return known

    def _make(self, tables: Any) -> duckdb.DuckDBPyConnection:
        with package("duckdb", extra="sql", where="--pg-port"):
            import duckdb

        config: dict[str, Any] = {"threads": "1", "memory_limit": "128MB", "python_enable_replacements": "false"}
        made = duckdb.connect(":memory:", config={**config, "errors_as_json": "true", "temp_directory": ""})
        for name, content in catalog_tables(tables, self._database).items():
            made.register("content", content)
            made.execute(f"CREATE TABLE main.{name} AS SELECT * FROM content")
            made.unregister("content")
        for function in FUNCTIONS:
            made.execute(function.replace("{database}", self._database.replace("'", "''")))
        made.execute("SET GLOBAL enable_external_access = false")
        made.execute("SET GLOBAL lock_configuration = true")
        return made
