"""What lies between two types of one state: whether values that were stored as the one are read as the other, and how.

Rules, for values of every kind of state:
- read as they are: fields added with a default, removed, in another order, renamed with ``was=``; int → float up to
  2**53; T → T | None; members added to a union, an enum or a Literal;
- everything else is refused, unless a function of the program's leads from one to the other (`hr.migrate`).

Some of what is read must be adapted on its way to the decoder, as a field that was renamed: then the change is not
``direct``, and ``adapt`` does it. It is made by the same walk that compares, so that what is promised is what is done.
It takes and gives plain values: what MessagePack holds, decoded by somebody who does not know the type.

What this module deliberately does not do: read a store (`headrace.state.adapters`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from headrace.model.migrations import Migration, find_chain
from headrace.model.type_adapt import (
    MOST_EXACT,
    NO_DEFAULT,
    Adapt,
    adapt_members,
    adapt_record,
    exact_float,
    read_default,
    same_value,
)
from headrace.model.type_pairs import NestedShape, Pairing, member_of, members_of, pair_fields, pair_member, widens
from headrace.model.type_shape import TypeField, TypeShape, nameless, type_text

ChangeKind = Literal["same", "reads", "migrates", "refused"]
Migrated = tuple[str, Sequence[str], Adapt]
"""What functions of the program's do, in words; their names; how."""


@dataclass(frozen=True)
class TypeChange:
    """What becomes of stored values whose type changed."""

    kind: ChangeKind
    words: tuple[str, ...] = ()
    """What changed, a phrase each: "field `city` added, default ''". Of a refusal: what cannot be read."""
    direct: bool = True
    """Whether the decoder of the new type reads the bytes as they are."""
    drops: bool = False
    """Whether fields were removed: bytes as they are still hold them."""
    functions: tuple[str, ...] = ()
    """Names of the program's functions that take part."""
    adapt: Adapt | None = dataclasses.field(default=None, compare=False, repr=False)
    """Takes out fields that were removed, too. None where there is nothing to do, or no way."""

    @property
    def text(self) -> str:
        return "; ".join(self.words)


SAME: Final = TypeChange("same")


def compare_types(
    old: TypeShape | None, new: TypeShape | None, migrations: Sequence[Migration] = (), *, fill: bool = False
) -> TypeChange:
    """What becomes of values stored as ``old`` where the program reads ``new``; unknown types are never refused.

    ``fill``: ``adapt`` puts in the defaults of new fields, as values of a type must have that another one follows.
    """
    if old is None or new is None or old == new:
        return SAME
    comparison = _Comparison(migrations, fill=fill)
    adapt = comparison.compare(NestedShape(old), NestedShape(new), "")
    direct, drops = comparison.direct, comparison.drops
    if not direct and _has_record_keys(old):
        comparison.refusals.append("records as keys of a dict cannot be changed")
    if comparison.refusals:
        return TypeChange("refused", tuple(dict.fromkeys(comparison.refusals)), direct=False, drops=drops)
    if not comparison.notes and direct:
        return SAME
    notes = tuple(dict.fromkeys(comparison.notes))
    functions = tuple(dict.fromkeys(comparison.functions))
    return TypeChange("migrates" if functions else "reads", notes, direct, drops, functions, adapt)


def compare_keys(old: TypeShape | None, new: TypeShape | None) -> TypeChange:
    """The same of keys, of a stream or of a map. They are found by their bytes, so none of them may change."""
    change = compare_types(old, new)
    if change.kind in ("same", "refused") or old is None or new is None:
        return change
    if all(any(compare_types(each, other).kind == "same" for other in members_of(new)) for each in members_of(old)):
        return change
    if old.kind == new.kind == "choice":
        return change
    return TypeChange("refused", (f"{type_text(old)} → {type_text(new)}",), direct=False)


