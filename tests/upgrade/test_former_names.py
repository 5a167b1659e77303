"""Former names of fields that contradict each other, or what is stored, are refused: nothing is read as another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import StoreError
from tests.testing.changed import keeping, kept, write


class Place(hr.Record):
    town: str
    people: int


class Renamed(hr.Record):
    people: float
    city: str = hr.field(was="town")


class Two(hr.Record):
    a: int
    b: int


class Exchanged(hr.Record):
    a: int = hr.field(was="b")
    b: int = hr.field(was="a")


class Shifted(hr.Record):
    b: int = hr.field(was="a")
    c: int = hr.field(was="b")


class Doubled(hr.Record):
    c: int = hr.field(was="a")
    d: int = hr.field(was="a")


class Misspelt(hr.Record):
    b: int
    c: int = hr.field(default=0, was="aa")


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (Exchanged, "field `a` was `b`, and is there itself"),
        (Shifted, "field `b` read as `b` and `c`"),
        (Doubled, "field `a` read as `c` and `d`"),
        (Misspelt, "field `c` was `aa`, which is not there, and `a` would be lost"),
    ],
)
def test_former_names_that_contradict_what_is_stored_are_refused(tmp_path: Path, kind: Any, says: str) -> None:
    write(keeping(Two, lambda n: Two(n, -n)), tmp_path)
    with pytest.raises(StoreError, match=says):
        keeping(kind, lambda n: None).harness(tmp_path)


class Again(hr.Record):
    city: str = hr.field(was="town")
    people: int = 0
    town: str = "new"


class Later(hr.Record):
    city: str = hr.field(was="town")
    people: float = 0.0
    town: str = "new"


def test_a_former_name_may_be_that_of_a_new_field_once_it_is_a_former_one(tmp_path: Path) -> None:
    write(keeping(Place, lambda n: Place("x", n)), tmp_path)
    with pytest.raises(StoreError, match="field `town` read as `city` and `town`"):
        keeping(Again, lambda n: None).harness(tmp_path)
    for kind, value in ((Renamed, Renamed(2.0, "x")), (Later, Later("x", 2.0)), (Later, Later("x", 2.0))):
        job = keeping(kind, lambda n: None)
        with job.harness(tmp_path) as h:
            assert job.tell(h) == kept(value)
