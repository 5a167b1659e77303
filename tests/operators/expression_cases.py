"""The expressions both evaluators must agree on, and the rows they are tried on."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("n", pa.int64()),
        ("k", pa.int64()),
        ("big", pa.int64()),
        ("x", pa.float64()),
        ("y", pa.float64()),
        ("s", pa.string()),
        ("u", pa.string()),
        ("num", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("due", pa.timestamp("us", "UTC")),
        ("d", pa.date32()),
        ("m", pa.decimal128(38, 18)),
        ("b", pa.bool_()),
        ("c", pa.bool_()),
        ("bin", pa.binary()),
        ("arr", pa.list_(pa.int64())),
        ("tags", pa.list_(pa.string())),
        ("mp", pa.map_(pa.string(), pa.int64())),
        ("st", pa.struct([("a", pa.int64()), ("Name", pa.string()), ("in", pa.struct([("z", pa.float64())]))])),
    ]
)
NAN, INF = float("nan"), float("inf")
BIG = 2**63 - 1


def _at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def _row(*values: object) -> dict[str, object]:
    return dict(zip(SCHEMA.names, values, strict=True))


ROWS = [
    _row(0, 0, 1, 0, 0.0, 1.0, "", "a", "1", _at("1970-01-01"), _at("1970-01-01"), date(1970, 1, 1), Decimal("0"), True,
         True, b"", [], [], {}, {"a": 1, "Name": "n", "in": {"z": 1.5}}),
    _row(1, 1, 2, BIG, -0.0, 0.5, "abc", "b", " 42 ", _at("2024-02-29 13:14:15.123456"), _at("2024-02-29 13:00:00"),
         date(2024, 2, 29), Decimal("1.5"), False, True, b"abc", [1, 2, 3], ["a", "b"], {"a": 1},
         {"a": None, "Name": None, "in": None}),
    _row(2, -7, 3, -BIG - 1, 1.5, -2.5, "Grüße", "ß", "-3", _at("1969-12-31 23:59:59.999999"), _at("2024-01-01"),
         date(1969, 12, 31), Decimal("-2.675"), None, True, b"\x00\xff", [None, 5], [None, ""],
         {"b": 2, "c": None}, None),
    _row(3, 7, -3, 5, -1.5, 3.0, "a,b,,c", ",", "+9", _at("2023-12-31 23:59:59"), _at("2024-01-01 00:00:01"),
         date(2023, 12, 31), Decimal("123456789.123456789123456789"), True, False, b"a", [7], ["x,y", "abc"], {"": 0},
         {"a": 5, "Name": "Grüße", "in": {"z": NAN}}),
    _row(4, 100, -1, -1, NAN, 1.0, "  pad\t ", "p", "0", _at("2000-01-01 12:00"), _at("1999-12-31"), date(2000, 2, 28),
         Decimal("0.005"), False, False, b"zz", None, None, None, {"a": 0, "Name": "", "in": {"z": None}}),
    _row(5, None, 5, *[None] * 17),
    _row(6, 12345, 10, 2**53 + 1, INF, 2.0, "ABC%_\\x", "%", "77", _at("9999-12-31 23:59:59.999999"), _at("2024-03-31"),
         date(9999, 12, 31), Decimal("-9999999999999999.999999999999999999"), True, None, b"%", [0, 0], ["%"], {"k": 9},
         {"a": 2, "Name": "k", "in": {"z": -0.0}}),
    _row(7, -12345, 7, -(2**53) - 1, -INF, 4.0, "new\nline", "\n", "8", _at("0001-03-01"), _at("0001-03-02 01:00"),
         date(1, 1, 3), Decimal("3.000000000000000001"), False, None, b"\n", [-1, None, -1], ["new\nline"], {"n": -1},
         {"a": -1, "Name": "x", "in": {"z": INF}}),
    _row(8, 3, 4, 8, 2.675, 0.1, "😀 smile", "😀", "15", _at("2024-07-04 04:05:06.7"), _at("2024-07-03 23:05:06.7"),
         date(2024, 7, 4), Decimal("2.5"), None, False, "😀".encode(), [3, 4], ["😀"], {"😀": 8},
         {"a": 3, "Name": "y", "in": {"z": 0.1}}),
    _row(9, 42, 6, 9, 1e300, 1e-5, "foo12bar", "12", "1000000", _at("2024-12-30 00:00:00.000001"), _at("2024-12-30"),
         date(2024, 12, 30), Decimal("0.000000000000000001"), None, None, b"foo", [42], ["foo12bar", None],
         {"foo": 42, "42": 1},
         {"a": 42, "Name": "foo", "in": {"z": 1e10}}),
]  # fmt: skip


def table() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA)


LOGIC = r"""
n > 0
n >= k
big = 9223372036854775807
big < -9007199254740992
x > y
x = x
x <> y
x = 0
x >= double('NaN')
x <=> y
x < double('Infinity')
0.0D = -0.0D
s = 'abc'
s > 'a'
s <> u
s == u
b = c
b != c
b > c
bin = X'616263'
bin > X'61'
at > due
at = due
at >= TIMESTAMP '2024-01-01 00:00:00'
at > '2024-01-01'
at < DATE '2024-01-01'
d = DATE '2024-02-29'
d > '2000-01-01'
d <= at
m > 0
m = 1.5
m < n
m >= x
n > 1.5
n = 1.0
n > x
n = num
num > 5
num = '0'
b AND c
b OR c
NOT b
!c
b AND NULL
b OR NULL
NOT (b AND c) OR b
(n > 0) = b
b IS TRUE
b IS NOT TRUE
b IS FALSE
b IS NULL
n IS NOT NULL
n <=> NULL
n <=> 1
s IS DISTINCT FROM u
s IS NOT DISTINCT FROM 'abc'
n IN (1, 7, 42)
n IN (1, NULL)
n NOT IN (1, NULL)
n NOT IN (1, 7)
n IN (k, 42, big)
n IN (1, 2.5, 7)
s IN ('abc', '', 'Grüße')
n IN (0,1,2,3,4,5,6,7,8,9,10,11,12,13,14)
x IN (1.5, 2.675)
d IN ('2024-02-29', DATE '1970-01-01')
n BETWEEN 1 AND 50
n NOT BETWEEN 1 AND 50
x BETWEEN y AND 2
s BETWEEN 'a' AND 'b'
at BETWEEN due AND due + INTERVAL 1 DAY
CASE WHEN n > 0 THEN 'pos' WHEN n < 0 THEN 'neg' ELSE 'zero' END
CASE WHEN n > 0 THEN 1 WHEN b THEN 2.5 END
CASE n WHEN 1 THEN 'one' WHEN 7 THEN 'seven' END
CASE s WHEN 'abc' THEN n WHEN u THEN x ELSE m END
CASE WHEN k <> 0 THEN n / k ELSE -1 END
CASE WHEN n <> 0 THEN 100 / n END
CASE WHEN b THEN arr ELSE array(1, 2) END
IF(n > 0, n, k)
IF(b, s, u)
IF(b, d, at)
n <> 0 AND 100 div n > 2
n = 0 OR 100 % n = 0
COALESCE(n, 0)
COALESCE(b, c)
COALESCE(s, u, 'none')
COALESCE(NULL, x, y, 1)
COALESCE(n, x)
COALESCE(n, m)
COALESCE(n, 1.5)
COALESCE(d, at)
COALESCE(arr, array(9))
NULLIF(n, 7)
NULLIF(s, '')
NULLIF(n, 1.0)
100 / NULLIF(n, 0)
NVL(n, 5)
IFNULL(s, 'x')
NVL2(n, s, u)
ISNULL(n)
ISNOTNULL(n)
ISNAN(x)
ISNAN(n)
GREATEST(n, k)
GREATEST(n, x, 3)
GREATEST(s, u)
GREATEST(x, y)
GREATEST(n, 1.5)
LEAST(n, k, 5)
LEAST(x, y)
LEAST(at, due)
LEAST(s, u, 'b')
GREATEST(d, DATE '2024-01-01')
N + K
`n` - `k`
"""

NUMBERS = r"""
n + 1
n - k
n * k
n * 1.5
n + 0.1
n - 1.25
n / k
n / 2
n / 2.0
n / 100.0
n / 3.0
x + y
x - 1
x * 2
x / y
x / 2.0
x * 1.5
x + n
n % k
n % 4
n % -4
x % y
x % 0.7D
-n
-x
-m
+n
- -5
n div k
n div 7
-7 div 2
pmod(n, k)
pmod(n, 4)
mod(n, 5)
n & 3
n | 8
n ^ k
~n
m + 1
m + n
m - 0.5
m * 2
m / 3
m / k
m % 2
m + 1.5
m * x
m / y
m + m
n * 0.001
k * 1.005 + n
1 + 2 * 3 - 4 / 5
(n + k) * 2
1.1 + 2.2
1.1D + 2.2D
0.1 * 3
5 / 2
5 div 2
-5 % 3
5.5 % 2
1e3
1.5e-3 * n
10L + n
2147483647
2147483648 + n
-2147483648
3000000000
-9223372036854775808
12345678901234567890.12
0.05
100.0
1.50BD
1.5F + n
abs(n)
abs(x)
abs(m)
abs(-3)
ceil(y / 1e3D)
ceil(y)
floor(y)
ceil(m)
floor(m)
ceil(n)
floor(2.5)
ceil(-2.5)
round(y)
round(x)
round(x, 2)
round(y, 1)
round(2.675D, 2)
round(1.005D, 2)
round(-1.5D)
round(0.5D)
round(2.5D)
round(x, -1)
round(n, -1)
round(n, -2)
round(n, 2)
round(m, 2)
round(m)
round(m, -1)
round(2.5)
round(-2.45, 1)
sqrt(y)
sqrt(n)
sqrt(m)
pow(y, 2)
pow(n, 3)
power(x, 0)
pow(1, x)
pow(-1, x)
pow(x, y)
exp(y)
exp(x)
ln(y)
ln(n)
ln(x)
log(n)
log(2, n)
log(n, 10)
log10(n)
log2(k)
sign(n)
sign(x)
signum(m)
try_divide(n, 0)
try_divide(n, k)
try_add(big, 1)
try_subtract(big, 2)
try_multiply(big, 2)
try_divide(m, 0)
NULL + n
n * NULL
NULL / 0
CAST(NULL AS BIGINT) % 0
num + 1
num * 2
num / 2
'5' + 1.5
-num
"""

CASTS = r"""
CAST(n AS STRING)
CAST(x AS STRING)
CAST(y AS STRING)
CAST(m AS STRING)
CAST(b AS STRING)
CAST(at AS STRING)
CAST(d AS STRING)
CAST(1.50 AS STRING)
CAST(1e7 AS STRING)
CAST(123456.789D AS STRING)
CAST(1.0E-3 AS STRING)
CAST(0.00099D AS STRING)
CAST(12345678.9D AS STRING)
CAST(1.5F AS STRING)
CAST(num AS BIGINT)
CAST(num AS INT)
CAST(num AS DOUBLE)
CAST(num AS DECIMAL(10,2))
CAST(num AS STRING)
CAST(n AS DOUBLE)
CAST(n AS FLOAT)
CAST(n AS INT)
CAST(n AS SMALLINT)
CAST(n AS DECIMAL(20,3))
CAST(n AS BOOLEAN)
CAST(y AS BIGINT)
CAST(y AS INT)
CAST(y AS DECIMAL(10,3))
CAST(y AS BOOLEAN)
CAST(y AS FLOAT)
CAST(x AS BOOLEAN)
CAST(m AS BIGINT) % 1000
CAST(m AS DOUBLE)
CAST(m AS DECIMAL(38,2))
CAST(m AS BOOLEAN)
CAST(b AS INT)
CAST(b AS BIGINT)
CAST(b AS DOUBLE)
CAST(b AS DECIMAL(5,2))
CAST('true' AS BOOLEAN)
CAST(' NO ' AS BOOLEAN)
CAST('1e3' AS DOUBLE)
CAST('  -1.5d ' AS DOUBLE)
CAST('inf' AS DOUBLE)
CAST('-Infinity' AS DOUBLE)
CAST('nan' AS DOUBLE)
CAST('.5' AS DOUBLE)
CAST('5.' AS DOUBLE)
CAST('1.005' AS DECIMAL(10,2))
CAST('1e2' AS DECIMAL(10,2))
CAST('-1.995' AS DECIMAL(10,2))
CAST('2024-02-29' AS DATE)
CAST('2024-2-9' AS DATE)
CAST('2024' AS DATE)
CAST('2024-03' AS DATE)
CAST(' 2024-02-29 10:00:00 ' AS DATE)
CAST('2024-02-29T10:11:12' AS DATE)
CAST('2024-02-29 10:11:12.1234567' AS TIMESTAMP)
CAST('2024-02-29T10:11:12Z' AS TIMESTAMP)
CAST('2024-02-29 10:11:12+02:00' AS TIMESTAMP)
CAST('2024-02-29 10:11:12 Europe/Berlin' AS TIMESTAMP)
CAST('2024-02-29 10:11' AS TIMESTAMP)
CAST('2024-02-29' AS TIMESTAMP)
CAST('2024' AS TIMESTAMP)
CAST('2024-2-9 1:2:3' AS TIMESTAMP)
CAST(at AS DATE)
CAST(d AS TIMESTAMP)
CAST(at AS BIGINT)
CAST(at AS DOUBLE)
CAST(n AS TIMESTAMP)
CAST(y AS TIMESTAMP)
CAST(s AS BINARY)
CAST(CAST(s AS BINARY) AS STRING)
TRY_CAST(s AS BIGINT)
TRY_CAST(s AS DOUBLE)
TRY_CAST(s AS DATE)
TRY_CAST(s AS TIMESTAMP)
TRY_CAST(s AS BOOLEAN)
TRY_CAST(s AS DECIMAL(10,2))
TRY_CAST(big AS INT)
TRY_CAST(x AS INT)
TRY_CAST(x AS BIGINT)
TRY_CAST(m AS DECIMAL(5,2))
TRY_CAST(big AS DECIMAL(5,2))
TRY_CAST(x AS DECIMAL(10,2))
TRY_CAST('5.0' AS INT)
TRY_CAST('99999999999' AS INT)
TRY_CAST('' AS INT)
TRY_CAST('' AS DOUBLE)
TRY_CAST('1 2' AS INT)
TRY_CAST('0x10' AS INT)
TRY_CAST('1_000' AS INT)
TRY_CAST('2024-02-30' AS DATE)
TRY_CAST('2024-13-01' AS DATE)
TRY_CAST('24-01-01' AS DATE)
TRY_CAST('2024-02-29x' AS DATE)
TRY_CAST('2024-02-29 25:00:00' AS TIMESTAMP)
TRY_CAST('2024-02-29 10:11:12 Nowhere/Else' AS TIMESTAMP)
int(y)
bigint('12')
double('1.5')
string(n)
date(at)
timestamp(d)
boolean('t')
n::string
CAST(arr AS ARRAY<STRING>)
CAST(arr AS ARRAY<DOUBLE>)
"""

TEXT = r"""
length(s)
length(bin)
char_length(u)
length(n)
upper(s)
lower(s)
ucase(u)
lcase(s)
upper(n)
substring(s, 2)
substring(s, 2, 2)
substring(s, -2)
substring(s, -2, 1)
substring(s, 0, 2)
substring(s, -10, 9)
substring(s, 2, -1)
substring(s, n, 3)
substr(s, 1, k)
substring(s FROM 2 FOR 3)
left(s, 2)
left(s, -1)
right(s, 2)
right(s, 100)
right(s, 0)
trim(s)
ltrim(s)
rtrim(s)
btrim(s)
trim(BOTH 'a ' FROM s)
trim(LEADING 'f' FROM s)
trim(TRAILING FROM s)
trim('abc' FROM s)
ltrim('a', s)
rtrim('c', s)
btrim(s, 'ac')
trim(u, s)
s || u
s || '-' || n
s || x || b || d
concat(s, u)
concat(s, n, 'x')
concat(bin, X'00')
concat(s)
concat_ws('-', s, u)
concat_ws(',', s, NULL, n)
concat_ws(u, s, 'x')
replace(s, 'a', 'X')
replace(s, 'b')
replace(s, u, '_')
replace(s, '', 'x')
startswith(s, 'a')
startswith(s, u)
endswith(s, 'c')
endswith(s, u)
contains(s, 'b')
contains(s, u)
contains(s, '')
s LIKE 'a%'
s LIKE '%c'
s LIKE '%b%'
s LIKE 'abc'
s LIKE 'a_c'
s LIKE '%'
s LIKE ''
s LIKE '%line'
s LIKE 'new%line'
s NOT LIKE 'a%'
s LIKE '%\\%\\_\\\\%'
s LIKE '%/%/_%' ESCAPE '/'
s LIKE '%😀%'
s ILIKE 'AB%'
s NOT ILIKE '%E'
n LIKE '1%'
s RLIKE '^a'
s RLIKE 'b|o'
s RLIKE '[0-9]+'
s RLIKE '\\d+'
s RLIKE '\\w\\s'
s RLIKE 'e$'
s RLIKE 'w.l'
s RLIKE '^.+$'
s RLIKE '(?:a|f)(b|o)'
s RLIKE '\\p{Upper}{2}'
s RLIKE '[^a-z]'
s RLIKE ''
NOT s RLIKE 'a'
regexp_like(s, 'a.c')
regexp_extract(s, '([a-z]+)([0-9]+)', 1)
regexp_extract(s, '([a-z]+)([0-9]+)', 2)
regexp_extract(s, '([a-z]+)([0-9]+)')
regexp_extract(s, '(x)?b', 1)
regexp_extract(s, '[a-c]+', 0)
regexp_replace(s, '[aeiou]', '*')
regexp_replace(s, '([a-z])([0-9])', '$2$1')
regexp_replace(u, 'b*', '-') IS NULL
regexp_replace(s, 'a', '\\$1')
split(s, ',')
split(s, '')
split(s, ',', 2)
split(s, '[o,]')
split(s, '\\s')
split(replace(s, '😀', ''), 'x*')
split(s, ',')[0]
element_at(split(s, 'b'), 1)
size(split(s, ','))
lpad(s, 5, 'xy')
lpad(s, 2)
lpad(s, 10)
lpad(s, 5, '')
lpad(s, -1, 'x')
rpad(s, 6, '😀')
rpad(s, 3, u)
lpad(n, 8, '0')
instr(s, 'b')
instr(s, u)
instr(s, '')
locate('b', s)
locate('o', s, 3)
locate('', s)
locate('b', s, 0)
position('b' IN s)
position('b', s)
repeat(s, 2)
repeat(s, -1)
reverse(s)
'it''s'
'tab\tnew\nline\\'
'\u0041\101\%\_\q'
"double ""quoted"" 'x'"
r'raw\d'
'a' 'b'
X'1F'
'😀'
"""

TIMES = r"""
unix_micros(at)
unix_millis(at)
unix_seconds(at)
timestamp_micros(n)
timestamp_millis(n)
timestamp_seconds(n)
timestamp_seconds(y)
date_trunc('hour', at)
date_trunc('DAY', at)
date_trunc('week', at)
date_trunc('month', at)
date_trunc('quarter', at)
date_trunc('year', at)
date_trunc('minute', at)
date_trunc('second', at)
date_trunc('millisecond', at)
date_trunc('microsecond', at)
date_trunc('hour', d)
date_trunc('day', '2024-02-29 10:11:12')
trunc(d, 'MM')
trunc(d, 'week')
trunc(d, 'YEAR')
trunc(d, 'quarter')
trunc(at, 'month')
year(at)
year(d)
quarter(d)
month(at)
day(at)
dayofmonth(d)
dayofweek(d)
weekday(d)
dayofyear(d)
weekofyear(d)
hour(at)
minute(at)
second(at)
hour(d)
year('2024-02-29')
extract(YEAR FROM at)
extract(month FROM d)
extract(week FROM d)
extract(dow FROM d)
extract(doy FROM d)
extract(HOUR FROM at)
extract(SECOND FROM at)
date_part('minute', at)
to_date(at)
to_date('2024-02-29')
to_timestamp('2024-02-29 10:11:12')
to_timestamp(d)
to_timestamp(n)
due + INTERVAL 5 SECONDS
due - INTERVAL 5 MINUTES
due + INTERVAL 1 DAY
due + INTERVAL 1 WEEK
due + INTERVAL 90 MINUTES
due + INTERVAL 1 MILLISECOND
due + INTERVAL 1 MICROSECOND
due + INTERVAL 1.5 SECONDS
due + INTERVAL '5' SECOND
due + INTERVAL '5 seconds'
due + INTERVAL '1 hour 30 minutes'
due + INTERVAL 1 DAY 2 HOURS
due - INTERVAL 1 DAY 2 HOURS
due + INTERVAL '1 02:03:04.5' DAY TO SECOND
due + INTERVAL '-1 02:03:04' DAY TO SECOND
due + INTERVAL '10:20' HOUR TO MINUTE
due + INTERVAL -1 DAY
due + INTERVAL '-1' DAY
INTERVAL 5 SECONDS + due
due + INTERVAL 1 MONTH
due - INTERVAL 1 MONTH
due + INTERVAL 13 MONTHS
due + INTERVAL '1-2' YEAR TO MONTH
due + INTERVAL 1 YEAR
due + n * INTERVAL 1 SECOND
due + INTERVAL 1 SECOND * n
due - (at - at)
due + (at - due)
at - due > INTERVAL 1 HOUR
at - due = INTERVAL 0 SECONDS
INTERVAL 1 DAY = INTERVAL 24 HOURS
INTERVAL 1 SECOND + INTERVAL 1 DAY > INTERVAL 1 DAY
-INTERVAL 1 DAY < INTERVAL 0 DAYS
at - d > INTERVAL 12 HOURS
d - DATE '2024-01-01' > INTERVAL 0 DAYS
d + 1 > DATE '2024-01-01'
DATE '2024-01-31' + 1
DATE '2024-01-31' - 1
1 + DATE '2024-01-31'
DATE '2024-01-31' + INTERVAL 1 DAY
DATE '2024-01-31' + INTERVAL 1 WEEK
DATE '2024-01-31' + INTERVAL 1 HOUR
DATE '2024-01-31' + INTERVAL 1 MONTH
DATE '2024-03-31' - INTERVAL 1 MONTH
DATE '2024-02-29' + INTERVAL 1 YEAR
date_add(DATE '2024-02-28', 2)
date_add(d, -1) IS NULL
date_sub(DATE '2024-03-01', 1)
dateadd(DATE '2024-02-28', 2)
datediff(d, DATE '2024-01-01')
datediff(at, d)
datediff(d, '2024-01-01')
add_months(DATE '2024-01-31', 1)
add_months(DATE '2024-02-29', -12)
last_day(DATE '2024-02-03')
last_day(due)
unix_date(d)
date_from_unix_date(1)
TIMESTAMP '2024-01-01 12:00:00.5'
TIMESTAMP '2024-01-01T12:00:00+01:00'
DATE '2024-01-01'
"""

NESTED = r"""
size(arr)
cardinality(mp)
array_size(tags)
size(mp)
size(arr) = 0 OR arr[0] IS NULL
get(arr, 1)
get(arr, -1)
get(arr, k)
get(tags, 0)
CASE WHEN size(arr) > 0 THEN arr[0] END
CASE WHEN size(arr) > 0 THEN element_at(arr, -1) END
array_contains(arr, 1)
array_contains(arr, k)
array_contains(arr, 1.0)
array_contains(tags, 'a')
array_contains(tags, s)
mp['a']
mp['nothing']
mp[s]
mp.a
element_at(mp, 'k')
element_at(mp, u)
map_contains_key(mp, 'a')
map_contains_key(mp, u)
coalesce(mp['a'], 0) + 1
st.a
st.Name
st.name
ST.A
st['a']
st.in.z
st.a + 1
upper(st.Name)
st.in.z > 1
st IS NULL
st.in IS NULL
arr IS NOT NULL
array(1, 2, 3)
array(n, k)
array(1, 2.5)
array(s, 'x')
array(n, x)[1]
arr
tags
at
bin
"""

GRAMMAR = r"""
n + 1 || 'x'
'1' || id + 1
n - 1 || s
n & 3 = 1
n | 1 ^ 2 & 3
n & 3 + 1
NOT b AND c
b OR c AND NOT b
-n * 2
n - -1
- n % 3
(n = 1) = b
n = 1 = b
n < k <> b
n % 3 * 2
n div 2 * 3
n * 3 div 2
2 * n % 5
!b AND c
NOT n BETWEEN 1 AND 5
n BETWEEN 1 AND 5 AND b
n BETWEEN 1 AND 5 OR b
s LIKE 'a%' OR b
NOT b IS NULL
n + 1 IN (2, 8)
NOT n IN (1, 2)
CASE WHEN b THEN 1 ELSE 2 END + 1
n::string || 's'
n > 0 AND n < 50 OR b
n > 0 = b
n = 1 OR n = 7 AND b
b <=> c = b
n IS NULL OR n > 3
x * y + n / 2 - k
n <> 1 AND NOT (b OR c)
s = 'a' || 'bc'
n >= -7 AND n <= +7
/* note */ n + 1
"""

GROUPS = {
    "logic": LOGIC,
    "numbers": NUMBERS,
    "casts": CASTS,
    "text": TEXT,
    "times": TIMES,
    "nested": NESTED,
    "grammar": GRAMMAR,
}

# Spark accepts these, and both must raise for row 1.
RAISING = r"""
2147483647 + 1
-(-2147483648)
abs(-2147483648)
big + 1
1 - -big
big * 2
-9223372036854775808 div -1
CAST(100 AS TINYINT) + CAST(100 AS TINYINT)
1 / 0
n / 0
x / 0
n / 0.0
m / 0
n % 0
x % 0D
m % 0
n div 0
pmod(n, 0)
99999999999999999999999999999999999999 + 1
CAST('99999999999999999999999999999999999999' AS DECIMAL(38,0)) * 10
CAST(123456789012345678901234567890.12 AS DECIMAL(38,18))
CAST(s AS INT)
CAST(s AS BIGINT)
CAST(s AS DOUBLE)
CAST(s AS DECIMAL(10,2))
CAST(s AS BOOLEAN)
CAST(s AS DATE)
CAST(s AS TIMESTAMP)
CAST('5.0' AS INT)
CAST('' AS BIGINT)
CAST('2024-02-30' AS DATE)
CAST(128 AS TINYINT)
CAST(big AS INT)
CAST(1e10 AS INT)
CAST(double('NaN') AS BIGINT)
CAST(1000 AS DECIMAL(3,0))
CAST(1000.5D AS DECIMAL(3,0))
round(9223372036854775807, -1)
ceil(1e19)
floor(-1e19D)
timestamp_seconds(9223372036854775807)
at + big * INTERVAL 1 SECOND
at + INTERVAL 106751991 DAYS
substring(s, big)
s + 1
s = 5
s > d
to_date(s)
year(s)
n IN ('x', 5)
coalesce(NULL, s, 1)
s || n + 1
arr[5]
arr[-1]
element_at(arr, 9)
element_at(arr, 0)
n > 0 AND 1 / 0 > 1
b OR 1 / 0 > 0
CASE WHEN n > 0 THEN 1 / 0 END
IF(b, 1, 1 / 0)
coalesce(NULL, 1 / 0)
"""

# Spark refuses these before anything runs, and so does the worker.
REFUSED = r"""
n = true
b + 1
-b
n + at
d + n
at + 1
'5' + '6'
NOT 1
b AND 1
coalesce(b, 1)
n IN ()
true = 1
d = 5
at = 5
date_add(d, n)
element_at(arr, n)
element_at(arr, '1')
arr['0']
array_contains(arr, '1')
array_contains(arr, NULL)
st.zz
s.x
n.x
id[0]
CAST(d AS INT)
CAST(n AS BINARY)
CAST(n AS DATE)
coalesce()
greatest(1)
nullif(1)
upper()
length(s, s)
unix_micros(d)
unix_micros('2024-01-01')
timestamp_seconds('5')
timestamp_micros(1.5)
INTERVAL 1 DAY > INTERVAL 1 MONTH
at + INTERVAL 1 MONTH 2 DAYS
CASE WHEN 'true' THEN 1 END
IF(1, 1, 2)
CASE WHEN NULL THEN 1 END
b = n > 0
5D div 2
round(2.5, n)
no_such_function(n)
nope > 1
n >
n +* k
"""

# Spark evaluates these; the worker says why it does not.
BEYOND = r"""
(SELECT 1)
sum(n)
transform(arr, v -> v + 1)
sha2(s, 256)
initcap(s)
current_timestamp()
now()
rand()
uuid()
s LIKE u
s RLIKE u
s RLIKE '(?i)a'
s RLIKE '\\p{IsLatin}'
struct(n, k)
map('a', n)
named_struct('a', n).a
at - due
INTERVAL 1 DAY
5.5 div 2
CAST(at AS DECIMAL(20,6))
CAST(arr AS STRING)
arr = arr
to_date('2024/01/01', 'yyyy/MM/dd')
date_trunc(s, at)
concat(arr, arr)
split(s, u)
n << 1
hash(n)
"""


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def expressions(group: str) -> list[str]:
    return lines(GROUPS[group])
