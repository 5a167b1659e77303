"""``SET 'key' = 'value'``: which settings of a run a program may say itself, and Flink's names for them.

What is said here counts more than ``headrace.toml`` and less than the environment and the command line. Where state is
kept, who may take over and what is given up are for whoever starts the program, and cannot be said in its text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from headrace.dataflow.naming import check_name
from headrace.errors import ProgramError
from headrace.model.nearest import did_you_mean
from headrace.model.time import span_us
from headrace.tables.options import plain_value, read_span
from headrace.tables.statements import OptionValue

NAME: Final = "name"
STATE_TTL: Final = "state.ttl"
RESULT: Final = "result"
EARLY: Final = "emit.early"
ALLOW_LATE: Final = "emit.allow-late"
_RUN: Final = {
    "epoch": "epoch",
    "execution.checkpointing.interval": "epoch",
    "parallelism": "parallelism",
    "parallelism.default": "parallelism",
    "store": "store",
    "state.checkpoints.dir": "store",
    "key-groups": "key_groups",
    "pipeline.max-parallelism": "key_groups",
    "retain": "retain",
    "state.checkpoints.num-retained": "retain",
    "restarts": "restarts",
    "sink-patience": "sink_patience",
}
"""What a program may say → the setting of a run."""
_OWN: Final = {
    NAME: NAME,
    "pipeline.name": NAME,
    STATE_TTL: STATE_TTL,
    "table.exec.state.ttl": STATE_TTL,
    EARLY: EARLY,
    "table.exec.emit.early-fire.delay": EARLY,
    ALLOW_LATE: ALLOW_LATE,
    "table.exec.emit.allow-lateness": ALLOW_LATE,
    RESULT: RESULT,
    "sql-client.execution.result-mode": RESULT,
}
_REFUSED: Final = {
    "execution.runtime-mode": "bounded input ends by itself: headrace run … --until drained",
    "table.local-time-zone": "times are points in time, in UTC; from_utc_timestamp(at, 'Europe/Berlin') shows others",
    "table.exec.emit.early-fire.enabled": "SET 'emit.early' = '1s' says it alone",
    "table.exec.emit.late-fire.enabled": "SET 'emit.allow-late' = '1h' says it alone",
    "table.exec.mini-batch.enabled": "an epoch is a batch always: SET 'epoch' = '1s' makes it longer",
    "execution.state-recovery.path": "headrace run … --from SAVEPOINT",
}
_SPARK: Final = "spark."
_SPANS: Final = ("epoch", "sink-patience", STATE_TTL, EARLY, ALLOW_LATE)


@dataclass
class ScriptSettings:
    """What a program says of its own run."""

    said: dict[str, str] = field(default_factory=dict)
    """By our names."""

    def set(self, key: str, value: OptionValue, found: str) -> None:
        name = self._name(key, found)
        text = str(plain_value(value))
        if (name in _SPANS and name != "epoch") or (name == "epoch" and not text.startswith("adaptive")):
            text = read_span(text)
        if name == NAME:
            check_name(text, "an app", "")
        if name == RESULT and text not in ("table", "changelog", "tableau"):
            raise ProgramError(f"results cannot be shown as {text!r}", expected="table or changelog", found=found)
        self.said[name] = text

    def reset(self, key: str) -> None:
        if key:
            self.said.pop(self._name(key, key), None)
        else:
            self.said.clear()

    def rows(self) -> list[tuple[str, str]]:
        return sorted(self.said.items())

    @property
    def state_ttl(self) -> str | None:
        """For how long joins without a limit keep rows; None: for ever."""
        ttl = self.said.get(STATE_TTL)
        return None if ttl is None or not span_us(ttl) else ttl

    @property
    def emits(self) -> dict[str, str]:
        """When windows give results beside the one at their end."""
        said = {"early": self.said.get(EARLY), "allow_late": self.said.get(ALLOW_LATE)}
        return {name: span for name, span in said.items() if span is not None and span_us(span)}

    @property
    def as_changelog(self) -> bool:
        return self.said.get(RESULT) == "changelog"

    def run_settings(self) -> dict[str, Any]:
        """The settings of a run, by their own names."""
        settings: dict[str, Any] = {_RUN[name]: text for name, text in self.said.items() if name in _RUN}
        spark = {name: text for name, text in self.said.items() if name.startswith(_SPARK)}
        return {**settings, **({"spark": spark} if spark else {})}

    def _name(self, key: str, found: str) -> str:
        low = key.lower().replace("_", "-") if not key.startswith(_SPARK) else key
        if low in _OWN:
            return _OWN[low]
        if low in _RUN:
            return _RUN[low].replace("_", "-")
        if low.startswith(_SPARK):
            return key
        known = [*_OWN, *_RUN]
        raise ProgramError(
            f"there is no setting {key!r} that a program can say",
            expected=f"one of {', '.join(sorted({*_OWN.values(), *(n.replace('_', '-') for n in _RUN.values())}))}, "
            "or an option of Spark: 'spark.…'",
            found=found,
            next_move=_REFUSED.get(low) or did_you_mean(low, known, "say it at the start: headrace run --help"),
        )
