"""Tables of whole rows by key and time."""
