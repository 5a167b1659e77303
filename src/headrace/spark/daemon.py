"""The process that Spark forks its Python workers from, with everything loaded that workers need.

Spark's own daemon loads nothing of ours: each worker would import Headrace and Arrow by itself, half a second of work
and fifty megabytes that forked workers share instead. Threads do not survive a fork, so nothing imported here may start
any; Polars and pandas, which most programs don't use, stay out.
"""

from __future__ import annotations

from pyspark.daemon import manager

import headrace.front
import headrace.spark.executor
import headrace.spark.python_source  # noqa: F401

if __name__ == "__main__":
    manager()
