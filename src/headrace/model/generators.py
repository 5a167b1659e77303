"""Watermark generators: users' code that says how far event time has come in one split of a source.

A generator is a prototype: each split has a copy of its own. What a copy keeps from epoch to epoch are the fields that
its class annotates and gives a value, with which they begin; those travel through the manifest as JSON text. Everything
else on the object (what ``__init__`` was given) is settings, and comes with the program.
"""

from __future__ import annotations

from copy import copy, deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar, get_origin

import msgspec

from headrace.errors import ProgramError, StoreError
from headrace.model.hints import class_hints
from headrace.model.time import encode_span
from headrace.model.values import check_storable, type_name

if TYPE_CHECKING:
    from types import FrameType

    import pyarrow as pa

    from headrace.model.batch import Int64s
    from headrace.model.time import Timestamp

T = TypeVar("T")

MAX_KEPT_BYTES: Final = 16 * 1024
"""What a generator keeps is part of every manifest, so it has to be small."""


class WatermarkGenerator(Generic[T]):
    """Says how far event time has come, where the built-in ways do not know: ``app.read(…, watermark=Adaptive())``.

    Fields that the class annotates and gives a value are kept from epoch to epoch, per split; they begin with that
    value. Override `on_row`, or `on_rows` where columns are enough, and `on_epoch`. The same rows must lead to the
    same answers: epochs are replayed after a crash.

    >>> import headrace as hr
    >>> class Reading(hr.Record):
    ...     at: hr.Timestamp
    ...     delay_ms: int = 0
    >>> class Adaptive(hr.WatermarkGenerator[Reading]):
    ...     newest: int = 0
    ...     slack: int = 0
    ...     def on_row(self, row: Reading, at: hr.Timestamp) -> None:
    ...         self.newest = max(self.newest, at)
    ...         self.slack = max(self.slack, row.delay_ms * 1000)
    ...     def on_epoch(self) -> hr.Timestamp | None:
    ...         return hr.Timestamp(self.newest - self.slack)
    """

    def on_row(self, row: T, at: Timestamp) -> None:
        """For each row of the split, in its order; ``at`` is the row's event time."""
        raise NotImplementedError

    def on_rows(self, rows: pa.RecordBatch, times: Int64s) -> None:
        """For each batch of rows instead of `on_row`: the columns, and the event times as a numpy array."""
        raise NotImplementedError

    def on_epoch(self) -> Timestamp | None:
        """After the rows of an epoch that brought any: no row before this time comes any more. None: nothing new."""
        raise NotImplementedError


@dataclass(frozen=True)
class GeneratorPlan:
    """A generator and what it keeps, ready to travel."""

    prototype: WatermarkGenerator[Any]
    fields: tuple[tuple[str, Any], ...]
    """Name and type of what is kept."""
    name: str
    """What people know it by; what another one kept is not for this one."""
    function: Any = None
    """The user's function, where the generator around it is ours."""

    @property
    def columnar(self) -> bool:
        return type(self.prototype).on_rows is not WatermarkGenerator.on_rows

    def make(self, kept: str, where: str) -> WatermarkGenerator[Any]:
        """The generator of one split, as the text of the last epoch left it; empty text: as it begins."""
        made = copy(self.prototype)
        for name, _ in self.fields:
            setattr(made, name, deepcopy(getattr(self.prototype, name)))
        if kept:
            for name, value in self._decode(kept, where).items():
                setattr(made, name, value)
        return made

    def _decode(self, kept: str, where: str) -> dict[str, Any]:
        stored = msgspec.json.decode(kept, type=dict[str, msgspec.Raw])
        found = {}
        for name, kind in self.fields:
            if name not in stored:
                continue
            try:
                found[name] = msgspec.json.decode(stored[name], type=kind)
            except msgspec.ValidationError as error:
                raise StoreError(
                    f"what {type(self.prototype).__name__}.{name} kept has another type now",
                    where=where,
                    expected=type_name(kind),
                    found=f"{bytes(stored[name]).decode()[:100]}: {error}",
                    next_move="give the field a new name; it then begins with the value of its class",
                ) from error
        return found

    def keep(self, made: WatermarkGenerator[Any]) -> str:
        """What a split's generator keeps, as text. Raises ValueError where that is too much, TypeError where it has
        no JSON form."""
        text = msgspec.json.encode({name: getattr(made, name) for name, _ in self.fields}, enc_hook=encode_span)
        if len(text) > MAX_KEPT_BYTES:
            raise ValueError(
                f"it keeps {len(text):,} bytes per split, and at most {MAX_KEPT_BYTES:,} fit into every manifest: "
                "keep a summary instead of the rows"
            )
        return text.decode()


def plan_generator(
    prototype: WatermarkGenerator[Any], name: str, where: str, frame: FrameType | None, *, function: Any = None
) -> GeneratorPlan:
    """Checks a generator and reads what it keeps off its class. Raises ProgramError."""
    cls = type(prototype)
    base: Any = WatermarkGenerator
    if cls.on_epoch is base.on_epoch:
        raise ProgramError(
            f"{cls.__name__} needs on_epoch",
            where=where,
            expected="def on_epoch(self) -> hr.Timestamp | None",
            found="a class without it",
            next_move="return the watermark: every row up to it has come",
        )
    if cls.on_row is base.on_row and cls.on_rows is base.on_rows:
        raise ProgramError(
            f"{cls.__name__} needs on_row or on_rows",
            where=where,
            expected="def on_row(self, row, at), or def on_rows(self, rows, times)",
            found="a class without either",
        )
    return GeneratorPlan(prototype, tuple(_kept_fields(prototype, where, frame)), name, function)


def _kept_fields(prototype: WatermarkGenerator[Any], where: str, frame: FrameType | None) -> list[tuple[str, Any]]:
    cls = type(prototype)
    try:
        hints = class_hints(cls, frame)
    except NameError as error:
        raise ProgramError(
            f"an annotation of {cls.__name__} contains an unknown name",
            where=where,
            found=str(error),
            next_move="define or import the name where the class is defined",
        ) from error
    fields = []
    for name, kind in hints.items():
        if kind is ClassVar or get_origin(kind) is ClassVar:
            continue
        if not any(name in base.__dict__ for base in cls.__mro__):
            if hasattr(prototype, name):
                continue
            raise ProgramError(
                f"{cls.__name__}.{name} is kept per split and needs a default",
                where=where,
                expected=f"{name}: {type_name(kind)} = …",
                found=f"{name}: {type_name(kind)}",
                next_move="give it a first value; attributes without an annotation are not stored",
            )
        check_storable(kind, what=f"{cls.__name__}.{name}", where=where)
        fields.append((name, kind))
    return fields
