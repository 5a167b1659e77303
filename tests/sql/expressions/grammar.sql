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
