"""What the benchmarks share: the events, the environments of the peers, processes, figures and tables."""
