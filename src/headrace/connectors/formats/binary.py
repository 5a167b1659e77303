"""Avro or Protobuf as a connector's user says it: the format by its name, a schema or none, a registry or none.

`BinaryFormat` is a description, as the source or sink is that holds it: it travels to the workers, and asks the
registry there. Reading takes the schemas that messages name, or the given one; writing takes the given schema, the
newest of the subject (``register=False``), or the one that the row type has.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from headrace.connectors.formats.fields import TreeField, row_fields
from headrace.connectors.formats.messages import RowDecoder, RowEncoder
from headrace.connectors.formats.misfits import SchemaMisfit, SchemaMistake
from headrace.connectors.formats.registry import NoSuchSchema, Registry, StoredSchema, open_registry
from headrace.errors import ProgramError
from headrace.model.packages import package

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec

BINARY: Final = ("avro", "protobuf")
SUBJECT: Final = "{topic}-value"
_SERIALIZED: Final = {"avro": "", "json": "", "protobuf": "serialized"}


@dataclass(frozen=True)
class BinaryFormat:
    format: str
    where: str
    registry: Registry | None = None
    given: StoredSchema | None = None
    """The schema that the user gave."""

    @classmethod
    def of(cls, format: str, schema: Any, registry: Any, where: str) -> BinaryFormat | None:
        """What the arguments of a source or sink say; None for other formats, which take neither."""
        if format not in BINARY and (format != "json" or registry is None):
            surplus = "schema" if schema is not None else "registry" if registry is not None else ""
            if surplus:
                raise ProgramError(
                    f"{surplus}= is for Avro and Protobuf, and with a registry for JSON",
                    where=where,
                    expected='format="avro" or format="protobuf", or format="json" with registry=',
                    found=f"format={format!r}",
                    next_move=f"leave {surplus}= out, or name the format",
                )
            return None
        opened = open_registry(registry, where)
        given = None if schema is None else _given_schema(format, schema, where)
        if format == "json":
            from headrace.connectors.formats.json_schema import RegisteredJson

            return RegisteredJson(format, where, opened, given)
        return cls(format, where, opened, given)

    def fields(self, codec: RowCodec, names: Collection[str]) -> tuple[TreeField, ...]:
        return row_fields(codec, names, self.format, self.where)

    # -- reading ----------------------------------------------------------------------------------------------------

    def check_reading(self, codec: RowCodec, names: Collection[str]) -> None:
        """Refuses a row type that no message can become, while the program is built."""
        fields = self.fields(codec, names)
        if self.registry is not None and self.given is not None:
            raise ProgramError(
                "a source has a registry or a schema",
                where=self.where,
                expected="registry=, whose schemas messages name, or schema=, for messages that name none",
                found="both",
                next_move="leave schema= out: the fields of the row type say what is read",
            )
        if self.registry is None:
            try:
                self._schemas(codec, fields).reader_of(self._own(codec, fields))
            except SchemaMisfit as misfit:
                raise self._refusal(misfit) from misfit

    def check_subject(self, subject: str, codec: RowCodec, names: Collection[str]) -> None:
        """Refuses a row type that the newest schema of a subject cannot become. Asks the registry."""
        if self.registry is None:
            return
        try:
            newest = self.registry.latest(subject, _SERIALIZED[self.format])
        except NoSuchSchema:
            return  # It may come with its first message, or under another name.
        try:
            self._schemas(codec, self.fields(codec, names)).reader_of(newest)
        except SchemaMisfit as misfit:
            raise self._refusal(misfit, f"subject {subject}, ") from misfit

    def decoder(self, codec: RowCodec, names: Collection[str]) -> RowDecoder:
        fields = self.fields(codec, names)
        return RowDecoder(fields, self._schemas(codec, fields))

    def _schemas(self, codec: RowCodec, fields: Sequence[TreeField]) -> Any:
        own = self._own(codec, fields) if self.registry is None else None
        return self._module.schemas_of(fields, self.registry, own)

    # -- writing ----------------------------------------------------------------------------------------------------

    def check_writing(self, codec: RowCodec, names: Collection[str]) -> None:
        """Refuses rows that the schema cannot say, as far as that is known while the program is built."""
        fields = self.fields(codec, names)
        schema = self._own(codec, fields)
        try:
            self._module.encoder_of(None, schema, fields)
        except SchemaMisfit as misfit:
            raise self._refusal(misfit) from misfit

    def resolve(
        self, subject: str, topic: str, register: bool, codec: RowCodec, names: Collection[str]
    ) -> StoredSchema:
        """The schema to write under, with its id where there is a registry."""
        own = self._own(codec, self.fields(codec, names))
        if self.registry is None:
            return own
        if self.given is None and not register:
            return self.registry.latest(subject.format(topic=topic, record=""), _SERIALIZED[self.format])
        name = subject.format(topic=topic, record=self._module.type_name_of(own))
        whole: StoredSchema = self._module.with_imports(self.registry, own, register)
        if register:
            return whole._replace(id=self.registry.register(name, whole))
        return self.registry.find(name, whole)

    def encoder(self, schema: StoredSchema, codec: RowCodec, names: Collection[str]) -> RowEncoder:
        """Raises SchemaMisfit where the rows have no place in the schema."""
        made: RowEncoder = self._module.encoder_of(self.registry, schema, self.fields(codec, names))
        return made

    # -- both -------------------------------------------------------------------------------------------------------

    def _own(self, codec: RowCodec, fields: Sequence[TreeField]) -> StoredSchema:
        """The given schema, or that of the row type."""
        if self.given is not None:
            return self.given
        name = getattr(codec.type, "__name__", "Row")
        derived: StoredSchema = self._module.derived_schema(name, fields)
        return derived

    @property
    def _module(self) -> ModuleType:
        return _module(self.format, self.where)

    def _refusal(self, misfit: SchemaMisfit, of: str = "") -> ProgramError:
        return ProgramError(
            "the row type and the schema do not go together",
            where=self.where,
            expected="fields that the schema has under the same names, with types that become one another",
            found=f"{of}{misfit}",
            next_move="give the field a default or another type, or its name in messages: hr.field(name=…)",
        )


def _given_schema(format: str, schema: Any, where: str) -> StoredSchema:
    try:
        given: StoredSchema = _module(format, where).given_schema(schema)
    except SchemaMistake as mistake:
        raise ProgramError(
            f"schema= is no schema of {format.capitalize()}",
            where=where,
            expected="a message class" if format == "protobuf" else "its text, or what its JSON says",
            found=str(mistake),
            next_move="correct it, or leave it out: the row type has a schema of its own",
        ) from mistake
    return given


def _module(format: str, where: str) -> ModuleType:
    if format == "avro":
        from headrace.connectors.formats.avro import messages as avro

        return avro
    if format == "json":
        from headrace.connectors.formats import json_schema

        return json_schema
    with package("protobuf", extra="protobuf", where=where):
        import google.protobuf  # noqa: F401
    from headrace.connectors.formats.protobuf import messages as protobuf

    return protobuf
