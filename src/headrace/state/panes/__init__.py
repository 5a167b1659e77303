"""Tables of partial aggregates, by slice of time or by session fragment."""
