"""Any types, one after the other, with folds, crashes and other shards in between: a key is read as a model says."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from tests.effort import examples
from tests.testing.changed import FILES, Ask, keeping, kept

_KINDS = {"int": 3, "str": "x", "list[int]": [1, 2], "Inner": {"a": 4}}
"""Types that fields begin with, and a value of each."""
_WIDER = {"int": "float", "float": "float | None", "str": "str | None", "Inner": "Inner | None"}


class Inner(hr.Record):
    a: int
    b: str = "new"


@dataclass
class Version:
    """Fields of one version of a type, and how values of the version before become values of it."""

    fields: dict[str, str]
    defaults: dict[str, Any] = field(default_factory=dict)
    was: dict[str, str] = field(default_factory=dict)

    def make(self) -> Any:
        lines = [f"    {name}: {kind}{self._default(name)}" for name, kind in self.fields.items()]
        # Names are looked up when the class is made, as in a file of its own.
        space: dict[str, Any] = {"hr": hr, "Inner": Inner, "__name__": __name__}
        exec(
            compile("class Kept(hr.Record, kw_only=True):\n" + "\n".join(lines or ["    pass"]), "v.py", "exec"), space
        )
        return space["Kept"]

    def _default(self, name: str) -> str:
        options = [f"was={self.was[name]!r}"] if name in self.was else []
        if name in self.defaults:
            options.insert(0, f"default={self.defaults[name]!r}")
        return f" = hr.field({', '.join(options)})" if options else ""

    def next_value(self, value: dict[str, Any]) -> dict[str, Any]:
        found = {name: self.was.get(name, name) for name in self.fields}
        return {name: value[was] if was in value else self.defaults[name] for name, was in found.items()}

    def value(self, n: int) -> dict[str, Any]:
        return {
            name: {**_KINDS, "float": n / 2, "int": n}.get(kind.removesuffix(" | None"))
            for name, kind in self.fields.items()
        }


@st.composite
def versions(draw: st.DrawFn) -> list[Version]:
    """A type, and what later programs make of it. Names come again: what was removed must not."""
    names = st.sampled_from(["a", "b", "c", "d"])
    chosen = draw(st.lists(names, min_size=1, max_size=3, unique=True))
    found = [Version({name: draw(st.sampled_from(list(_KINDS))) for name in chosen})]
    for _ in range(draw(st.integers(1, 3))):
        before = found[-1]
        now = Version({}, {})
        for name, kind in before.fields.items():
            match draw(st.sampled_from(["keep", "keep", "remove", "rename", "widen"])):
                case "keep":
                    now.fields[name] = kind
                case "widen":
                    now.fields[name] = _WIDER.get(kind, kind)
                case "rename":
                    free = [each for each in "efgh" if each not in before.fields and each not in now.fields]
                    now.fields[free[0]], now.was[free[0]] = kind, name
            for each in now.fields:
                # A default of an earlier program is one of this, too, or values would lack what folds have not written.
                if before.defaults.get(each) is not None and now.fields[each] == before.fields.get(each):
                    now.defaults[each] = before.defaults[each]
        for name in draw(st.lists(names, max_size=2, unique=True)):
            if name not in before.fields and name not in now.fields:
                now.fields[name], now.defaults[name] = "int", draw(st.integers(0, 9))
        order = draw(st.permutations(list(now.fields)))
        now.fields = {name: now.fields[name] for name in order}
        found.append(now)
    return found


@settings(max_examples=examples(15))
@given(
    versions(),
    st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(1, 4)), min_size=4, max_size=4),
)
def test_values_of_any_types_are_read_as_every_program_would_have_left_them(
    chain: list[Version], ways: list[tuple[bool, bool, int]]
) -> None:
    model: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (version, (folds, crashes, parallelism)) in enumerate(zip(chain, ways)):
            kind = version.make()
            if number:
                model = {key: version.next_value(value) for key, value in model.items()}
            job = keeping(kind, lambda n, kind=kind, version=version: _typed(kind, version.value(n)))
            with job.harness(Path(folder), parallelism=parallelism, limits=FILES if crashes else None) as h:
                if crashes:
                    h.crash()
                for _ in range(2 * parallelism + 1 if folds else 0):
                    h.epoch()
                    h.maintain()
                # A key of this version alone, and one that every other version has written, too.
                for key in {f"k{number}", f"shared{number % 2}"}:
                    h.push(job.asks, Ask(key, number + 1))
                    model.pop(key, None)
                    model[key] = version.value(number + 1)
                h.epoch()
                if number == len(chain) - 1:
                    for key, value in model.items():
                        told = job.tell(h, key)
                        expected = kept(_typed(kind, value))
                        assert {name: told[name] for name in ("value", "named", "newest", "acc")} == {
                            name: expected[name] for name in ("value", "named", "newest", "acc")
                        }, (key, chain)
                        assert told["few"].endswith(expected["few"][1:])


def _typed(kind: Any, value: dict[str, Any]) -> Any:
    return msgspec.convert(value, kind)
