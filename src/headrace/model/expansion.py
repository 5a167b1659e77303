"""Columns that a function of whole batches may add to its result, to say what each row is made of.

No field of a record can have such a name. `headrace.operators.stateless` reads them and gives none of them on.
"""

from __future__ import annotations

from typing import Final

SOURCE_ROW: Final = "__row"
"""The position of the row that this one is made of: it has that one's event time and kind."""
ROW_TIME: Final = "__time"
"""The event time of this row, in microseconds; it must not lie before that of the row that it is made of."""
