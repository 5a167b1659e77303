"""A shop whose program comes back changed: orders, payments, and what a join told of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import headrace as hr
from headrace.testing import Harness

if TYPE_CHECKING:
    from typing import Self


class Order(hr.Record):
    shop: str
    at: hr.Timestamp
    n: int = 0


class ShopTrial:
    """Opens and ends with its harness; whoever makes one says what is joined."""

    harness: Harness
    orders: hr.Stream[Order]
    payments: hr.Stream[Order]

    def __enter__(self) -> Self:
        self.harness.__enter__()
        return self

    def __exit__(self, *args: Any) -> None:
        self.harness.__exit__(*args)

    def order(self, n: int, at: str) -> None:
        self.harness.push(self.orders, Order("a", self.harness.at(at), n))

    def pay(self, n: int, at: str) -> None:
        self.harness.push(self.payments, Order("a", self.harness.at(at), n))
