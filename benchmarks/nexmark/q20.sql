-- Bids with their auctions, of one category.
SELECT b.auction, b.bidder, b.price, b.date_time, a.item_name, a.seller, a.category
FROM bid AS b JOIN auction AS a ON b.auction = a.id
WHERE a.category = 10
