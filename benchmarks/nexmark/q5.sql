-- The auctions with the most bids in the last ten seconds, every two seconds.
WITH counted AS (
  SELECT auction, COUNT(*) AS bids, window_start, window_end
  FROM TABLE(HOP(TABLE bid, DESCRIPTOR(date_time), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
  GROUP BY auction, window_start, window_end
), most AS (
  SELECT MAX(bids) AS bids, window_start, window_end FROM counted GROUP BY window_start, window_end
)
SELECT counted.auction, counted.bids, counted.window_start
FROM counted JOIN most
  ON counted.window_start = most.window_start AND counted.window_end = most.window_end
WHERE counted.bids >= most.bids
