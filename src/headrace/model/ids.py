"""A small type for each kind of number, and the few constants they share."""

from __future__ import annotations

from typing import Final, NewType

Epoch = NewType("Epoch", int)
"""The number of a micro-batch as Headrace publishes it; the first is 0."""

ShardId = NewType("ShardId", int)
"""0 … parallelism − 1: which range of key groups a task owns."""

KeyGroup = NewType("KeyGroup", int)
"""The top bits of a key's hash; the unit of rescaling."""

StepId = NewType("StepId", str)
"""The name of a stateful step, as the user gave it."""

KEY_GROUPS: Final = 128
"""Default number of key groups; a power of two, fixed for the life of a store."""

HASH_SEED: Final = 42
"""Seed of xxhash64 over key bytes; the same as Spark's ``xxhash64``, so that the JVM can deliver the column."""

MIN_TIME: Final = -(2**63) + 1
"""The watermark before anything was seen, in microseconds."""

MAX_TIME: Final = 2**63 - 1
"""The watermark of drained input, in microseconds: the end of time."""
