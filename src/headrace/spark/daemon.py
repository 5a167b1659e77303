"""The process that Spark forks its Python workers from, with everything loaded that workers need.

Spark's own daemon loads nothing of ours: each worker would import Headrace and Arrow by itself, half a second of work
and fifty megabytes that forked workers share instead. Pandas is among it although few programs use it: Arrow looks for
it when it makes its first array. Threads do not survive a fork, so nothing imported here may start any.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.daemon import manager

import headrace.front
import headrace.spark.executor
import headrace.spark.python_source  # noqa: F401

pa.array([0])

if __name__ == "__main__":
    manager()
