-- What the page shows, asked of the running job: psql -h 127.0.0.1 -p 5439 -d shop -f dashboard.sql

\echo Shops by revenue
SELECT shop, orders, round(cents / 100.0, 2) AS revenue, customers, newest FROM shops ORDER BY cents DESC;

\echo Revenue by minute, each beside that of the minute before
SELECT shop, window_start AS minute, cents, cents - lag(cents) OVER (PARTITION BY shop ORDER BY window_start) AS change
FROM minutes
ORDER BY minute DESC, shop
LIMIT 6;

\echo The share of each shop in its newest minute
SELECT minutes.shop, round(100.0 * minutes.orders / sum(minutes.orders) OVER (), 1) AS percent
FROM minutes
WHERE window_start = (SELECT max(window_start) FROM minutes)
ORDER BY minutes.shop;

\echo The best customers
SELECT customer, orders, round(cents / 100.0, 2) AS revenue FROM customers ORDER BY cents DESC, customer LIMIT 3;
