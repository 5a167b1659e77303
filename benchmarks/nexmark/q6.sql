-- The average closing price of each seller's last ten auctions.
SELECT seller, AVG(CAST(final_price AS DOUBLE)) AS average
FROM (
  SELECT seller, final_price, ROW_NUMBER() OVER (PARTITION BY seller ORDER BY closed_at DESC, id) AS place
  FROM (
    SELECT a.id, a.seller, MAX(b.price) AS final_price, MAX(b.date_time) AS closed_at
    FROM auction AS a JOIN bid AS b ON a.id = b.auction
    WHERE b.date_time BETWEEN a.date_time AND a.expires
    GROUP BY a.id, a.seller
  ) AS closed
) AS ranked
WHERE place <= 10
GROUP BY seller
