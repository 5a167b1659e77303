"""A schema registry with Confluent's API, asked through Confluent's own client.

A schema never changes under its id, so each is asked for once per process and then remembered, whatever becomes of the
registry. Nothing connects before it is asked. Errors are told apart by whether trying again can help
(`EpochFailed`) or somebody has to change something first (`SettingsError`); a sink makes errors of its own of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from headrace.connectors.secret_text import hide_secrets, plain_text
from headrace.errors import EpochFailed, HeadraceError, ProgramError, SettingsError
from headrace.model.packages import package

_PATIENCE: Final[Mapping[str, Any]] = {
    "timeout": 10,
    "max.retries": 2,
    "retries.wait.ms": 200,
    "retries.max.wait.ms": 1000,
}
"""What an answer may take, where the user says nothing else: whoever asks tries again anyway."""
_NOT_FOUND: Final = (404,)
_INCOMPATIBLE: Final = 409
_UNPROCESSABLE: Final = 422

_clients: dict[tuple[tuple[str, Any], ...], Any] = {}
_schemas: dict[tuple[tuple[tuple[str, Any], ...], int, str], StoredSchema] = {}


_LOGIN: Final = re.compile(r"//[^/@]*@")


class Reference(NamedTuple):
    name: str
    subject: str
    version: int


class StoredSchema(NamedTuple):
    """A schema of the registry."""

    id: int
    kind: str
    """AVRO, PROTOBUF or JSON."""
    text: str
    references: tuple[Reference, ...] = ()
    path: tuple[int, ...] = ()
    """Of Protobuf: which message type of the file it is about, and which within that."""
    imports: tuple[str, ...] = ()
    """Of Protobuf: the files that it imports, as long as they are no references; each behind those that it imports."""
    version: int = 0
    """Of a subject, where it was asked for by that."""


class NoSuchSchema(SettingsError):
    """The registry does not know a schema, a subject or a version."""


@dataclass(frozen=True)
class Registry:
    """Where the registry is, and as whom it is asked: the client's own options, secrets among them."""

    options: Mapping[str, Any]
    where: str

    @property
    def url(self) -> str:
        """For people: without a name and a password."""
        url = self.options["url"]
        return repr(url) if type(url) is not str else repr(_LOGIN.sub("//", url))

    def schema(self, id: int, form: str = "") -> StoredSchema:
        """The schema with this id. `form`: how Protobuf is to be told, ``serialized``."""
        key = (self._key(), id, form)
        if key not in _schemas:
            answer = self._ask(f"schema {id}", lambda client: client.get_schema(id, fmt=form or None))
            _schemas[key] = _stored(id, answer)
        return _schemas[key]

    def latest(self, subject: str, form: str = "") -> StoredSchema:
        """The newest schema of a subject."""

        def newest(client: Any) -> Any:
            # The client would give the one that was the newest when it was asked first.
            client.clear_latest_caches()
            return client.get_latest_version(subject, fmt=form or None)

        answer = self._ask(f"subject {subject}", newest)
        return _stored(answer.schema_id, answer.schema)

    def version(self, reference: Reference, form: str = "") -> StoredSchema:
        """What a schema refers to."""
        what = f"version {reference.version} of subject {reference.subject}"
        answer = self._ask(
            what, lambda client: client.get_version(reference.subject, reference.version, fmt=form or None)
        )
        return _stored(answer.schema_id, answer.schema)

    def register(self, subject: str, schema: StoredSchema) -> int:
        """Makes it a schema of the subject, unless it is one; its id."""
        made = self._client_schema(schema)
        id: int = self._ask(f"subject {subject}", lambda client: client.register_schema(subject, made))
        return id

    def find(self, subject: str, schema: StoredSchema) -> StoredSchema:
        """A schema that the subject has, with its id and version there."""
        made = self._client_schema(schema)
        try:
            answer = self._ask(f"subject {subject}", lambda client: client.lookup_schema(subject, made))
        except NoSuchSchema as error:
            raise NoSuchSchema(
                f"the subject {subject} does not have this schema", where=self.where, found=error.found
            ) from error
        return schema._replace(id=answer.schema_id, version=answer.version)

    def _client_schema(self, schema: StoredSchema) -> Any:
        with package("confluent-kafka[schemaregistry]", extra="registry", where=self.where):
            from confluent_kafka.schema_registry import Schema, SchemaReference
        references = [SchemaReference(*reference) for reference in schema.references]
        return Schema(schema.text, schema.kind, references)

    def _key(self) -> tuple[tuple[str, Any], ...]:
        return tuple(sorted((name, plain_text(value)) for name, value in self.options.items()))

    def _client(self) -> Any:
        client = _clients.get(self._key())
        if client is None:
            with package("confluent-kafka[schemaregistry]", extra="registry", where=self.where):
                from confluent_kafka.schema_registry import SchemaRegistryClient
            try:
                client = SchemaRegistryClient(
                    {**_PATIENCE, **{name: plain_text(v) for name, v in self.options.items()}}
                )
            except (ValueError, TypeError, OSError) as error:
                raise ProgramError(
                    "the client of the schema registry refuses its options",
                    where=self.where,
                    expected='registry="http://host:8081", or a dict of the client\'s options with "url" among them',
                    found=hide_secrets(str(error), self.options),
                    next_move="correct registry=",
                ) from error
            _clients[self._key()] = client
        return client

    def _ask(self, what: str, question: Any) -> Any:
        client = self._client()
        from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError

        try:
            return question(client)
        except SchemaRegistryError as error:
            raise self._refusal(what, error) from error
        except OAuthTokenError as error:
            raise self._away(what, error) from error
        except Exception as error:
            # The client speaks HTTP by one of two packages, and lets their errors through.
            if type(error).__module__.split(".")[0] in ("httpx", "httpx2", "httpcore", "httpcore2", "ssl"):
                raise self._away(what, error) from error
            raise

    def _away(self, what: str, error: Exception) -> EpochFailed:
        return EpochFailed(
            f"the schema registry does not answer, asked for {what}",
            where=self.where,
            expected=f"a schema registry at {self.url}",
            found=hide_secrets(_LOGIN.sub("//", f"{type(error).__name__}: {error}"), self.options),
            next_move="start the registry, or correct registry=…",
        )

    def _refusal(self, what: str, error: Any) -> HeadraceError:
        status = error.http_status_code
        said = hide_secrets(f"{error.error_message} (HTTP {status})", self.options)
        if status in (401, 403):
            return SettingsError(
                "the schema registry refuses the login",
                where=self.where,
                expected=f"a user who may read {what}",
                found=said,
                next_move='correct registry={"url": …, "basic.auth.user.info": hr.secret(…)}',
            )
        if status in _NOT_FOUND:
            return NoSuchSchema(f"the schema registry has no {what}", where=self.where, found=said)
        if status == _INCOMPATIBLE:
            return SettingsError(
                f"the schema does not go with the earlier ones of {what}",
                where=self.where,
                expected="a schema that the subject's compatibility level allows",
                found=said,
                next_move="give new fields a default and keep the others, write to another subject (subject=…), or "
                "change the level of the subject in the registry",
            )
        if status == _UNPROCESSABLE or status < 500:
            return SettingsError(
                f"the schema registry refuses {what}", where=self.where, found=said, next_move="correct the schema"
            )
        return self._away(what, error)


def open_registry(given: Any, where: str) -> Registry | None:
    """What ``registry=`` says: a URL, or the client's options."""
    if given is None:
        return None
    options = {"url": given} if isinstance(given, str) else given
    if not isinstance(options, Mapping) or not isinstance(options.get("url"), str) or not options["url"]:
        raise ProgramError(
            "registry= names a schema registry",
            where=where,
            expected='registry="http://host:8081", or registry={"url": …, "basic.auth.user.info": hr.secret("LOGIN")}',
            found=repr(given),
            next_move="give its URL",
        )
    return Registry(dict(options), where)


def _stored(id: int, schema: Any) -> StoredSchema:
    references = tuple(Reference(each.name, each.subject, each.version) for each in schema.references or ())
    return StoredSchema(id, schema.schema_type or "AVRO", schema.schema_str, references)