class _Comparison:
    """One walk over both types. What is returned adapts a value; None leaves it as it is."""

    def __init__(self, migrations: Sequence[Migration], *, fill: bool) -> None:
        self.notes: list[str] = []
        self.refusals: list[str] = []
        self.direct = True
        self.drops = False
        self.functions: list[str] = []
        self._migrations = migrations
        self._fill = fill
        self._begun: dict[tuple[NestedShape, NestedShape], list[Adapt | None]] = {}

    def compare(self, old: NestedShape, new: NestedShape, path: str) -> Adapt | None:
        """``path``: the fields that lead there."""
        begun = self._begun.get((old, new))
        if begun is not None:
            # A type inside of itself: what is to be said of the pair is said where it was met first.
            return lambda value: value if not begun or begun[0] is None else begun[0](value)
        mine = self._begun[old, new] = []
        migrated = self._migrate(old, new, exact=True)
        if migrated is None:
            refusals = len(self.refusals)
            adapt = self._compare(old, new, path)
            migrated = self._migrate(old, new, exact=False) if len(self.refusals) > refusals else None
            if migrated is not None:
                del self.refusals[refusals:]
        if migrated is not None:
            adapt = self._take(migrated, path)
        mine.append(adapt)
        return adapt

    def _migrate(self, old: NestedShape, new: NestedShape, *, exact: bool) -> Migrated | None:
        """A function of the program's. ``exact``: one for these very types; others may be led to by the rules."""
        if not self._migrations or nameless(old.shape) == nameless(new.shape):
            return None
        chain = find_chain(old.shape, new.shape, self._migrations, None if exact else _adapt_by_rules)
        if chain is None:
            return None
        words = f"{type_text(old.shape)} → {type_text(new.shape)} by {' → '.join(chain.functions)}"
        return words, chain.functions, chain.adapt

    def _compare(self, old: NestedShape, new: NestedShape, path: str) -> Adapt | None:
        if "union" in (old.shape.kind, new.shape.kind):
            return self._compare_members(old, new, path)
        if old.shape.kind != new.shape.kind:
            return self._compare_kinds(old, new, path)
        return self._compare_alike(old, new, path)

    def _compare_kinds(self, old: NestedShape, new: NestedShape, path: str) -> Adapt | None:
        if not widens(old.shape, new.shape):
            self._refuse(path, old.shape, new.shape)
            return None
        self.notes.append(path_words(path, f"{type_text(old.shape)} → {type_text(new.shape)}"))
        if new.shape.limits:
            self.refusals.append(path_words(path, f"must now be {new.shape.limits}"))
        if new.shape.kind != "float":
            return None
        self.direct = False
        self.notes[-1] += f" (up to {MOST_EXACT}; some values are tried now, a greater one is refused when it is met)"
        return exact_float

    def _compare_members(self, old: NestedShape, new: NestedShape, path: str) -> Adapt | None:
        before, after = members_of(old.shape), members_of(new.shape)
        mates = [pair_member(member, new.shape) for member in before]
        if len(before) == 1 and mates[0] is None:
            self._refuse(path, old.shape, new.shape)
            return None
        adapts: list[tuple[TypeShape, Adapt]] = []
        for member, mate in zip(before, mates):
            if mate is None:
                migrated = self._migrate_member(member_of(old, member), new, path)
                if migrated is None:
                    self.refusals.append(path_words(path, f"{type_text(member)} removed"))
                else:
                    adapts.append((member, migrated))
                continue
            adapt = self.compare(member_of(old, member), member_of(new, mate), path)
            if adapt is not None:
                adapts.append((member, adapt))
        self.notes += [path_words(path, _added_words(member)) for member in after if member not in mates]
        if not adapts:
            return None
        return adapt_members(before, adapts)

    def _migrate_member(self, member: NestedShape, new: NestedShape, path: str) -> Adapt | None:
        """By a function of the program's, from a member that no rule leads on from."""
        for each in members_of(new.shape):
            migrated = self._migrate(member, member_of(new, each), exact=False)
            if migrated is not None:
                return self._take(migrated, path)
        return None

    def _take(self, migrated: Migrated, path: str) -> Adapt:
        words, functions, adapt = migrated
        self.notes.append(path_words(path, words))
        self.direct = False
        self.functions += functions
        return adapt

    def _compare_alike(self, old: NestedShape, new: NestedShape, path: str) -> Adapt | None:
        before, after = old.shape, new.shape
        if after.limits and after.limits != before.limits:
            self.refusals.append(path_words(path, f"must now be {after.limits}"))
        match after.kind:
            case "record":
                return self._compare_records(old, new, path)
            case "list" | "set" if before.items is not None and after.items is not None:
                adapt = self.compare(old.part(before.items), new.part(after.items), path)
                return None if adapt is None else lambda value: [adapt(each) for each in value]
            case "map":
                return self._compare_maps(old, new, path)
            case "tuple":
                return self._compare_tuples(old, new, path)
            case "choice":
                self._compare_values(before, after, path)
            case "unknown" if before.name != after.name:
                self._refuse(path, before, after)
        return None

    def _compare_maps(self, old: NestedShape, new: NestedShape, path: str) -> Adapt | None:
        before, after = old.shape, new.shape
        assert before.keys and before.items and after.keys and after.items
        of_key = self.compare(old.part(before.keys), new.part(after.keys), path) or same_value
        of_item = self.compare(old.part(before.items), new.part(after.items), path) or same_value
        if of_key is same_value and of_item is same_value:
            return None
        return lambda value: {of_key(name): of_item(each) for name, each in value.items()}

    def _compare_tuples(self, old: NestedShape, new: NestedShape, path: str) -> Adapt | None:
        before, after = old.shape, new.shape
        if len(before.places) != len(after.places):
            self._refuse(path, before, after)
            return None
        adapts = [self.compare(old.part(a), new.part(b), path) for a, b in zip(before.places, after.places)]
        if not any(adapts):
            return None
        return lambda value: [each if adapt is None else adapt(each) for adapt, each in zip(adapts, value)]

    def _compare_values(self, before: TypeShape, after: TypeShape, path: str) -> None:
        for value in before.values:
            if value not in after.values:
                self.refusals.append(path_words(path, f"{value!r} removed from {type_text(after)}"))
        for value in after.values:
            if value not in before.values:
                self.notes.append(path_words(path, f"{value!r} added"))

    # --- records

    def _compare_records(self, old: NestedShape, new: NestedShape, path: str) -> Adapt | None:
        before, after = old.shape, new.shape
        if before.positional != after.positional or (after.positional and before.tag != after.tag):
            self._refuse(path, before, after)
            return None
        if before.tag != after.tag:
            self.direct = False
            self.notes.append(path_words(path, f"tag {_tag_text(before)} → {_tag_text(after)}"))
        pairs = pair_fields(before, after)
        adapts: list[Adapt | None] = []
        added: dict[str, Any] = {}
        for field_, source in pairs:
            if source is None:
                added |= self._add(field_, path)
                adapts.append(None)
            else:
                adapts.append(self._compare_field(old, new, source, field_, path))
        sources = [source for _, source in pairs if source is not None]
        removed = [each for each in before.fields if each not in sources]
        self._refuse_former_names(before, pairs, removed, path)
        for each in removed:
            self.notes.append(path_words(path, f"field `{each.name}` removed"))
            self.drops = True
            self.direct = self.direct and not after.closed
        if sources != [each for each in before.fields if each in sources]:
            self.notes.append(path_words(path, "fields in another order"))
        return adapt_record(before, after, pairs, adapts, added)

    def _refuse_former_names(
        self, before: TypeShape, pairs: Sequence[Pairing], removed: Sequence[TypeField], path: str
    ) -> None:
        """Former names that would read one value as two, another than the field has, or none while one is lost."""
        names = {each.name for each in before.fields} | {each.stored_name for each in before.fields}
        readers: dict[str, str] = {}
        for each, source in pairs:
            if source is None:
                if each.was and removed and not before.positional:
                    words = f"field `{each.name}` was {_or(each.was)}, which is not there"
                    self.refusals.append(path_words(path, f"{words}, and `{removed[0].name}` would be lost"))
                continue
            if (other := readers.setdefault(source.name, each.name)) != each.name:
                self.refusals.append(path_words(path, f"field `{source.name}` read as `{other}` and `{each.name}`"))
            known = {source.name, source.stored_name, *source.was}
            if other_names := [was for was in each.was if was in names and was not in known]:
                words = f"field `{each.name}` was {_or(other_names)}, and is there itself"
                self.refusals.append(path_words(path, words))

    def _compare_field(
        self, old: NestedShape, new: NestedShape, source: TypeField, field_: TypeField, path: str
    ) -> Adapt | None:
        inside = f"{path}.{field_.name}" if path else field_.name
        if new.shape.positional:
            if source.name != field_.name and source.name not in field_.was:
                self.refusals.append(path_words(path, f"place of field `{source.name}` taken by `{field_.name}`"))
                return None
        elif source.stored_name != field_.stored_name:
            self.direct = False
        if source.name != field_.name:
            self.notes.append(path_words(path, f"field `{source.name}` renamed to `{field_.name}`"))
        elif source.stored_name != field_.stored_name:
            self.notes.append(path_words(path, f"field `{field_.name}` stored as `{field_.stored_name}`"))
        if old.shape.omits and source.default not in (None, field_.default):
            # A value that equals its default is not there, and would come back as another.
            self.refusals.append(path_words(inside, f"default {source.default} → {field_.default}"))
        return self.compare(old.part(source.type), new.part(field_.type), inside)

    def _add(self, field_: TypeField, path: str) -> dict[str, Any]:
        """A new field; what values that lack it get."""
        if field_.default is None:
            self.refusals.append(path_words(path, f"field `{field_.name}` added without a default"))
            return {}
        self.notes.append(path_words(path, f"field `{field_.name}` added, default {_default_words(field_)}"))
        if not self._fill:
            return {}
        try:
            default = read_default(field_)
        except ValueError:
            self.refusals.append(path_words(path, f"field `{field_.name}` added, whose default is code"))
            return {}
        if default is NO_DEFAULT:
            return {}
        self.direct = False
        return {field_.stored_name: default}

    def _refuse(self, path: str, old: TypeShape, new: TypeShape) -> None:
        self.refusals.append(path_words(path, f"{type_text(old)} → {type_text(new)}"))


