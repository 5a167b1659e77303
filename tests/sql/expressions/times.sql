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
date_format(at, 'yyyy-MM-dd')
date_format(at, 'HH:mm')
date_format(at, 'yyyy/M/d H:m:s.SSS')
date_format(at, "yyyyMMdd'T'HHmmss.SSSSSS")
date_format(at, 'EEE, d MMM yy hh:mm a')
date_format(at, 'EEEE D MMMM h')
date_format(at, "DDD 'it''s %d' SSSSSSSSS")
date_format(d, 'yyyy-MM-dd HH:mm:ss')
date_format('2024-02-29 10:11:12', 'mm:ss')
