"""Lists a folder through the file system that Spark reads it with, in pages, and with Spark's rules for what is input.

Spark's file source takes the files of a folder (or of all that a pattern fits), those of folders named ``key=value``
below it, and with ``recursiveFileLookup`` those of all folders; never names that begin with ``_`` or ``.``. Names are
given as Spark writes them in its log of files it has read, whatever their scheme, because both come from the same
call: ``getPath().toUri()``.

A page is put together inside the JVM, where an object costs a microsecond; asked for one by one over the socket, a
million of them would take many minutes of this process. So memory is bounded by a page here, and by what the file
system itself holds of one folder there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from headrace.spark.java_classes import compile_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE: Final = 10_000
_GLOB: Final = frozenset("{}[]*?\\")
_FLAT: Final = "S3AFileSystem"
"""Lists all that is below a folder by one request per thousand; Spark asks it in this way, too, and no other."""

_PAGES: Final = """
public class FilePages {
  public static String next(
      org.apache.hadoop.fs.RemoteIterator files, org.apache.hadoop.fs.GlobFilter names, int most
  ) throws java.io.IOException {
    StringBuilder page = new StringBuilder();
    for (int n = 0; n < most && files.hasNext(); n++) {
      org.apache.hadoop.fs.FileStatus file = (org.apache.hadoop.fs.FileStatus) files.next();
      boolean folder = file.isDirectory();
      if (!folder && names != null && !names.accept(file.getPath())) continue;
      page.append(folder ? -1L : file.getLen()).append(' ').append(file.getPath().toUri().toString()).append('\\n');
    }
    return page.append(files.hasNext() ? "+" : ".").toString();
  }
}
"""


@dataclass(frozen=True)
class InputFolder:
    """What a file source reads: a path or pattern, a pattern for names, and whether it looks into all folders."""

    path: str
    names: str | None = None
    recursive: bool = False


@dataclass(frozen=True)
class ListedFile:
    """A file, by its name in Spark's log."""

    path: str
    size_bytes: int


def list_folder(session: SparkSession, folder: InputFolder) -> Iterator[list[ListedFile]]:
    """The files that are there, page by page. A folder that is not there is empty. Raises what Java raises."""
    jvm = _java(session)
    conf = session._jsparkSession.sessionState().newHadoopConf()
    root = jvm.org.apache.hadoop.fs.Path(folder.path)
    files = root.getFileSystem(conf)
    names = None if folder.names is None else jvm.org.apache.hadoop.fs.GlobFilter(folder.names)
    lister = _Lister(session, files, names)
    for path in _roots(files, root, is_pattern=not _GLOB.isdisjoint(folder.path)):
        yield from lister.walk(path, every=folder.recursive)


def _roots(files: Any, root: Any, *, is_pattern: bool) -> list[Any]:
    """Folders, or single files, which a file system lists as what is in them."""
    if is_pattern:
        return [status.getPath() for status in files.globStatus(root) or ()]
    return [root] if files.exists(root) else []


class _Lister:
    def __init__(self, session: SparkSession, files: Any, names: Any) -> None:
        self._files = files
        self._names = names
        self._pages = compile_class(_java(session), "FilePages", _PAGES).new()
        self._path = _java(session).org.apache.hadoop.fs.Path
        self._uri = _java(session).java.net.URI
        self._flat = files.getClass().getSimpleName() == _FLAT

    def walk(self, folder: Any, *, every: bool) -> Iterator[list[ListedFile]]:
        """The files of a folder and of those below it: of ``every`` one, or of those that are named key=value."""
        if every and self._flat:
            yield from self._below(folder)
            return
        waiting = [folder]
        while waiting:
            at = waiting.pop()
            for entries in self._read(self._files.listStatusIterator(at)):
                seen = [(size, path) for size, path in entries if is_input(_name(path))]
                yield [ListedFile(path, size) for size, path in seen if size >= 0]
                below = [path for size, path in seen if size < 0 and (every or "=" in _name(path))]
                if self._flat:
                    for path in below:
                        yield from self._below(self._path(self._uri(path)))
                else:
                    waiting += [self._path(self._uri(path)) for path in below]

    def _below(self, folder: Any) -> Iterator[list[ListedFile]]:
        """All files below a folder, at once."""
        depth = len(_parts(folder.toUri().toString()))
        for entries in self._read(self._files.listFiles(folder, True)):
            yield [ListedFile(path, size) for size, path in entries if all(map(is_input, _parts(path)[depth:]))]

    def _read(self, entries: Any) -> Iterator[list[tuple[int, str]]]:
        """Size and name of each, page by page; of a folder the size is −1."""
        more = "+"
        while more == "+":
            *lines, more = self._pages.next(entries, self._names, PAGE).split("\n")
            pairs = (line.split(" ", 1) for line in lines)
            yield [(int(size), path) for size, path in pairs]


def is_input(name: str) -> bool:
    """Whether Spark looks at a file or folder of this name.

    >>> [is_input(name) for name in ("a.json", "_SUCCESS", ".a.crc", "_day=1", "_metadata", "a._COPYING_")]
    [True, False, False, True, True, False]
    """
    if name.startswith(("_common_metadata", "_metadata")):
        return True
    return not ((name.startswith("_") and "=" not in name) or name.startswith(".") or name.endswith("._COPYING_"))


def _name(path: str) -> str:
    return unquote(path.rsplit("/", 1)[-1])


def _parts(uri: str) -> list[str]:
    return [unquote(part) for part in urlsplit(uri).path.split("/") if part]


def _java(session: SparkSession) -> Any:
    return session._jvm
