"""Aggregates: what users declare, the columns of partial results, how these merge, and what they come to."""
