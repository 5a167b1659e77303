"""Moments of a store, and how they are written: ``STORE@41``, ``STORE@before-v2``, ``STORE@2024-05-01T12:00``.

A moment is an epoch by its number, a savepoint by its name, or a point in time, which means the newest epoch that was
published at or before it. Without a moment an address means the newest epoch. Only the last ``@`` behind the last slash
counts, so that ``s3://me@host/state`` is a plain address; a folder that really has one in its name is written with an
``@`` at the end: ``./me@work@``.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple, TypeAlias

from headrace.errors import MissingFile, NoSuchMoment, ProgramError, StoreError
from headrace.model.time import format_time, parse_time, timestamp
from headrace.state import layout
from headrace.state.lineage import published_places
from headrace.state.manifest import Manifest, epoch_ranges, read_manifest
from headrace.state.savepoints import NAME_FORM, check_name, read_savepoint
from headrace.state.store import StoreFiles

_FORMS: Final = "an epoch (41), a savepoint (before-v2) or a time in UTC (2024-05-01T12:00)"
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d.*")
_EPOCHS: Final = 10**12
_ATTEMPTS: Final = 8
"""How often a search begins again that a sweep was faster than."""


@dataclass(frozen=True)
class AtEpoch:
    """An epoch that leads to the present one: what a rewind abandoned is found by its savepoint only."""

    epoch: int

    def __str__(self) -> str:
        return str(self.epoch)


@dataclass(frozen=True)
class AtSavepoint:
    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class AtTime:
    """The newest epoch that was published at or before a point in time, and leads to the present one."""

    time_us: int

    def __str__(self) -> str:
        return format_time(self.time_us)


Moment: TypeAlias = AtEpoch | AtSavepoint | AtTime


class Address(NamedTuple):
    """A store, and a moment of it where one was said."""

    url: str
    moment: Moment | None = None

    def __str__(self) -> str:
        return self.url if self.moment is None else f"{self.url}@{self.moment}"


def parse_address(text: str) -> Address:
    """The store and the moment in what a person wrote.

    >>> parse_address("./state@41")
    Address(url='./state', moment=AtEpoch(epoch=41))
    >>> parse_address("s3://me@bucket")
    Address(url='s3://me@bucket', moment=None)
    """
    url, at, moment = text.rpartition("@")
    if not at or _is_in_authority(url, moment) or "/" in moment or os.sep in moment:
        return Address(text)
    if not url:
        raise _no_moment(text, "an address begins with the store", "STORE@" + moment)
    return Address(url, parse_moment(moment) if moment else None)


def parse_moment(text: str) -> Moment:
    """A moment alone, as in ``--at 41``.

    >>> parse_moment("before-v2"), parse_moment("2024-05-01T12:00")
    (AtSavepoint(name='before-v2'), AtTime(time_us=1714564800000000))
    """
    if re.fullmatch(r"[0-9]{1,12}", text):
        return AtEpoch(int(text))
    if _TIME.fullmatch(text):
        try:
            return AtTime(parse_time(text))
        except (ProgramError, ValueError, OverflowError) as error:
            raise _no_moment(text, "this is no point in time", "2024-05-01T12:00, 2024-05-01T12:00:30Z") from error
    try:
        return AtSavepoint(check_name(text))
    except StoreError:
        raise _no_moment(
            text, "this is no moment of a store", f"{_FORMS}; the name of a savepoint is {NAME_FORM}"
        ) from None


def moment_of(moment: int | str | datetime | Moment) -> Moment:
    """A moment, however a program says it. A number too large to be an epoch is a Timestamp.

    >>> moment_of(41), moment_of("before-v2")
    (AtEpoch(epoch=41), AtSavepoint(name='before-v2'))
    """
    match moment:
        case str():
            return parse_moment(moment)
        case datetime():
            return AtTime(int(timestamp(moment)))
        case int():
            return AtEpoch(moment) if moment < _EPOCHS else AtTime(moment)
    return moment


def plain_address(url: str) -> str:
    """How a store is written whose URL is known: an ``@`` in the name of its folder begins no moment."""
    return f"{url}@" if "@" in url else url


def find_moment(store: StoreFiles, moment: Moment | None) -> layout.ManifestName:
    """Timeline and epoch of a moment, None being the newest epoch. The error for one that is not there lists what is.

    The manifest is read with `read_manifest(store, *place)`, all state with `read_state(store, *place)`.
    """
    if isinstance(moment, AtSavepoint):
        return read_savepoint(store, moment.name).place
    match moment:
        case AtEpoch(epoch):
            return _place_of(store, epoch)
        case AtTime(time_us):
            return _place_at(store, time_us)
        case None:
            return published_places(store)[-1]


def read_moment(store: StoreFiles, moment: Moment | None) -> Manifest:
    """The manifest of a moment."""
    return read_manifest(store, *find_moment(store, moment))


def _place_of(store: StoreFiles, epoch: int) -> layout.ManifestName:
    places = published_places(store)
    place = next((each for each in places if each.epoch == epoch), None)
    if place is not None:
        return place
    raise NoSuchMoment(
        f"epoch {epoch} is not in the store",
        where=store.url,
        expected=f"one of {epoch_ranges([each.epoch for each in places])}",
        found=f"epoch {epoch}",
        next_move="older epochs are swept; run with a larger `retain` to keep more of them, or take savepoints"
        if epoch < places[-1].epoch
        else "the job has not come so far: ask for one that is published",
    )


def _place_at(store: StoreFiles, time_us: int) -> layout.ManifestName:
    """The newest epoch that was published by then. Clocks of a job do not go back, so few manifests are read."""
    for _ in range(_ATTEMPTS):
        places = published_places(store)
        try:
            number = bisect_right(places, time_us, key=lambda place: read_manifest(store, *place).published_us)
            if number:
                return places[number - 1]
            oldest = read_manifest(store, *places[0])
        except MissingFile:
            continue
        raise NoSuchMoment(
            f"no epoch that was published by {format_time(time_us)} is in the store",
            where=store.url,
            expected=f"{format_time(oldest.published_us)} (epoch {oldest.epoch}) or later",
            found=format_time(time_us),
            next_move="older epochs are swept; run with a larger `retain` to keep more of them, or take savepoints",
        )
    raise StoreError(
        "files vanish faster than they can be read",
        where=store.url,
        next_move="try again, or run the job with a larger `retain`",
    )


def _is_in_authority(before: str, after: str) -> bool:
    """Whether the ``@`` stands between a user and a host, which no slash follows."""
    scheme, mark, rest = before.partition("://")
    return bool(mark) and "/" not in rest and bool(scheme) and bool(after)


def _no_moment(text: str, what: str, expected: str) -> StoreError:
    return StoreError(
        what, expected=expected, found=repr(text), next_move="`headrace epochs` and `headrace savepoints` list moments"
    )
