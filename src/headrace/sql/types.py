"""The SQL types of expressions and the rules by which Spark (ANSI mode) brings two of them together.

Owns: the type of every value inside an expression, its way from and to Arrow columns, and Spark's rules for common
types and for the precision of decimals. Invariant: a rule here says what Spark 4 does, or nothing (`None`); it never
guesses. It knows neither SQL text nor how values are computed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa

MAX_PRECISION = 38
_MIN_ADJUSTED_SCALE = 6


class SqlType(NamedTuple):
    """One type. `parts` are the element of an array, key and value of a map, or the fields of a struct."""

    name: str
    precision: int = 0
    scale: int = 0
    parts: tuple[SqlType, ...] = ()
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.name == "DECIMAL":
            return f"DECIMAL({self.precision},{self.scale})"
        if self.name == "STRUCT":
            return f"STRUCT<{', '.join(f'{name}: {part}' for name, part in zip(self.names, self.parts, strict=True))}>"
        return f"{self.name}<{', '.join(map(str, self.parts))}>" if self.parts else self.name


BOOLEAN = SqlType("BOOLEAN")
TINYINT = SqlType("TINYINT")
SMALLINT = SqlType("SMALLINT")
INT = SqlType("INT")
BIGINT = SqlType("BIGINT")
FLOAT = SqlType("FLOAT")
DOUBLE = SqlType("DOUBLE")
STRING = SqlType("STRING")
BINARY = SqlType("BINARY")
DATE = SqlType("DATE")
TIMESTAMP = SqlType("TIMESTAMP")
INTERVAL = SqlType("INTERVAL DAY TO SECOND")
#: A day-time interval of whole days by its type: added to a date it gives a date, the wider one a timestamp.
DAYS = SqlType("INTERVAL DAY")
MONTHS = SqlType("INTERVAL YEAR TO MONTH")
NULL = SqlType("VOID")
#: A column that holds encoded values or a type SQL has no word for: it can be passed on, and nothing else.
OPAQUE = SqlType("OPAQUE")

INTEGRALS = (TINYINT, SMALLINT, INT, BIGINT)
BITS = {TINYINT: 8, SMALLINT: 16, INT: 32, BIGINT: 64}
_DIGITS = {TINYINT: 3, SMALLINT: 5, INT: 10, BIGINT: 20}
NESTED = ("ARRAY", "MAP", "STRUCT")


def decimal(precision: int, scale: int) -> SqlType:
    return SqlType("DECIMAL", precision, scale)


def array(element: SqlType) -> SqlType:
    return SqlType("ARRAY", parts=(element,))


def is_decimal(kind: SqlType) -> bool:
    return kind.name == "DECIMAL"


def is_integral(kind: SqlType) -> bool:
    return kind in BITS


def is_fractional(kind: SqlType) -> bool:
    return kind in (FLOAT, DOUBLE)


def is_numeric(kind: SqlType) -> bool:
    return is_integral(kind) or is_fractional(kind) or is_decimal(kind)


def is_interval(kind: SqlType) -> bool:
    return kind in (INTERVAL, DAYS)


def is_nested(kind: SqlType) -> bool:
    return kind.name in NESTED


# --- Arrow ------------------------------------------------------------------------------------------------------------

_FROM_ARROW: dict[Any, SqlType] = {
    pa.bool_(): BOOLEAN,
    pa.int8(): TINYINT,
    pa.int16(): SMALLINT,
    pa.int32(): INT,
    pa.int64(): BIGINT,
    pa.float32(): FLOAT,
    pa.float64(): DOUBLE,
    pa.string(): STRING,
    pa.large_string(): STRING,
    pa.binary(): BINARY,
    pa.large_binary(): BINARY,
    pa.date32(): DATE,
    pa.timestamp("us", "UTC"): TIMESTAMP,
    pa.null(): NULL,
}


def from_field(field: pa.Field) -> SqlType:
    """The type of a column; one that holds MessagePack is opaque, whatever its Arrow type says."""
    if field.metadata and b"headrace" in field.metadata:
        return OPAQUE
    return from_arrow(field.type)


def from_arrow(kind: pa.DataType) -> SqlType:
    known = _FROM_ARROW.get(kind)
    if known is not None:
        return known
    if pa.types.is_decimal128(kind):
        return decimal(kind.precision, kind.scale)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return array(from_field(kind.value_field))
    if pa.types.is_map(kind):
        return SqlType("MAP", parts=(from_field(kind.key_field), from_field(kind.item_field)))
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return SqlType("STRUCT", parts=tuple(map(from_field, fields)), names=tuple(field.name for field in fields))
    return OPAQUE


_TO_ARROW: dict[SqlType, Any] = {
    BOOLEAN: pa.bool_(),
    TINYINT: pa.int64(),
    SMALLINT: pa.int64(),
    INT: pa.int64(),
    BIGINT: pa.int64(),
    FLOAT: pa.float64(),
    DOUBLE: pa.float64(),
    STRING: pa.string(),
    BINARY: pa.binary(),
    DATE: pa.date32(),
    TIMESTAMP: pa.timestamp("us", "UTC"),
}


def to_arrow(kind: SqlType) -> pa.DataType | None:
    """The column type Headrace stores it in (every integer as int64 …); None where no column can hold it."""
    if is_decimal(kind):
        return pa.decimal128(38, 18)
    if not is_nested(kind):
        return _TO_ARROW.get(kind)
    parts = [to_arrow(part) for part in kind.parts]
    if any(part is None for part in parts):
        return None
    if kind.name == "ARRAY":
        return pa.list_(parts[0])
    if kind.name == "MAP":
        return pa.map_(parts[0], parts[1])
    return pa.struct(list(zip(kind.names, parts, strict=True)))


# --- two types become one ---------------------------------------------------------------------------------------------


def common_type(one: SqlType, two: SqlType) -> SqlType | None:
    """Spark's least common type of two in ANSI mode, for comparisons, CASE, COALESCE, IN and their like."""
    if one == two:
        return one
    if NULL in (one, two):
        return two if one == NULL else one
    if is_numeric(one) and is_numeric(two):
        return _common_number(one, two)
    if STRING in (one, two):
        return _common_with_text(two if one == STRING else one)
    if {one, two} == {DATE, TIMESTAMP}:
        return TIMESTAMP
    if is_interval(one) and is_interval(two):
        return INTERVAL
    if one.name == two.name == "ARRAY":
        element = common_type(one.parts[0], two.parts[0])
        return None if element is None else array(element)
    return None


