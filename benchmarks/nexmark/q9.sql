-- The winning bid of each auction.
SELECT id, item_name, seller, category, auction, bidder, price, bid_time
FROM (
  SELECT a.id, a.item_name, a.seller, a.category, b.auction, b.bidder, b.price, b.date_time AS bid_time,
    ROW_NUMBER() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.date_time ASC) AS place
  FROM auction AS a JOIN bid AS b ON a.id = b.auction
  WHERE b.date_time BETWEEN a.date_time AND a.expires
) AS ranked
WHERE place <= 1
