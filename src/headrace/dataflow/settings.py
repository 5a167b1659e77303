"""Settings of a run: where each value comes from, and what it may be.

An argument beats the environment (``HEADRACE_EPOCH=1s``), which beats the chosen profile of ``headrace.toml``, which
beats the top level of that file, which beats the default. Tables (``spark``, ``vars``, ``serve``) are merged name by
name in the same order. A name that nobody knows is an error that suggests the nearest one: a setting that is silently
ignored is worse than none.

    # headrace.toml
    epoch = "1s"
    [vars]
    brokers = "localhost:9092"
    [profiles.prod]
    store = "s3://bucket/{app}"
    parallelism = 16
    [profiles.prod.spark]
    master = "spark://host:7077"
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from headrace.dataflow.serve_settings import Serving, serve_words
from headrace.errors import ProgramError, SettingsError
from headrace.model.ids import KEY_GROUPS
from headrace.model.nearest import did_you_mean, nearest
from headrace.model.pace import Adaptive, parse_pace
from headrace.model.retention import parse_retention
from headrace.model.time import format_span, span_us
from headrace.model.user_line import user_line

FILE: Final = "headrace.toml"
PREFIX: Final = "HEADRACE_"
VAR_PREFIX: Final = "HEADRACE_VAR_"
#: Names in the environment that are read elsewhere and are no settings.
_OTHER_NAMES: Final = ("PROFILE", "CONFIG", "CRASH", "SECRETS_DIR", "CACHE_DIR", "CACHE_GB", "SQL_HISTORY")
_MAX_DEFAULT_PARALLELISM: Final = 4


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _SettingsMeta(msgspec.StructMeta):
    """Refuses settings that nobody knows in words; a Struct would raise a TypeError."""

    def __call__(self, *args: Any, **settings: Any) -> Any:
        for name in settings:
            _check_known(name, user_line())
        return super().__call__(*args, **settings)


class Settings(msgspec.Struct, metaclass=_SettingsMeta, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a program runs; nothing in here changes what it means."""

    store: str = "./.headrace/{app}"
    """Folder or URL of the checkpoint store; ``{app}`` stands for the name of the app."""
    epoch: str = "500ms"
    """How often an epoch begins, where input flows: a span, or ``adaptive(latency=1s, spend=20%)``."""
    parallelism: int = msgspec.field(default_factory=lambda: min(_cores(), _MAX_DEFAULT_PARALLELISM))
    """Number of shards. May change at any restart."""
    key_groups: int = KEY_GROUPS
    """Upper bound of parallelism, a power of two; fixed for the life of a store."""
    master: str = "local[*]"
    """Where Spark runs; also ``master`` in the table ``spark``."""
    spark: dict[str, str] = {}
    """Further configuration of the session, by Spark's names with or without ``spark.`` before them."""
    retain: int | str = 10
    """Which published epochs stay readable: so many of the newest, or a span, thinned (`headrace.model.retention`)."""
    restarts: int = 3
    """How often in a row an epoch that failed for Spark's reasons is tried again."""
    sink_patience: str = "5m"
    """How long a sink that cannot be reached is tried again before the run ends; ``0s``: not at all."""
    vars: dict[str, str] = {}
    """What ``hr.var`` gives."""
    takeover: bool = False
    """Whether to end another driver that runs on the same store, instead of refusing to start."""
    fresh: bool = False
    """Whether to throw away what is in the store and start from nothing."""
    start_from: str = ""
    """A savepoint, epoch or time to go back to (``before-v2``, ``41``), or that of another store to begin with."""
    repeat: list[str] = []
    """With ``start_from``: outputs that take back what went out behind it and give it out anew; ``all`` that can."""
    hold: list[str] = []
    """With ``start_from``: outputs of which nothing goes out until the old end is passed; ``all`` that can."""
    again: bool = False
    """With ``start_from``: whether to go back once more, where the job went back to that very epoch before."""
    original_lost: bool = False
    """Whether a copy goes on as the job itself, under the id of its original, because that is gone."""
    drop: list[str] = []
    """State that is given up where a changed program does not fit it: ``step``, ``step.state``, or a loop."""
    plain: bool = False
    """Whether to write log lines instead of a live table."""
    serve: Serving = Serving(on=False)
    """What to serve beside the job. Given as true, a port, ``address:port``, or a table."""


