"""Formats of Spark that have no connector of their own."""
