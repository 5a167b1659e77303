"""Mistakes in an expression that show before it runs: unknown functions, methods of Python, types that do not fit.

Only what is wrong for Spark too, or fails with the first row, is refused. A function that Spark has and the worker does
not is left alone, and so is everything around it whose type is then not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.errors import ExpressionError
from headrace.model.nearest import nearest
from headrace.sql import types as t
from headrace.sql.bind import Binder, text_of
from headrace.sql.functions import FUNCTIONS
from headrace.sql.nodes import Node, Unsupported, WrongType
from headrace.sql.parse import point_at

if TYPE_CHECKING:
    from headrace.sql.expr import Parsed

_COMPARISONS: Final = ("EQ", "NEQ", "GT", "GTE", "LT", "LTE", "NullSafeEQ", "In", "Between")
_ARITHMETIC: Final = ("Add", "Sub", "Mul", "Div", "Mod", "IntDiv")
_LOGIC: Final = ("And", "Or", "Not")
# Methods of Python's str whose function in SQL has another name or needs another form.
_METHODS: Final = {
    "strip": "trim({0})",
    "lstrip": "ltrim({0})",
    "rstrip": "rtrim({0})",
    "find": "instr({0}, {1}) - 1",
    "title": "initcap({0})",
    "isin": "{0} IN ({1})",
    "is_in": "{0} IN ({1})",
    "isnull": "{0} IS NULL",
    "is_null": "{0} IS NULL",
}


def check_meaning(parsed: Parsed, schema: pa.Schema, where: str) -> None:
    """Raise ExpressionError for the first mistake in an expression whose columns are known."""
    for tree in parsed.tree.walk():
        kind = type(tree).__name__
        if kind == "Dot":
            _check_method(tree, parsed.sql, schema, where)
        elif kind == "Anonymous" and type(tree.parent).__name__ != "Dot":
            _check_function(str(tree.this), parsed.sql, where)
    binder = Binder(schema, {name.lower(): name for name in schema.names} | {name: name for name in schema.names})
    for tree in parsed.tree.walk():
        _check_types(tree, binder, parsed.sql, where)


def unchecked_functions(parsed: Parsed) -> list[str]:
    """Functions of Spark that the worker does not know, so that their arguments and results could not be checked."""
    calls = (tree for tree in parsed.tree.walk() if type(tree).__name__ == "Anonymous")
    return sorted({str(tree.this).lower() for tree in calls} - set(FUNCTIONS))


def _check_method(tree: Any, text: str, schema: pa.Schema, where: str) -> None:
    """``page.startswith('a')`` calls a method of a column, as in Python."""
    call = tree.expression
    root = tree
    while type(root).__name__ == "Dot":
        root = root.this
    names = {name.lower() for name in schema.names}
    is_column = str(getattr(root, "name", "")).lower() in names or type(root).__name__ in ("Column", "Paren")
    if type(call).__name__ != "Anonymous" or not is_column:
        return
    method, column = str(call.this), text_of(tree.this)
    args = [text_of(arg) for arg in call.expressions]
    raise ExpressionError(
        f"columns have no methods in SQL, and {method} is called as one",
        where=where,
        expected="functions that are given the column",
        found=point_at(text, _position(rf"\.\s*{re.escape(method)}\s*\(", text)),
        next_move=f"write {_as_sql_call(method, column, args)}; filter(…) takes a Python function",
    )


def _as_sql_call(method: str, column: str, args: list[str]) -> str:
    form = _METHODS.get(method.lower())
    if form is not None and form.count("{") == 1 + len(args):
        return form.format(column, *args)
    called = f"{method.lower()}({', '.join([column, *args])})"
    if method.lower() in ("startswith", "endswith", "contains") and len(args) == 1 and args[0][:1] == "'":
        inner = args[0][1:-1]
        before, after = method.lower() != "startswith", method.lower() != "endswith"
        return f"{called} or {column} LIKE '{'%' if before else ''}{inner}{'%' if after else ''}'"
    return called


def _check_function(name: str, text: str, where: str) -> None:
    if name.lower() in FUNCTIONS or name.lower() in SPARK_FUNCTIONS:
        return
    near = nearest(name, sorted(SPARK_FUNCTIONS | set(FUNCTIONS)))
    meant = f"did you mean {' or '.join(f'{each}()' for each in near)}?" if near else ""
    raise ExpressionError(
        f"SQL has no function {name}()",
        where=where,
        expected="a function of Spark SQL",
        found=point_at(text, _position(rf"(?<![\w.]){re.escape(name)}\s*\(", text)),
        next_move=meant or "map(…) and filter(…) take Python functions",
    )


def _check_types(tree: Any, binder: Binder, text: str, where: str) -> None:
    kind = type(tree).__name__
    if kind in _COMPARISONS:
        operands = list(_operands(tree, binder))
        for other in operands[1:]:
            reason = _mismatch(operands[0], other, "compares")
            if reason:
                raise _type_error(tree, *reason, text, where)
    elif kind in _ARITHMETIC:
        one, two = (_typed(binder, each) for each in (tree.this, tree.expression))
        if one is not None and two is not None:
            if one.type == two.type == t.STRING and kind == "Add":
                joined = f"{text_of(tree.this)} || {text_of(tree.expression)}"
                raise _type_error(tree, "adds text to text", f"texts are joined by ||: {joined}", text, where)
            reason = _mismatch(one, two, "combines") if t.STRING in (one.type, two.type) else None
            if reason:
                raise _type_error(tree, *reason, text, where)
    elif kind in _LOGIC:
        for each in (tree.this, tree.args.get("expression")):
            node = None if each is None else _typed(binder, each)
            if node is not None and (t.is_numeric(node.type) or node.type in (t.DATE, t.TIMESTAMP)):
                what = f"has {node.type} where it needs a condition"
                raise _type_error(tree, what, f"compare it with something: {text_of(each)} <> 0", text, where)
    elif kind == "Anonymous" and str(tree.this).lower() in FUNCTIONS:
        try:
            binder.node(tree)
        except WrongType as wrong:
            raise ExpressionError(
                "a function is given a value of another type than it takes",
                where=where,
                expected=f"{wrong.expected} for {tree.this}()",
                found=f"{wrong.given}, in {text!r}",
                next_move=f"cast it, or take another column: CAST(… AS {wrong.expected})",
            ) from None
        except Unsupported:
            pass


def _operands(tree: Any, binder: Binder) -> Iterator[Node]:
    parts = [tree.this, *(tree.args.get("expressions") or [])]
    parts += [part for name in ("expression", "low", "high") if (part := tree.args.get(name)) is not None]
    nodes = [_typed(binder, part) for part in parts]
    if nodes[0] is not None:
        yield from (node for node in nodes if node is not None)


def _typed(binder: Binder, tree: Any) -> Node | None:
    """The node of a part; None where its type is not known here."""
    try:
        node = binder.node(tree)
    except Unsupported:
        return None
    return None if t.is_nested(node.type) or node.type in (t.OPAQUE, t.NULL) else node


def _mismatch(one: Node, two: Node, does: str) -> tuple[str, str] | None:
    """What is wrong with two values beside each other, and the next move."""
    for text, other in ((one, two), (two, one)):
        if text.type != t.STRING or not t.is_numeric(other.type):
            continue
        if text.op != "literal":
            cast = f"CAST({text.text} AS {'BIGINT' if t.is_integral(other.type) else 'DOUBLE'})"
            quoted = (
                f", or compare it with text: '{other.text}'" if other.op == "literal" and does == "compares" else ""
            )
            return f"{does} text with a number", f"if {text.text} holds numbers, say so: {cast}{quoted}"
        if not re.fullmatch(r"\s*[-+]?[\d.]+([eE][-+]?\d+)?\s*", str(text.value)):
            return f"{does} a number with text that is none", f"{text.value!r} is not a number"
    if does == "compares" and t.common_of([one.type, two.type]) is None:
        if t.TIMESTAMP in (one.type, two.type):
            return f"{does} {one.type} with {two.type}", "a time is written TIMESTAMP '2024-01-01 12:00:00'"
        return f"{does} {one.type} with {two.type}", "cast one of them, or take another column"
    return None


def _type_error(tree: Any, what: str, next_move: str, text: str, where: str) -> ExpressionError:
    column = next((each.name for each in tree.walk() if type(each).__name__ == "Column"), "")
    return ExpressionError(
        f"{text_of(tree)} {what}",
        where=where,
        expected="values of types that go together",
        found=point_at(text, _position(rf"(?<![\w.]){re.escape(column)}(?!\w)", text) if column else 0),
        next_move=next_move,
    )


def _position(pattern: str, text: str) -> int:
    match = re.search(pattern, text, re.IGNORECASE)
    return 0 if match is None else match.end() - len(match.group().lstrip(". "))


# --- the names of Spark SQL's own functions: ``SHOW SYSTEM FUNCTIONS`` of Spark 4
# They tell a misspelt name from a function that only Spark has.


_NAMES: Final = """
abs acos acosh add_months aes_decrypt aes_encrypt aggregate and any any_value approx_count_distinct approx_percentile
approx_top_k approx_top_k_accumulate approx_top_k_combine approx_top_k_estimate array array_agg array_append
array_compact array_contains array_distinct array_except array_insert array_intersect array_join array_max array_min
array_position array_prepend array_remove array_repeat array_size array_sort array_union arrays_overlap arrays_zip
ascii asin asinh assert_true atan atan2 atanh avg base64 between bigint bin binary bit_and bit_count bit_get
bit_length bit_or bit_xor bitmap_and_agg bitmap_bit_position bitmap_bucket_number bitmap_construct_agg bitmap_count
bitmap_or_agg bool_and bool_or boolean bround btrim cardinality case cast cbrt ceil ceiling char char_length
character_length chr coalesce collate collation collations collect_list collect_set collect_union concat concat_ws
contains conv convert_timezone corr cos cosh cot count count_if count_min_sketch counter_diff covar_pop covar_samp
crc32 csc cume_dist curdate current_catalog current_database current_date current_path current_schema current_time
current_timestamp current_timezone current_user date date_add date_diff date_format date_from_unix_date date_part
date_sub date_trunc dateadd datediff datepart day dayname dayofmonth dayofweek dayofyear decimal decode degrees
dense_rank div double e element_at elt encode endswith equal_null every exists exp explode explode_outer expm1 extract
factorial filter find_in_set first first_value flatten float floor forall format_number format_string from_avro
from_base32 from_csv from_json from_protobuf from_unixtime from_utc_timestamp from_xml get get_json_object getbit
greatest grouping grouping_id hash hex histogram_numeric hll_sketch_agg hll_sketch_estimate hll_union hll_union_agg
hmac hour hypot if ifnull ilike in initcap inline inline_outer input_file_block_length input_file_block_start
input_file_name instr int is_valid_utf8 is_valid_variant is_variant_null isnan isnotnull isnull
jaro_winkler_similarity java_method json_array_length json_object_keys json_tuple kll_merge_agg_bigint
kll_merge_agg_double kll_merge_agg_float kll_sketch_agg_bigint kll_sketch_agg_double kll_sketch_agg_float
kll_sketch_get_n_bigint kll_sketch_get_n_double kll_sketch_get_n_float kll_sketch_get_quantile_bigint
kll_sketch_get_quantile_double kll_sketch_get_quantile_float kll_sketch_get_rank_bigint kll_sketch_get_rank_double
kll_sketch_get_rank_float kll_sketch_merge_bigint kll_sketch_merge_double kll_sketch_merge_float
kll_sketch_to_string_bigint kll_sketch_to_string_double kll_sketch_to_string_float kurtosis lag last last_day
last_value lcase lead least left len length levenshtein like listagg ln localtime localtimestamp locate log log10
log1p log2 lower lpad ltrim luhn_check make_date make_dt_interval make_interval make_time make_timestamp
make_timestamp_ltz make_timestamp_ntz make_valid_utf8 make_ym_interval map map_concat map_contains_key map_entries
map_filter map_from_arrays map_from_entries map_keys map_values map_zip_with mask max max_by md5 mean measure median
min min_by minute mod mode monotonically_increasing_id month monthname months_between named_struct nanvl negative
next_day not now nth_value ntile nullif nullifzero nvl nvl2 octet_length or overlay parse_json parse_url percent_rank
percentile percentile_approx percentile_cont percentile_disc pi pmod posexplode posexplode_outer position positive pow
power printf python_worker_logs quarter quote radians raise_error rand randn random randstr range rank reduce reflect
regexp regexp_count regexp_extract regexp_extract_all regexp_instr regexp_like regexp_replace regexp_substr regr_avgx
regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy repeat replace reverse right rint
rlike round row_number rpad rtrim schema_of_avro schema_of_csv schema_of_json schema_of_variant schema_of_variant_agg
schema_of_xml sec second sentences sequence session_user session_window sha sha1 sha2 shiftleft shiftright
shiftrightunsigned shuffle sign signum sin sinh size skewness slice smallint some sort_array soundex space
spark_partition_id split split_part sql_keywords sqrt st_asbinary st_geogfromwkb st_geomfromwkb st_setsrid st_srid
stack startswith std stddev stddev_pop stddev_samp str_to_map string string_agg struct substr substring
substring_index sum tan tanh theta_difference theta_intersection theta_intersection_agg theta_sketch_agg
theta_sketch_estimate theta_union theta_union_agg time time_bucket time_diff time_from_micros time_from_millis
time_from_seconds time_to_micros time_to_millis time_to_seconds time_trunc timestamp timestamp_micros timestamp_millis
timestamp_nanos timestamp_seconds tinyint to_avro to_base32 to_binary to_char to_csv to_date to_json to_number
to_protobuf to_time to_timestamp to_timestamp_ltz to_timestamp_ntz to_unix_timestamp to_utc_timestamp to_varchar
to_variant_object to_xml transform transform_keys transform_values translate trim trunc try_add try_aes_decrypt
try_avg try_divide try_element_at try_make_interval try_make_timestamp try_make_timestamp_ltz try_make_timestamp_ntz
try_mod try_multiply try_parse_json try_parse_url try_reflect try_subtract try_sum try_to_binary try_to_date
try_to_number try_to_time try_to_timestamp try_url_decode try_validate_utf8 try_variant_array_append try_variant_get
try_variant_insert try_variant_set tuple_difference_double tuple_difference_integer tuple_difference_theta_double
tuple_difference_theta_integer tuple_intersection_agg_double tuple_intersection_agg_integer tuple_intersection_double
tuple_intersection_integer tuple_intersection_theta_double tuple_intersection_theta_integer tuple_sketch_agg_double
tuple_sketch_agg_integer tuple_sketch_estimate_double tuple_sketch_estimate_integer tuple_sketch_summary_double
tuple_sketch_summary_integer tuple_sketch_theta_double tuple_sketch_theta_integer tuple_union_agg_double
tuple_union_agg_integer tuple_union_double tuple_union_integer tuple_union_theta_double tuple_union_theta_integer
typeof ucase unbase64 unhex uniform unix_date unix_micros unix_millis unix_nanos unix_seconds unix_timestamp upper
url_decode url_encode user uuid validate_utf8 var_pop var_samp variance variant_array_append variant_delete
variant_explode variant_explode_outer variant_get variant_insert variant_set variant_strip_nulls vector_avg
vector_cosine_similarity vector_inner_product vector_l2_distance vector_norm vector_normalize vector_sum version
weekday weekofyear when width_bucket window window_time xpath xpath_boolean xpath_double xpath_float xpath_int
xpath_long xpath_number xpath_short xpath_string xxhash64 year zeroifnull zip_with
"""

SPARK_FUNCTIONS: Final = frozenset(_NAMES.split())
