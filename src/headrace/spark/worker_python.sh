#!/bin/sh
# The driver's interpreter for Spark's Python processes, with the modules that the driver has.
#
# Spark puts archives in front of them: PySpark as a zip, and a jar. An archive keeps no compiled modules, so every
# process would compile PySpark anew, which takes two thirds of a second, and a run starts about ten processes.
set -f
IFS=:
kept=
for entry in $PYTHONPATH; do
    case $entry in
        */python/lib/pyspark.zip | */python/lib/py4j-*-src.zip | */jars/spark-core_*.jar) ;;
        *) kept=$kept:$entry ;;
    esac
done
PYTHONPATH=${kept#:} exec "$HEADRACE_WORKER_PYTHON" "$@"
