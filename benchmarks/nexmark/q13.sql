-- Bids beside rows of a table that does not change.
SELECT b.auction, b.bidder, b.price, b.date_time, s.note
FROM bid AS b JOIN side AS s ON MOD(b.auction, 10000) = s.id
