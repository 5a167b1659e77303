"""Columnar windows over slices of time."""
