"""Delta Lake tables as a sink."""
