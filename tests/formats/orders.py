"""Rows of every type that both binary formats say, and how to draw any of them."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from uuid import UUID

from hypothesis import Phase
from hypothesis import strategies as st

import headrace as hr


class Color(Enum):
    RED = "RED"
    BLUE = "BLUE"


class Mood(Enum):
    GOOD = "very good"
    BAD = "not so good"


class Item(hr.Record):
    sku: str
    count: int = 1
    price: Decimal | None = None
    labels: list[str] = []


class Order(hr.Record):
    id: int
    user: str
    at: hr.Timestamp
    amount: float
    paid: bool
    raw: bytes
    price: Decimal
    day: date
    key: UUID
    color: Color
    mood: Mood
    first: Item
    moment: datetime
    took: timedelta
    clock: time
    note: str | None = None
    maybe: int | None = None
    last: Item | None = None
    items: list[Item] = []
    numbers: list[int] = []
    tags: dict[str, str] = {}
    amounts: dict[str, float] = {}
    lines: dict[str, Item] = {}
    retries: int = hr.field(default=3, name="retryCount")


NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)
"""Making a failing row of twenty fields smaller takes minutes, and its traceback says as much."""

INTS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
DECIMALS = st.decimals(-(10**19), 10**19, places=6, allow_nan=False, allow_infinity=False).map(
    lambda value: Decimal(f"{value:f}".rstrip("0").rstrip(".") or "0") + 0
)
FLOATS = st.floats(allow_nan=False)
# Records compare their fields, and a decimal's digits behind the point are not part of its value.
ITEMS = st.builds(Item, sku=TEXTS, count=INTS, price=st.none() | DECIMALS, labels=st.lists(TEXTS, max_size=3))
TIMES = st.integers(-(10**16), 10**16).map(hr.Timestamp)
ORDERS = st.builds(
    Order,
    id=INTS,
    user=TEXTS,
    at=TIMES,
    amount=FLOATS,
    paid=st.booleans(),
    raw=st.binary(max_size=20),
    price=DECIMALS,
    day=st.dates(),
    key=st.uuids(),
    color=st.sampled_from(Color),
    mood=st.sampled_from(Mood),
    first=ITEMS,
    moment=st.datetimes(timezones=st.just(UTC)),
    took=st.integers(-(10**15), 10**15).map(lambda us: timedelta(microseconds=us)),
    clock=st.times(),
    note=st.none() | TEXTS,
    maybe=st.none() | INTS,
    last=st.none() | ITEMS,
    items=st.lists(ITEMS, max_size=4),
    numbers=st.lists(INTS, max_size=5),
    tags=st.dictionaries(TEXTS, TEXTS, max_size=3),
    amounts=st.dictionaries(TEXTS, FLOATS, max_size=3),
    lines=st.dictionaries(TEXTS, ITEMS, max_size=3),
    retries=INTS,
)
