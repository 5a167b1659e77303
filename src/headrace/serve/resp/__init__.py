"""State over Redis' protocol: any client of Redis reads it, unchanged."""
