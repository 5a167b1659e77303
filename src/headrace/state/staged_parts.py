"""The bytes of staged rows, as they were when their task staged them, wherever they wait.

Parts that travel inside a manifest are under its checksum. Files carry one of their own, which is compared before
anybody sees a row: what a disk changed meanwhile must not be let out as if it had been meant. It costs one pass over
the bytes of a part, and nothing per row. A remote store compares when it fetches.
"""

from __future__ import annotations

import zlib

import pyarrow as pa

from headrace.errors import CorruptFile
from headrace.model.report import StagedPart
from headrace.state.store import StoreFiles


def open_part(store: StoreFiles, part: StagedPart, *, otherwise: str = "") -> pa.Buffer:
    """The bytes of a part, mapped where they are a local file. Raises ``MissingFile`` and ``CorruptFile``.

    ``otherwise``: what can be done about a damaged file besides restoring it.
    """
    if not part.file:
        return pa.py_buffer(part.inline)
    data = store.open_buffer(part.file, part.crc)
    if part.crc is None or store.local_path(part.file) is None:
        return data
    found = zlib.crc32(data)
    if found != part.crc:
        raise CorruptFile(
            "staged rows are damaged: the file is not what the job wrote",
            where=f"{store.url}/{part.file}",
            expected=f"{part.size_bytes:,} bytes with the checksum {part.crc:#010x}",
            found=f"{data.size:,} bytes with {found:#010x}",
            next_move=f"restore the file from a copy of the store: any copy will do, as files never change{otherwise}",
        )
    return data
