"""The evaluator of bound expressions over polars, with Spark's results."""
