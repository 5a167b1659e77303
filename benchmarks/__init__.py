"""Benchmarks: real programs, peers beside them, the same rows for all."""
