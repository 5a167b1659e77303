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
