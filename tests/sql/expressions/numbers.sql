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
