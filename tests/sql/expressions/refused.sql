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
