"""What readers of a Delta table see.

Not by `DeltaTable.to_pyarrow_table`: a process that ends right after it aborts (deltalake 1.6.6).
"""

from __future__ import annotations

from typing import Any

import deltalake
import polars
import pyarrow as pa


def rows_of(table: deltalake.DeltaTable) -> pa.Table:
    """All rows, as deltalake's own engine reads them. It lets no thread of Python run meanwhile."""
    return pa.table(deltalake.QueryBuilder().register("it", table).execute("SELECT * FROM it").read_all())


def rows_at(url: str, **options: Any) -> pa.Table:
    """All rows, as polars reads them: also from a server that is a thread of this process."""
    return polars.read_delta(url, **options).to_arrow()
