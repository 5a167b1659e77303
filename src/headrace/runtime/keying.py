"""Keys of rows: from columns in bulk, or from a user's function row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.model.batch import Keys, Rows
from headrace.model.keys import NULL_KEY, encode_columns, encode_key, hash_encoded
from headrace.operators.failures import GUARD_KEY, function_failed

if TYPE_CHECKING:
    from headrace.model.keyspec import KeySpec


def encode_keys(key: KeySpec, rows: Rows, step: str) -> pa.BinaryArray:
    """The encoded key of each row."""
    if key.columns == ():
        return pa.repeat(pa.scalar(NULL_KEY, pa.binary()), len(rows))
    if key.columns is not None:
        columns = rows.columns
        return encode_columns([columns[rows.codec.index(name)] for name in key.columns])
    assert key.fn is not None
    fn = key.fn
    encoded: list[bytes] = []
    objects = rows.objects
    try:
        for row in objects:
            encoded.append(encode_key(fn(row)))
    except Exception as error:
        row = objects[len(encoded)]
        raise function_failed(error, step=step, function=fn, row=row, way_out=GUARD_KEY) from error
    return pa.array(encoded, pa.binary())


def derive_keys(key: KeySpec, rows: Rows, step: str) -> Keys:
    """Encoded keys with their hashes."""
    encoded = encode_keys(key, rows, step)
    return Keys(hash_encoded(encoded), encoded)
