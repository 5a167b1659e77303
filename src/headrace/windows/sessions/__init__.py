"""Columnar session windows over fragments."""
