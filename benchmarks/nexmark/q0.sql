-- Every bid as it came: what moving rows costs.
SELECT auction, bidder, price, date_time, extra FROM bid
