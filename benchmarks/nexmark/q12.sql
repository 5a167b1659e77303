-- Bids of each user in every ten seconds of the wall clock.
SELECT bidder, COUNT(*) AS bids, window_start, window_end
FROM TABLE(TUMBLE(TABLE bid_now, DESCRIPTOR(proc_time), INTERVAL '10' SECOND))
GROUP BY bidder, window_start, window_end