class Layer(NamedTuple):
    """Values from one place, with words for where that is."""

    origin: str
    values: dict[str, Any]


def load_settings(
    app: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    profile: str | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    program: Mapping[str, Any] | None = None,
) -> Settings:
    """The settings of a run, from everywhere they can come from; wrong ones are a SettingsError.

    ``program``: what its own text says (``SET`` of SQL), which beats the file and nothing else.
    """
    env = os.environ if environment is None else environment
    layers = file_layers(profile, env, folder)
    layers.append(Layer("SET in the program", dict(program or {})))
    layers.append(Layer("the environment", _environment_values(env)))
    given = {name: value for name, value in (arguments or {}).items() if value is not None}
    layers.append(Layer("the arguments", given))
    merged: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.values.items():
            _check_known(name, layer.origin)
            _merge(merged, name, _cleaned(name, value, layer.origin))
    return _checked(_convert(merged, layers), app)


def file_layers(profile: str | None, env: Mapping[str, str], folder: Path | None = None) -> list[Layer]:
    """The settings file, its top level first, then the chosen profile; empty without a file."""
    profile = profile or env.get(PREFIX + "PROFILE") or None
    path = find_file(env, folder)
    content = _read_file(path) if path is not None else {}
    profiles = content.pop("profiles", {})
    layers = [Layer(str(path), content)] if path is not None else []
    if profile is None:
        return layers
    if profile not in profiles:
        raise SettingsError(
            f"there is no profile {profile!r}",
            where=str(path or FILE),
            expected=f"one of {', '.join(sorted(profiles))}" if profiles else f"a table [profiles.{profile}] in {FILE}",
            found=repr(profile),
            next_move=did_you_mean(profile, profiles) or f"add [profiles.{profile}], or leave the profile out",
        )
    return [*layers, Layer(f"{path} [profiles.{profile}]", profiles[profile])]


def find_file(env: Mapping[str, str], folder: Path | None = None) -> Path | None:
    """The settings file: the one that HEADRACE_CONFIG names, or the nearest one from the working folder upwards."""
    named = env.get(PREFIX + "CONFIG")
    if named:
        return Path(named)
    start = (folder or Path.cwd()).resolve()
    for each in (start, *start.parents):
        if (each / FILE).is_file():
            return each / FILE
    return None


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(
            "the settings file cannot be read",
            where=str(path),
            expected="TOML",
            found=str(error),
            next_move="correct the file, or point HEADRACE_CONFIG at another",
        ) from error


