"""Taking a key out of a store for good: out of its state, its past and everything that lies beside them."""
