"""Operators with several inputs in the test kit: rows find their port, and a careless operator is caught."""

from __future__ import annotations

import pytest

import headrace as hr
from headrace.model.batch import Keys, Rows
from headrace.model.rows import codec_of
from headrace.operators.keyed import KeyedBatch, KeyedOperator
from headrace.testing.operators import EpochInput, verify_operator
from headrace.testing.rig import OperatorRig, values


class Ask(hr.Record):
    item: str
    n: int = 1


class Bid(hr.Record):
    name: str
    n: int = 1


KEYS = (lambda row: row.item, lambda row: row.name)
EPOCHS = [
    [(0, [Ask("a"), Ask("b")]), (1, [Bid("a", 2), Bid("a", 3)])],
    EpochInput([(1, [Bid("b", 4), Bid("a", 5), Bid("b", 1)]), (0, [Ask("b")])]),
]


class Tell(KeyedOperator):
    """Says which row came in at which port."""

    def handle(self, port: int, batch: KeyedBatch) -> None:
        self.emit(Rows.of_objects(codec_of(str), [f"{port} {row}" for row in batch.rows.objects]))


class TellBatches(Tell):
    """Forgets that a batch may be cut anywhere."""

    def handle(self, port: int, batch: KeyedBatch) -> None:
        self.emit(Rows.of_objects(codec_of(str), [f"{port}: {len(batch.rows)} rows"] if port == 1 else []))


class ForgetsNothing(Tell):
    """Keeps rows of its second input in itself, where another worker does not see them."""

    def __init__(self, step: str) -> None:
        super().__init__(step)
        self.kept: list[str] = []

    def process(self, port: int, rows: Rows, keys: Keys | None) -> None:
        if port == 1:
            self.kept += map(str, rows.objects)
        self.emit(Rows.of_objects(codec_of(str), list(self.kept)))


def test_rows_come_in_at_the_port_they_are_given_with() -> None:
    rig = OperatorRig(Tell("tell"), (Ask, Bid), KEYS, time=None)
    out = values(rig.epoch((1, [Bid("a")]), (0, [Ask("a")]), (1, [])))
    assert out == ["1 Bid(name='a', n=1)", "0 Ask(item='a', n=1)"]


def test_shards_get_the_rows_of_their_keys_on_every_port() -> None:
    rig = OperatorRig(Tell("tell"), (Ask, Bid), KEYS, time=None, parallelism=3)
    rows = [(0, [Ask(f"k{n}") for n in range(20)]), (1, [Bid(f"k{n}") for n in range(20)])]
    assert len(values(rig.epoch(*rows))) == 40


def test_a_good_operator_passes() -> None:
    verify_operator(lambda: Tell("tell"), EPOCHS, row_type=(Ask, Bid), key=KEYS)


@pytest.mark.parametrize(
    ("kind", "words"), [(TellBatches, "row by row"), (ForgetsNothing, "other rows than in one batch|in another order")]
)
def test_a_careless_operator_is_caught_by_its_second_input(kind: type[Tell], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        verify_operator(lambda: kind("careless"), EPOCHS, row_type=(Ask, Bid), key=KEYS)