def _common_number(one: SqlType, two: SqlType) -> SqlType:
    if is_integral(one) and is_integral(two):
        return max(one, two, key=INTEGRALS.index)
    if is_decimal(one) or is_decimal(two):
        if is_fractional(one) or is_fractional(two):
            return DOUBLE
        return wider_decimal(as_decimal(one), as_decimal(two))
    if DOUBLE in (one, two):
        return DOUBLE
    # FLOAT cannot hold every INT, so Spark takes both to DOUBLE.
    return DOUBLE if INT in (one, two) or BIGINT in (one, two) else FLOAT


def _common_with_text(other: SqlType) -> SqlType | None:
    if is_integral(other):
        return BIGINT
    if is_fractional(other) or is_decimal(other):
        return DOUBLE
    return other if other in (BOOLEAN, DATE, TIMESTAMP, BINARY) else None


def common_of(kinds: list[SqlType]) -> SqlType | None:
    """The common type of several; Spark looks at text last, so that ('1', 2, 3.5) does not depend on the order."""
    ordered = [kind for kind in kinds if kind != STRING] + [kind for kind in kinds if kind == STRING]
    found: SqlType | None = NULL
    for kind in ordered:
        found = None if found is None else common_type(found, kind)
    return found


# --- decimals ---------------------------------------------------------------------------------------------------------


def as_decimal(kind: SqlType) -> SqlType:
    """The decimal type that holds every value of an integral type; a decimal is itself."""
    return kind if is_decimal(kind) else decimal(_DIGITS[kind], 0)


def wider_decimal(one: SqlType, two: SqlType) -> SqlType:
    scale = max(one.scale, two.scale)
    whole = max(one.precision - one.scale, two.precision - two.scale)
    if whole + scale <= MAX_PRECISION:
        return decimal(whole + scale, scale)
    return decimal(MAX_PRECISION, max(MAX_PRECISION - whole, 0))


def decimal_result(op: str, one: SqlType, two: SqlType) -> SqlType:
    """The type of `one op two` for two decimals, by Spark's rules with allowed loss of precision."""
    (p1, s1), (p2, s2) = one[1:3], two[1:3]
    if op in ("add", "sub"):
        scale = max(s1, s2)
        precision = max(p1 - s1, p2 - s2) + scale + 1
    elif op == "mul":
        scale = s1 + s2
        precision = p1 + p2 + 1
    elif op == "div":
        scale = max(_MIN_ADJUSTED_SCALE, s1 + p2 + 1)
        precision = p1 - s1 + s2 + scale
    else:
        scale = max(s1, s2)
        precision = min(p1 - s1, p2 - s2) + scale
    if precision <= MAX_PRECISION:
        return decimal(precision, scale)
    kept = max(MAX_PRECISION - (precision - scale), min(scale, _MIN_ADJUSTED_SCALE))
    return decimal(MAX_PRECISION, kept)


# --- casts ------------------------------------------------------------------------------------------------------------

_TIMES = (DATE, TIMESTAMP)


def can_cast(source: SqlType, target: SqlType) -> bool:
    """Whether the worker can do this cast; what ANSI mode forbids is never allowed here."""
    if source in (target, NULL):
        return True
    if target == STRING:
        return source not in (OPAQUE, INTERVAL, DAYS, MONTHS) and not is_nested(source)
    if source == STRING:
        return is_numeric(target) or target in (BOOLEAN, DATE, TIMESTAMP, BINARY)
    if is_numeric(source) and (is_numeric(target) or target == BOOLEAN):
        return True
    if source == BOOLEAN:
        return is_numeric(target)
    if source in _TIMES and target in _TIMES:
        return True
    if source == TIMESTAMP:
        return target in (BIGINT, DOUBLE)
    if target == TIMESTAMP:
        return is_integral(source) or source == DOUBLE
    if source == DAYS and target == INTERVAL:
        return True
    if source.name == target.name == "ARRAY":
        return can_cast(source.parts[0], target.parts[0])
    return False


def can_store(source: SqlType, target: SqlType) -> bool:
    """Whether a result of one type may go into a declared column of another without a cast that somebody wrote."""
    if source in (target, NULL) or (target == STRING and can_cast(source, target)):
        return True
    if is_numeric(source) and is_numeric(target):
        return True
    if source in _TIMES and target in _TIMES:
        return True
    if source.name != target.name or not is_nested(source) or len(source.parts) != len(target.parts):
        return False
    return all(can_store(one, two) for one, two in zip(source.parts, target.parts, strict=True))
