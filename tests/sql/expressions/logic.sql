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
