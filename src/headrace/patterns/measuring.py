"""The operator between a pattern and a ``select``: of each match, what the expressions ask, as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.model.batch import Rows
from headrace.operators.contract import Operator
from headrace.patterns.checks import MATCH
from headrace.patterns.measures import Measure, MeasureReader
from headrace.patterns.rules.rows import RULE_FIELDS, stage_rows

if TYPE_CHECKING:
    from headrace.model.batch import Keys
    from headrace.model.rows import RowCodec


class MeasureOperator(Operator):
    """Computes measures for all matches of a batch at once."""

    def __init__(
        self, step: str, measures: tuple[tuple[str, Measure], ...], taken: RowCodec, codec: RowCodec, *, by_rule: bool
    ) -> None:
        """``by_rule``: matches are those of rules, whose stages differ."""
        super().__init__(step)
        self.measures = measures
        self.codec = codec
        self._by_rule = by_rule
        self._readers = [MeasureReader(measure, taken, f"step {step}") for _, measure in measures]

    def process(self, port: int, rows: Rows, keys: Keys | None) -> None:
        self.report.rows_in += len(rows)
        if len(rows):
            matches = rows.objects
            columns = [
                column.encode(self._values(reader, matches))
                for column, reader in zip(self.codec.columns.values(), self._readers, strict=True)
            ]
            self.emit(Rows.of_columns(self.codec, columns, rows.times))

    def _values(self, reader: MeasureReader, matches: list[Any]) -> list[Any]:
        stage = reader.measure.stage
        if stage == MATCH:
            assert reader.measure.text is not None
            of_rule = reader.measure.text in RULE_FIELDS and self._by_rule
            return [getattr(match if of_rule else match.match, reader.measure.text) for match in matches]
        if self._by_rule:
            return reader.of_many([stage_rows(match, stage) for match in matches])
        rows = [getattr(match, stage) for match in matches]
        return reader.of_many([each if isinstance(each, list) else [] if each is None else [each] for each in rows])
