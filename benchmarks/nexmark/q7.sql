-- The highest bids of each ten seconds.
SELECT b.auction, b.price, b.bidder, b.date_time
FROM bid AS b JOIN (
  SELECT MAX(price) AS price, window_start, window_end
  FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(date_time), INTERVAL '10' SECOND))
  GROUP BY window_start, window_end
) AS highest
  ON b.price = highest.price
WHERE b.date_time >= highest.window_start AND b.date_time < highest.window_end
