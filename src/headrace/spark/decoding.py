"""Which sources the workers decode themselves, out of files that Spark hands out, and which Spark decodes for them.

The JVM hands rows to Python one by one, which costs more than reading them. So where the rows of a source go to Python
anyway, and Python can say everything of them that the JVM would (time, splits, expressions right behind it), they are
decoded there. A source of which a worker met a file that it does not decode is Spark's for the rest of the run.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from headrace.runtime.source_rows import evaluates

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.plan.physical import Program, SourcePlan


_AS_DECODED: Final = {
    "spark.sql.caseSensitive": "false",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.fieldId.read.enabled": "false",
}
"""Settings under which Spark reads a file as the workers do: its own defaults."""


def reads_alike(session: SparkSession) -> bool:
    """Whether nobody told Spark to read files in a way of their own."""
    found = {name: session.conf.get(name, value) for name, value in _AS_DECODED.items()}
    return all(str(found[name]).lower() == value.lower() for name, value in _AS_DECODED.items())


def decode_in_workers(program: Program, left_to_spark: Collection[str]) -> Program:
    """The program with every source decoded by the workers that can be, but for those with these names."""
    sources = [replace(source, decoded=source.name not in left_to_spark and _can(source)) for source in program.sources]
    return replace(program, sources=tuple(sources))


def _can(source: SourcePlan) -> bool:
    return source.direct is None and source.source.decoder(source.codec) is not None and evaluates(source)
