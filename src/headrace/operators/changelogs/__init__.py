"""Streams whose rows can be taken back: pairs of kinds, what was given out last, and steps that take rows out again."""
