"""Postgres tables, as source, lookup and sink."""
