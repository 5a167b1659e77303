-- Orders of some shops, and what a dashboard wants to know of them: all of it is state of the job.

CREATE TABLE orders (
  shop STRING NOT NULL,
  customer STRING NOT NULL,
  cents BIGINT NOT NULL,
  at TIMESTAMP(3) NOT NULL,
  WATERMARK FOR at AS at - INTERVAL '5' SECOND
) WITH (
  'connector' = 'datagen',
  'rows-per-second' = '200',
  'number-of-rows' = VAR('orders', '100000'),
  'fields.shop.values' = 'harbour, market, station',
  'fields.customer.distinct' = '500',
  'fields.cents.min' = '100',
  'fields.cents.max' = '20000'
);

-- A row for each shop, changed by every epoch.
CREATE MATERIALIZED VIEW shops AS
SELECT shop, count(*) AS orders, sum(cents) AS cents, count(DISTINCT customer) AS customers, max(at) AS newest
FROM orders
GROUP BY shop;

-- A row for each shop and minute, once the minute is over.
CREATE MATERIALIZED VIEW minutes PRIMARY KEY (shop, window_start) AS
SELECT shop, window_start, count(*) AS orders, sum(cents) AS cents
FROM TABLE(TUMBLE(TABLE orders, DESCRIPTOR(at), INTERVAL '1' MINUTE))
GROUP BY shop, window_start, window_end;

-- A row for each customer.
CREATE MATERIALIZED VIEW customers AS
SELECT customer, count(*) AS orders, sum(cents) AS cents
FROM orders
GROUP BY customer;