def _adapt_by_rules(old: TypeShape, new: TypeShape) -> Adapt | None:
    """How the rules alone lead from one to the other; None where they do not."""
    change = compare_types(old, new)
    if change.kind == "refused":
        return None
    return change.adapt or same_value


def _has_record_keys(shape: TypeShape) -> bool:
    """Whether a dict of it has records as keys: nobody who lacks the type can hold those."""
    if shape.keys is not None and shape.keys.kind == "record" and not shape.keys.positional:
        return True
    parts = [*shape.members, *shape.places, *(each.type for each in shape.fields), shape.items, shape.keys]
    return any(_has_record_keys(part) for part in parts if part is not None)


def _or(names: Sequence[str]) -> str:
    return " or ".join(f"`{name}`" for name in names)


def _tag_text(record: TypeShape) -> str:
    return "none" if record.tag is None else f"{record.tag[0]}={record.tag[1]!r}"


def path_words(path: str, words: str) -> str:
    if not path:
        return words
    return f"`{path}` {words}" if "→" in words else f"{words} in `{path}`"


def _added_words(member: TypeShape) -> str:
    return "None allowed" if member.kind == "none" else f"{type_text(member)} added"


def _default_words(field: TypeField) -> str:
    text = field.default or ""
    return (
        f"'{text[1:-1]}'"
        if text.startswith('"')
        else {"null": "None", "true": "True", "false": "False"}.get(text, text)
    )
