"""Patterns that come as rows of a stream, and what follows them all at once."""
