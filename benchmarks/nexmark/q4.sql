-- The average closing price of each category: an aggregate of an aggregate.
SELECT category, AVG(CAST(final_price AS DOUBLE)) AS average
FROM (
  SELECT a.id, a.category, MAX(b.price) AS final_price
  FROM auction AS a JOIN bid AS b ON a.id = b.auction
  WHERE b.date_time BETWEEN a.date_time AND a.expires
  GROUP BY a.id, a.category
) AS closed
GROUP BY category
