"""Small classes of Java that need to be in the JVM of Spark's driver, compiled there from their source.

Spark brings a compiler for its own plans. Objects of these classes stay in the driver: executors do not know them.
"""

from __future__ import annotations

from functools import cache
from typing import Any


class JavaClass:
    """A class of which objects can be made."""

    def __init__(self, jvm: Any, loaded: Any) -> None:
        self._jvm = jvm
        self._constructor = loaded.getConstructors()[0]

    def new(self, *arguments: Any) -> Any:
        """An object, by the one public constructor."""
        given = self._jvm.java.util.ArrayList()
        for argument in arguments:
            given.add(argument)
        return self._constructor.newInstance(given.toArray())


@cache
def compile_class(jvm: Any, name: str, source: str) -> JavaClass:
    """A public class, compiled once per JVM."""
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(source)
    return JavaClass(jvm, compiler.getClassLoader().loadClass(name))