def _environment_values(env: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    variables = {
        name.removeprefix(VAR_PREFIX).lower(): value for name, value in env.items() if name.startswith(VAR_PREFIX)
    }
    for name, text in env.items():
        if not name.startswith(PREFIX) or name.startswith((VAR_PREFIX, PREFIX + "SECRET_")):
            continue
        setting = name.removeprefix(PREFIX)
        if setting in _OTHER_NAMES:
            continue
        if setting.lower() in Settings.__struct_fields__:
            values[setting.lower()] = text
        elif nearest(setting, Settings.__struct_fields__):
            # Names that are far from every setting may belong to somebody else; near ones are slips.
            _check_known(setting.lower(), f"the environment ({name})")
    if variables:
        values["vars"] = variables
    return values


def _check_known(name: str, origin: str) -> None:
    if name not in Settings.__struct_fields__:
        raise SettingsError(
            f"there is no setting {name!r}",
            where=origin,
            expected=f"one of {', '.join(Settings.__struct_fields__)}",
            found=name,
            next_move=did_you_mean(name, Settings.__struct_fields__, "remove it"),
        )


def _cleaned(name: str, value: Any, origin: str) -> Any:
    """Tables and lists of names in their final form; everything else as it came."""
    if name in ("repeat", "hold"):
        return [each.strip() for each in value.split(",")] if isinstance(value, str) else list(value)
    if name == "serve":
        return serve_words(value, origin)
    if isinstance(value, Adaptive):
        return str(value)
    if name in ("epoch", "sink_patience") and isinstance(value, int | float | timedelta):
        return format_span(_span_us(name, value, origin))
    if name == "drop" and isinstance(value, str):
        return [each.strip() for each in value.split(",") if each.strip()]
    if name not in ("spark", "vars"):
        return os.fspath(value) if isinstance(value, os.PathLike) else value
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value.encode(), type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise SettingsError(
                f"{name} is no table", where=origin, expected='JSON like {"a": "b"}', found=f"{value!r}: {error}"
            ) from error
    if not isinstance(value, Mapping):
        raise SettingsError(f"{name} is no table", where=origin, expected="names and values", found=repr(value))
    if name == "vars":
        return {str(key): _text(each) for key, each in value.items()}
    flat = _flatten(value, "")
    return {key if key.startswith("spark.") else f"spark.{key}": each for key, each in flat.items()}


def _span_us(name: str, value: Any, origin: str = "") -> int:
    try:
        return span_us(value, what=f"the setting {name!r}")
    except ProgramError as error:
        raise SettingsError(
            error.what, where=origin, expected=error.expected, found=error.found, next_move=error.next_move
        ) from error


def _flatten(table: Mapping[str, Any], prefix: str) -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = _text(value)
    return flat


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _merge(into: dict[str, Any], name: str, value: Any) -> None:
    if name == "spark" and "spark.master" in value:
        value = dict(value)
        into["master"] = value.pop("spark.master")
    if isinstance(value, dict):
        into[name] = {**into.get(name, {}), **value}
    else:
        into[name] = value


def _convert(values: dict[str, Any], layers: list[Layer]) -> Settings:
    try:
        return msgspec.convert(values, Settings, strict=False)
    except msgspec.ValidationError as error:
        name = str(error).rpartition("$.")[2].strip("`") if "$." in str(error) else ""
        origins = [layer.origin for layer in layers if name in layer.values]
        raise SettingsError(
            f"the setting {name!r} has the wrong form" if name else "a setting has the wrong form",
            where=origins[-1] if origins else "",
            expected=str(error).partition(" - ")[0],
            found=repr(values.get(name)),
        ) from error


def _checked(settings: Settings, app: str) -> Settings:
    """Settings whose values make sense, with the app's name in the store's."""
    _span_us("sink_patience", settings.sink_patience)
    parse_pace(settings.epoch)
    groups = settings.key_groups
    if groups < 1 or groups & (groups - 1):
        raise SettingsError("the setting 'key_groups' has to be a power of two", found=str(groups), next_move="use 128")
    if not 1 <= settings.parallelism <= groups:
        raise SettingsError(
            "the setting 'parallelism' is out of range",
            expected=f"1 to {groups}, the number of key groups",
            found=str(settings.parallelism),
            next_move="choose fewer shards; key_groups can be raised for a new store only"
            if settings.parallelism > groups
            else "one shard is the least: parallelism=1",
        )
    parse_retention(settings.retain)
    if settings.restarts < 0:
        raise SettingsError(
            "the setting 'restarts' cannot be below zero",
            expected="0 or more",
            found=str(settings.restarts),
            next_move="restarts=0 ends the run at its first failure",
        )
    if settings.start_from and settings.fresh:
        raise SettingsError(
            "a run begins from nothing or from an earlier epoch, not both",
            expected="fresh (--fresh) or start_from (--from)",
            found=f"fresh, and start_from={settings.start_from!r}",
            next_move="leave one of them out",
        )
    if not settings.start_from and (settings.repeat or settings.hold or settings.again):
        raise SettingsError(
            "nothing says which epoch to go back to",
            expected="start_from (--from) beside repeat, hold and again",
            found=", ".join(name for name in ("repeat", "hold", "again") if getattr(settings, name)),
            next_move="add --from with a savepoint, an epoch or a time; `headrace savepoints STORE` lists them",
        )
    if settings.original_lost and (settings.start_from or settings.fresh):
        raise SettingsError(
            "a copy goes on behind the epoch that it has, and nowhere else",
            expected="original_lost (--original-lost) alone",
            found=f"start_from={settings.start_from!r} beside it" if settings.start_from else "fresh beside it",
            next_move="leave one of them out",
        )
    if not settings.store.strip():
        raise SettingsError("the setting 'store' is empty", next_move="name a folder or a URL")
    return msgspec.structs.replace(settings, store=settings.store.replace("{app}", app))
