"""SQL expressions: parsed, bound to types, and evaluated on Arrow batches without a JVM."""
