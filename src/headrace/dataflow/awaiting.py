"""The verbs of a stream that look outside: ``map_async`` and ``lookup`` await answers, ``debezium`` follows a table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from types import UnionType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from headrace.dataflow.asynchronous import add_carrying, answer_type, cache_plan, request_plan
from headrace.dataflow.graph import AsyncNode, LookupNode, Node
from headrace.dataflow.incoming import add_table
from headrace.dataflow.keying import key_spec
from headrace.dataflow.site import call_site
from headrace.model.requests import AsyncFunction, Retry, Wait
from headrace.model.rows import codec_of
from headrace.model.time import Span

if TYPE_CHECKING:
    from headrace.dataflow.app_graph import AppGraph
    from headrace.dataflow.joined import Joined
    from headrace.dataflow.stream import Stream

T = TypeVar("T")
R = TypeVar("R")


class AwaitVerbs(Generic[T]):
    """What a stream can await."""

    _app: AppGraph
    _node: Node

    @overload
    def map_async(
        self, fn: AsyncFunction[T, R] | Callable[[T], Awaitable[R]], /, *, capacity: int = 100, timeout: Span = "10s",
        retry: Retry | None = None, ordered: bool = True, wait: Wait = "epoch", output: type[R] | None = None,
    ) -> Stream[R]: ...  # fmt: skip
    @overload
    def map_async(
        self, fn: AsyncFunction[T, Any] | Callable[[T], Awaitable[Any]], /, *, capacity: int = 100,
        timeout: Span = "10s", retry: Retry | None = None, ordered: bool = True, wait: Wait = "epoch",
        output: UnionType,
    ) -> Stream[Any]: ...  # fmt: skip
    def map_async(
        self, fn: Any, /, *, capacity: int = 100, timeout: Span = "10s", retry: Retry | None = None,
        ordered: bool = True, wait: Wait = "epoch", output: Any = None,
    ) -> Stream[Any]:  # fmt: skip
        """One row out for each row in, from a function that awaits: ``async def`` or an ``hr.AsyncFunction``.

        Up to ``capacity`` requests are in flight at once in each task; ``timeout`` is for one row with all its tries
        (``hr.retry``). Rows come out in their order, or as they are answered with ``ordered=False``. The epoch waits
        for all answers, or with ``wait="carry"`` leaves the open ones to the next.

        >>> import headrace as hr
        >>> class Order(hr.Record):
        ...     shop: str
        >>> async def city_of(order: Order) -> str:
        ...     return {"s1": "Basel"}[order.shop]        # usually: await client.get(…)
        >>> app = hr.App("shop")
        >>> orders = app.read("orders", hr.source.items([]), Order)
        >>> cities = orders.map_async(city_of, capacity=20, timeout="2s", retry=hr.retry(3, "100ms"))
        >>> with hr.testing.Harness(app) as h:
        ...     h.push(orders, Order("s1"))
        ...     h.epoch()
        ...     h.take(cities)
        ['Basel']
        """
        from headrace.dataflow.stream import Stream

        at = call_site()
        plan = request_plan(
            "map_async", fn, at, capacity=capacity, timeout=timeout, retry=retry, ordered=ordered, wait=wait
        )
        codec = codec_of(answer_type(fn, verb="map_async", given=output, at=at), where=str(at))
        if plan.wait == "carry":
            return Stream(self._app, add_carrying(self._app, self._node, plan, codec, at))
        before = self._node
        return Stream(self._app, self._app._add(AsyncNode, at, codec, inputs=(before,), plan=plan))

    def lookup(
        self, fn: AsyncFunction[Any, R] | Callable[[Any], Awaitable[R | None]], /, *, by: object,
        cache: Span | None = None, cache_size: int = 100_000, cache_none: bool = True, capacity: int = 100,
        timeout: Span = "10s", retry: Retry | None = None, output: Any = None,
    ) -> Joined[T, R | None]:  # fmt: skip
        """Each row beside what a function that awaits finds for one of its columns; None where it finds nothing.

        ``by`` is the column (or a function of the row) whose value is asked for: many rows of one value make one
        request. With ``cache="10m"`` an answer serves that long, by the wall clock of epochs; each worker keeps up to
        ``cache_size`` of them, also that there is nothing unless ``cache_none=False``. A null finds nothing.

        >>> import headrace as hr
        >>> class Order(hr.Record):
        ...     shop: str
        >>> class Shop(hr.Record):
        ...     city: str
        >>> async def find(shop: str) -> Shop | None:
        ...     return {"s1": Shop("Basel")}.get(shop)      # usually: await client.get(…)
        >>> app = hr.App("shop")
        >>> orders = app.read("orders", hr.source.items([]), Order)
        >>> rich = orders.lookup(find, by=Order.shop, cache="10m").select(shop="left.shop", city="right.city")
        >>> with hr.testing.Harness(app) as h:
        ...     h.push(orders, Order("s1"), Order("s2"))
        ...     h.epoch()
        ...     [(row.shop, row.city) for row in h.take(rich)]
        [('s1', 'Basel'), ('s2', None)]
        """
        from headrace.dataflow.joined import Joined
        from headrace.model.pairs import PairCodec

        at = call_site()
        plan = request_plan("lookup", fn, at, capacity=capacity, timeout=timeout, retry=retry)
        found = answer_type(fn, verb="lookup", given=output, at=at, optional=True)
        node = self._app._add(
            LookupNode, at, PairCodec(self._node.codec, codec_of(found, where=str(at))), inputs=(self._node,),
            plan=plan, by=key_spec(self._node.codec, (by,), at), cache=cache_plan(cache, cache_size, cache_none, at),
        )  # fmt: skip
        return Joined(self._app, node)

    def debezium(self, into: type[R], /, *, key: str | Sequence[str]) -> Stream[R]:
        """The rows of a table, of changes as Debezium writes them: ``changes.debezium(Order, key="id")``.

        Changes are Records with ``before``, ``after`` and ``op``, read as JSON from Kafka or anywhere else; ``before``
        may have the columns of the primary key alone. What came last for a key is what holds: changes that come twice,
        and snapshots, change nothing. Messages without an operation are passed over, a truncation is refused. The step
        needs a name.
        """
        from headrace.dataflow.stream import Stream

        return Stream(self._app, add_table(self._app, self._node, into, key, call_site()))
