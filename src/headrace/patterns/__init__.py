"""Patterns over streams: what is declared, the automaton it comes to, and the operator that follows it key by key."""
