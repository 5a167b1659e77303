"""The tables and functions of Postgres' catalog, filled with the states of an epoch as tables that are read only.

Of each table of Postgres the columns that clients ask for. What a store has none of (rules, triggers, roles) is a table
without rows. A state's key is told as a primary key with its index.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from headrace.serve.pg.encoding import ARRAYS, column_of
from headrace.serve.pg.variables import MORE, REPORTED, VERSION
from headrace.snapshots.table import PUBLIC, StateColumn, StateTable, TableName

OWNER: Final = 10
_FIRST_TABLE: Final = 16_384
_FIRST_CONSTRAINT: Final = 1_000_000
_NAMESPACES: Final = {"pg_catalog": 11, PUBLIC: 2200, "information_schema": 13_000}
_FIRST_NAMESPACE: Final = 50_000
_BTREE: Final = 403
_VECTORS: Final = ("indkey", "indcollation", "indclass", "indoption")
"""Columns that hold a number for each column of an index."""
_TYPES: Final = {
    16: ("bool", "boolean", 1, "B"), 17: ("bytea", "bytea", -1, "U"), 18: ("char", '"char"', 1, "Z"),
    19: ("name", "name", 64, "S"), 20: ("int8", "bigint", 8, "N"), 21: ("int2", "smallint", 2, "N"),
    23: ("int4", "integer", 4, "N"), 25: ("text", "text", -1, "S"), 26: ("oid", "oid", 4, "N"),
    114: ("json", "json", -1, "U"), 3802: ("jsonb", "jsonb", -1, "U"), 700: ("float4", "real", 4, "N"),
    701: ("float8", "double precision", 8, "N"), 1042: ("bpchar", "character", -1, "S"),
    1043: ("varchar", "character varying", -1, "S"), 1082: ("date", "date", 4, "D"),
    1083: ("time", "time without time zone", 8, "D"), 1114: ("timestamp", "timestamp without time zone", 8, "D"),
    1184: ("timestamptz", "timestamp with time zone", 8, "D"), 1186: ("interval", "interval", 16, "T"),
    1700: ("numeric", "numeric", -1, "N"), 2205: ("regclass", "regclass", 4, "N"), 2950: ("uuid", "uuid", 16, "U"),
    705: ("unknown", "unknown", -2, "X"), 2249: ("record", "record", -1, "P"),
}  # fmt: skip
"""Oid → name, name in SQL, length, category."""
_EMPTY: Final = {
    "pg_attrdef": "oid adrelid adnum adbin",
    "pg_inherits": "inhrelid inhparent inhseqno inhdetachpending",
    "pg_rewrite": "oid rulename ev_class ev_type ev_enabled is_instead ev_action",
    "pg_trigger": "oid tgrelid tgparentid tgname tgfoid tgtype tgenabled tgisinternal tgconstraint tgdeferrable "
    "tginitdeferred tgnargs tgconstrrelid",
    "pg_policy": "oid polname polrelid polcmd polpermissive polroles polqual polwithcheck",
    "pg_statistic_ext": "oid stxrelid stxname stxnamespace stxowner stxkeys stxkind stxstattarget stxexprs",
    "pg_statistic_ext_data": "stxoid stxdinherit",
    "pg_publication": "oid pubname pubowner puballtables pubinsert pubupdate pubdelete pubtruncate pubviaroot",
    "pg_publication_rel": "oid prpubid prrelid prqual prattrs",
    "pg_publication_namespace": "oid pnpubid pnnspid",
    "pg_subscription": "oid subname",
    "pg_description": "objoid classoid objsubid description",
    "pg_shdescription": "objoid classoid description",
    "pg_enum": "oid enumtypid enumsortorder enumlabel",
    "pg_range": "rngtypid rngsubtype rngmultitypid rngcollation rngsubopc rngcanonical rngsubdiff",
    "pg_extension": "oid extname extowner extnamespace extrelocatable extversion",
    "pg_foreign_table": "ftrelid ftserver ftoptions",
    "pg_foreign_server": "oid srvname srvowner srvfdw srvtype srvversion srvacl srvoptions",
    "pg_foreign_data_wrapper": "oid fdwname fdwowner",
    "pg_proc": "oid proname pronamespace proowner prolang prokind proretset prorettype proargtypes proargnames "
    "proisagg pronargs prosrc",
    "pg_language": "oid lanname",
    "pg_operator": "oid oprname oprnamespace",
    "pg_opclass": "oid opcmethod opcname opcnamespace opcowner opcfamily opcintype opcdefault opckeytype",
    "pg_depend": "classid objid objsubid refclassid refobjid refobjsubid deptype",
    "pg_sequence": "seqrelid seqtypid seqstart seqincrement seqmax seqmin seqcache seqcycle",
    "pg_sequences": "schemaname sequencename sequenceowner data_type start_value min_value max_value",
    "pg_event_trigger": "oid evtname evtevent",
    "pg_stat_activity": "datid datname pid usename application_name state query",
    "pg_partitioned_table": "partrelid partstrat partnatts",
    "pg_auth_members": "roleid member grantor admin_option",
    "pg_db_role_setting": "setdatabase setrole setconfig",
    "pg_locks": "locktype database relation pid mode granted",
    "pg_matviews": "schemaname matviewname matviewowner tablespace hasindexes ispopulated definition",
    "pg_views": "schemaname viewname viewowner definition",
    "information_schema_views": "table_catalog table_schema table_name view_definition",
    "information_schema_routines": "specific_catalog specific_schema specific_name routine_name routine_type",
    "information_schema_referential_constraints": "constraint_catalog constraint_schema constraint_name",
    "information_schema_sequences": "sequence_catalog sequence_schema sequence_name",
}
"""Tables without rows, and their columns; those that end in ``id`` are numbers."""
_CONSTANTS: Final[dict[str, dict[str, tuple[int, ...]]]] = {
    "'headrace'": {"pg_get_userbyid": (1,)},
    "'UTF8'": {"pg_encoding_to_char": (1,)},
    "true": {
        "pg_type_is_visible": (1,), "pg_function_is_visible": (1,), "pg_is_in_recovery": (0,),
        "has_table_privilege": (2, 3), "has_schema_privilege": (2, 3), "has_database_privilege": (2, 3),
        "has_column_privilege": (3, 4), "has_any_column_privilege": (2, 3),
    },
    "false": {"pg_relation_is_publishable": (1,)},
    "0": {
        "pg_relation_size": (1, 2), "pg_total_relation_size": (1,), "pg_table_size": (1,), "pg_database_size": (1,),
        "pg_backend_pid": (0,), "txid_current": (0,),
    },
    "NULL": {
        "pg_get_expr": (2, 3), "pg_get_viewdef": (1, 2), "pg_get_partkeydef": (1,),
        "pg_get_statisticsobjdef_columns": (1,), "pg_get_serial_sequence": (2,), "obj_description": (1, 2),
        "col_description": (2,), "shobj_description": (2,), "pg_get_function_result": (1,),
        "pg_get_function_arguments": (1,), "pg_get_function_identity_arguments": (1,), "pg_get_triggerdef": (1, 2),
        "pg_get_ruledef": (1, 2), "pg_tablespace_location": (1,), "pg_get_replica_identity_index": (1,),
    },
}  # fmt: skip
"""Answer → the functions that always give it, and how many arguments they take."""
_VISIBLE: Final = "(SELECT bool_or(hc.relnamespace IN (11, 2200)) FROM pg_class hc WHERE hc.oid = p)"
_CONSTRAINT: Final = "(SELECT min(hc.condef) FROM pg_constraint hc WHERE hc.oid = p)"
_INDEX: Final = "(SELECT min(hi.indexdef) FROM pg_index hi WHERE hi.indexrelid = p)"
_INDEX_COLUMN: Final = "(SELECT min(ha.attname) FROM pg_attribute ha WHERE ha.attrelid = p AND ha.attnum = q)"
_SETTING: Final = "(SELECT min(hs.setting) FROM pg_settings hs WHERE lower(hs.name) = lower(p))"
_CLASS: Final = "FROM pg_class hc JOIN pg_namespace hn ON hn.oid = hc.relnamespace"
FUNCTIONS: Final = (
    "CREATE MACRO headrace_database() AS '{database}'",
    "CREATE MACRO headrace_user() AS 'headrace'",
    f"CREATE MACRO headrace_version() AS 'PostgreSQL {VERSION} (Headrace, read only)'",
    f"CREATE MACRO regclass_oid(p) AS (SELECT min(hc.oid) {_CLASS} "
    "WHERE replace(p, '\"', '') IN (hc.relname, hn.nspname || '.' || hc.relname, hc.oid::VARCHAR))",
    "CREATE MACRO regclass_name(p) AS (SELECT min(CASE WHEN hn.nspname = 'public' THEN hc.relname "
    f"ELSE hn.nspname || '.' || hc.relname END) {_CLASS} WHERE hc.oid = p)",
    "CREATE MACRO to_regclass(p) AS regclass_oid(p)",
    "CREATE MACRO to_regtype(p) AS (SELECT min(ht.oid) FROM pg_type ht WHERE lower(p) IN (ht.typname, ht.sqlname))",
    "CREATE MACRO regnamespace_name(p) AS (SELECT min(hn.nspname) FROM pg_namespace hn WHERE hn.oid = p)",
    "CREATE MACRO format_type(p, q) AS (SELECT min(ht.sqlname) FROM pg_type ht WHERE ht.oid = p)",
    f"CREATE MACRO pg_table_is_visible(p) AS {_VISIBLE}",
    f"CREATE MACRO pg_get_constraintdef(p) AS {_CONSTRAINT}, (p, q) AS {_CONSTRAINT}",
    f"CREATE MACRO pg_get_indexdef(p) AS {_INDEX}, (p, q, r) AS CASE WHEN q = 0 THEN {_INDEX} ELSE {_INDEX_COLUMN} END",
    "CREATE MACRO information_schema__pg_expandarray(p) AS unnest(list_transform(p, lambda e, i: {x: e, n: i}))",
    f"CREATE MACRO current_setting(p) AS {_SETTING}, (p, q) AS {_SETTING}",
    "CREATE MACRO quote_ident(p) AS CASE WHEN regexp_full_match(p, '[a-z_][a-z0-9_]*') THEN p "
    "ELSE '\"' || replace(p, '\"', '\"\"') || '\"' END",
    "CREATE MACRO parse_ident(p) AS list_transform(string_split(p, '.'), lambda e: trim(e, '\"'))",
    "CREATE MACRO pg_get_keywords() AS TABLE SELECT keyword_name AS word, upper(keyword_category[1]) AS catcode, "
    "keyword_category AS catdesc FROM duckdb_keywords()",
    "CREATE MACRO array_to_string(p, q) AS list_aggregate(p, 'string_agg', q)",
    "CREATE MACRO array_upper(p, q) AS len(p)",
    "CREATE MACRO array_lower(p, q) AS CASE WHEN len(p) > 0 THEN 1 END",
    "CREATE MACRO set_config(p, q, r) AS q",
    "CREATE MACRO pg_size_pretty(p) AS p::VARCHAR || ' bytes'",
    *(
        f"CREATE MACRO {name}" + ", ".join(f"({', '.join('pqrs'[:count])}) AS {value}" for count in counts)
        for value, names in _CONSTANTS.items()
        for name, counts in names.items()
    ),
)
"""What makes the functions that clients call."""


def catalog_tables(tables: Mapping[TableName, StateTable], database: str) -> dict[str, pa.Table]:
    """Every table of the catalog."""
    schemas = sorted({name.schema for name in tables} - {PUBLIC})
    namespaces = {**_NAMESPACES, **{name: _FIRST_NAMESPACE + place for place, name in enumerate(schemas)}}
    oids = {name: _FIRST_TABLE + 2 * place for place, name in enumerate(sorted(tables))}
    made = {name: _without_rows(columns) for name, columns in _EMPTY.items()}
    rows: dict[str, list[dict[str, Any]]] = {
        "pg_namespace": [
            {"oid": oid, "nspname": name, "nspowner": OWNER, "nspacl": None} for name, oid in namespaces.items()
        ],
        "pg_class": [
            row for name, oid in oids.items() for row in _class_rows(tables[name], oid, namespaces[name.schema])
        ],
        "pg_attribute": [row for name, oid in oids.items() for row in _attributes(tables[name], oid)],
        "pg_constraint": [
            row for name, oid in oids.items() for row in _keys(tables[name], oid, namespaces[name.schema])
        ],
        "pg_index": [_index_row(tables[name], oid) for name, oid in oids.items() if _has_key(tables[name])],
        "pg_indexes": [
            {"schemaname": name.schema, "tablename": name.table, "indexname": _key_name(name), "tablespace": None,
             "indexdef": _index_text(tables[name])} for name in oids if _has_key(tables[name])
        ],
        "pg_type": list(_types()),
        "pg_database": [
            {"oid": 1, "datname": database, "datdba": OWNER, "encoding": 6, "datcollate": "C", "datctype": "C",
             "datistemplate": False,
                 "datallowconn": True, "datconnlimit": -1, "dattablespace": 1663, "datacl": None, "datlocprovider": "c",
                 "daticulocale": None, "datlocale": None, "daticurules": None, "datcollversion": None}
        ],
        "pg_roles": [_role("rolname")],
        "pg_authid": [_role("rolname")],
        "pg_user": [{"usename": "headrace", "usesysid": OWNER, "usecreatedb": False, "usesuper": False}],
        "pg_am": [
            {"oid": 2, "amname": "heap", "amhandler": "-", "amtype": "t"},
            {"oid": _BTREE, "amname": "btree", "amhandler": "-", "amtype": "i"},
        ],
        "pg_tablespace": [
            {"oid": 1663, "spcname": "pg_default", "spcowner": OWNER, "spcacl": None, "spcoptions": None}
        ],
        "pg_collation": [
            {"oid": 100, "collname": "default", "collnamespace": 11, "collowner": OWNER, "collprovider": "d"}
        ],
        "pg_settings": [
            {"name": name, "setting": value, "unit": None, "category": "", "short_desc": "", "context": "internal",
             "vartype": "string",
                 "source": "default", "boot_val": value, "reset_val": value}
            for name, value in {**REPORTED, **MORE}.items()
        ],
        "pg_tables": [
            {"schemaname": name.schema, "tablename": name.table, "tableowner": "headrace", "tablespace": None,
                 "hasindexes": _has_key(tables[name]), "hasrules": False, "hastriggers": False, "rowsecurity": False}
            for name in oids
        ],
        "information_schema_schemata": [
            {"catalog_name": database, "schema_name": name, "schema_owner": "headrace"} for name in namespaces
        ],
        "information_schema_tables": [
            {"table_catalog": database, "table_schema": name.schema, "table_name": name.table,
             "table_type": "BASE TABLE",
                 "is_insertable_into": "NO", "is_typed": "NO"} for name in oids
        ],
        "information_schema_columns": [row for name in oids for row in _columns(name, tables[name], database)],
        "information_schema_table_constraints": [
            {"constraint_catalog": database, "constraint_schema": name.schema, "constraint_name": _key_name(name),
                 "table_catalog": database, "table_schema": name.schema, "table_name": name.table,
                 "constraint_type": "PRIMARY KEY"} for name in oids if _has_key(tables[name])
        ],
        "information_schema_key_column_usage": [
            {"constraint_catalog": database, "constraint_schema": name.schema, "constraint_name": _key_name(name),
                 "table_catalog": database, "table_schema": name.schema, "table_name": name.table,
                 "column_name": column,
                 "ordinal_position": place}
            for name in oids if _has_key(tables[name])
            for place, column in enumerate(tables[name].row_key, 1)
        ],
    }  # fmt: skip
    shapes = {
        "pg_index": "indexrelid indrelid indnatts indnkeyatts indisunique indisprimary indisexclusion indisclustered "
        "indisvalid indisready indislive indisreplident indkey indcollation indclass indoption indexprs indpred "
        "indnullsnotdistinct indexdef",
        "pg_indexes": "schemaname tablename indexname tablespace indexdef",
    }
    for name, content in rows.items():
        made[name] = pa.Table.from_pylist(content) if content else _without_rows(shapes.get(name, "oid"))
    return {name: _with_text(table) for name, table in made.items()}


def _without_rows(columns: str) -> pa.Table:
    names = columns.split()
    flags = ("indis", "tgis", "puball", "pubin", "pubup", "pubdel", "pubtr", "pubvia", "proretset", "indnulls")
    fields = [
        (name, pa.bool_() if name.startswith(flags) else pa.int64() if name.endswith(("id", "relid")) else pa.string())
        for name in names
    ]
    return pa.schema(fields).empty_table()


def _with_text(table: pa.Table) -> pa.Table:
    """Columns that are null everywhere have a type, too."""
    lists = ("acl", "options", "roles", "argnames", "keys", "attrs", "stxkind", *_VECTORS)
    fields = [
        field.with_type(pa.list_(_type_inside(field.name)) if field.name.endswith(lists) else pa.string())
        if pa.types.is_null(field.type) or field.name.endswith(lists)
        else field
        for field in table.schema
    ]
    return (
        table.select([field.name for field in fields]).cast(pa.schema(fields))
        if table.num_rows
        else pa.schema(fields).empty_table()
    )


def _type_inside(name: str) -> pa.DataType:
    return pa.int64() if name.endswith(("roles", "keys", "attrs", *_VECTORS)) else pa.string()


def _role(name: str) -> dict[str, Any]:
    flags = ("rolsuper", "rolinherit", "rolcreaterole", "rolcreatedb", "rolreplication", "rolbypassrls")
    return {
        "oid": OWNER,
        name: "headrace",
        "rolvaliduntil": None,
        "rolcanlogin": True,
        "rolconnlimit": -1,
        **dict.fromkeys(flags, False),
    }


def _has_key(table: StateTable) -> bool:
    return bool(table.row_key)


def _key_name(name: TableName) -> str:
    return f"{name.table}_pkey"


def _index_of(oid: int) -> int:
    """The number of the index on the key of the table with this number."""
    return oid + 1


def _index_text(table: StateTable) -> str:
    schema, name = table.name
    return f"CREATE UNIQUE INDEX {_key_name(table.name)} ON {schema}.{name} USING btree ({', '.join(table.row_key)})"


def _class_rows(table: StateTable, oid: int, namespace: int) -> Iterator[dict[str, Any]]:
    row = _class_row(table, oid, namespace)
    yield {**row, "relhasindex": _has_key(table)}
    if _has_key(table):
        index = {"oid": _index_of(oid), "relname": _key_name(table.name), "relkind": "i", "relam": _BTREE}
        yield {**row, **index, "relfilenode": _index_of(oid), "relnatts": len(table.row_key)}


def _class_row(table: StateTable, oid: int, namespace: int) -> dict[str, Any]:
    flags = ("relhasindex", "relisshared", "relhasrules", "relhastriggers", "relhassubclass", "relrowsecurity",
             "relforcerowsecurity", "relispartition")  # fmt: skip
    return {
        "oid": oid, "relname": table.name.table, "relnamespace": namespace, "reltype": 0, "reloftype": 0,
        "relowner": OWNER, "relam": 2, "relfilenode": oid, "reltablespace": 0, "relpages": 0,
        "reltuples": -1.0, "reltoastrelid": 0, "relpersistence": "p", "relkind": "r",
        "relnatts": len(table.columns), "relchecks": 0, "relispopulated": True, "relreplident": "n", "relacl": None,
        "reloptions": None, "relpartbound": None, "xmin": 1, **dict.fromkeys(flags, False),
    }  # fmt: skip


def _attributes(table: StateTable, oid: int) -> Iterator[dict[str, Any]]:
    of_key = [column for name in table.row_key for column in table.columns if column.name == name]
    for relation, columns in ((oid, table.columns), (_index_of(oid), of_key)):
        yield from _attributes_of(table, relation, columns)


def _attributes_of(table: StateTable, relation: int, columns: Sequence[StateColumn]) -> Iterator[dict[str, Any]]:
    for place, column in enumerate(columns, 1):
        kind = column_of(column.type.arrow).oid
        yield {
            "attrelid": relation, "attname": column.name, "atttypid": kind, "attstattarget": -1,
            "attlen": _TYPES.get(kind, ("", "", -1, ""))[2], "attnum": place, "attndims": 0, "atttypmod": -1,
            "attnotnull": column.name in table.row_key, "atthasdef": False, "atthasmissing": False, "attidentity": "",
            "attgenerated": "", "attisdropped": False, "attislocal": True, "attinhcount": 0,
            "attcollation": 0, "attstorage": "p", "attcompression": "", "attacl": None, "attoptions": None,
            "attfdwoptions": None,
        }  # fmt: skip


def _keys(table: StateTable, oid: int, namespace: int) -> Iterator[dict[str, Any]]:
    if not table.row_key:
        return
    quoted = ", ".join(table.row_key)
    yield {
        "oid": _FIRST_CONSTRAINT + oid, "conname": _key_name(table.name), "connamespace": namespace, "contype": "p",
        "condeferrable": False, "condeferred": False, "convalidated": True, "conrelid": oid, "contypid": 0,
        "conindid": _index_of(oid), "conparentid": 0, "confrelid": 0, "confupdtype": " ", "confdeltype": " ",
        "confmatchtype": " ",
        "conislocal": True, "coninhcount": 0, "connoinherit": True,
        "conkey": _key_places(table), "confkey": [0],
        "condef": f"PRIMARY KEY ({quoted})",
    }  # fmt: skip


def _key_places(table: StateTable) -> list[int]:
    names = [column.name for column in table.columns]
    return [names.index(name) + 1 for name in table.row_key]


def _index_row(table: StateTable, oid: int) -> dict[str, Any]:
    size = len(table.row_key)
    return {
        "indexrelid": _index_of(oid), "indrelid": oid, "indnatts": size, "indnkeyatts": size, "indisunique": True,
        "indisprimary": True, "indisexclusion": False, "indisclustered": False, "indisvalid": True, "indisready": True,
        "indislive": True, "indisreplident": False, "indkey": _key_places(table), "indcollation": [0] * size,
        "indclass": [0] * size, "indoption": [0] * size, "indexprs": None, "indpred": None,
        "indnullsnotdistinct": False, "indexdef": _index_text(table),
    }  # fmt: skip


def _types() -> Iterator[dict[str, Any]]:
    arrays = {inner: oid for inner, oid in ARRAYS.items() if inner in _TYPES}
    for oid, (name, sql_name, size, category) in _TYPES.items():
        yield _type_row(oid, name, sql_name, size, category, typarray=arrays.get(oid, 0))
    for inner, oid in arrays.items():
        name, sql_name, *_ = _TYPES[inner]
        yield _type_row(oid, f"_{name}", f"{sql_name}[]", -1, "A", typelem=inner)


def _type_row(
    oid: int, name: str, sql_name: str, size: int, category: str, *, typarray: int = 0, typelem: int = 0
) -> dict[str, Any]:
    return {
        "oid": oid, "typname": name, "sqlname": sql_name, "typnamespace": 11, "typowner": OWNER, "typlen": size,
        "typbyval": size in (1, 2, 4, 8), "typtype": "b", "typcategory": category, "typispreferred": False,
        "typisdefined": True, "typdelim": ",", "typrelid": 0, "typelem": typelem, "typarray": typarray,
        "typinput": "array_in" if typelem else f"{name}in", "typoutput": f"{name}out", "typreceive": f"{name}recv",
        "typsend": f"{name}send", "typnotnull": False, "typbasetype": 0, "typtypmod": -1, "typndims": 0,
        "typcollation": 0, "typdefault": None, "typacl": None, "typsubscript": "-", "typstorage": "p",
    }  # fmt: skip


def _columns(name: TableName, table: StateTable, database: str) -> Iterator[dict[str, Any]]:
    for place, column in enumerate(table.columns, 1):
        kind = column_of(column.type.arrow).oid
        udt, sql_name = _TYPES[kind][:2] if kind in _TYPES else ("_array", "ARRAY")
        yield {
            "table_catalog": database, "table_schema": name.schema, "table_name": name.table,
            "column_name": column.name, "ordinal_position": place, "column_default": None,
            "is_nullable": "NO" if column.name in table.row_key else "YES", "data_type": sql_name,
            "character_maximum_length": None, "character_octet_length": None, "numeric_precision": None,
            "numeric_scale": None, "datetime_precision": 6 if kind in (1114, 1184) else None,
            "collation_name": None, "domain_name": None, "udt_catalog": database, "udt_schema": "pg_catalog",
            "udt_name": udt, "is_identity": "NO", "is_generated": "NEVER", "is_updatable": "NO",
        }  # fmt: skip
