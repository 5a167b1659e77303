-- The ten highest bids of each auction.
SELECT auction, bidder, price, date_time, place
FROM (
  SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC) AS place FROM bid
) AS ranked
WHERE place <= 10
