"""A schema registry with the REST interface of Confluent's, as far as clients of schemas use it; in this process.

It keeps schemas under ids and versions of subjects, refuses what does not go with the newest version of a subject
(Avro: a new field without a default; by hand: `refuse`), asks for a login where it has one, and can be away.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

Answer = tuple[int, Any]


def _error(status: int, code: int, message: str) -> Answer:
    return status, {"error_code": code, "message": message}


class FakeRegistry:
    def __init__(self, login: str | None = None) -> None:
        self.login = login
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.refuse: set[str] = set()
        self.asked: list[str] = []
        """Method and path of each request."""
        self.away = False
        handler = type("Handler", (_Handler,), {"registry": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add(self, subject: str, schema: str, kind: str = "AVRO", references: Any = ()) -> int:
        """Registers a schema, whatever came before it."""
        body = {"schema": schema, "schemaType": kind, "references": list(references)}
        found = next((id for id, each in self.schemas.items() if each == body), None)
        id = found or len(self.schemas) + 1
        self.schemas[id] = body
        versions = self.subjects.setdefault(subject, [])
        if id not in versions:
            versions.append(id)
        return id

    def answer(self, method: str, path: list[str], body: Any) -> Answer:
        match method, path:
            case "GET", ["schemas", "ids", id]:
                schema = self.schemas.get(int(id))
                return _error(404, 40403, "Schema not found") if schema is None else (200, schema)
            case "POST", ["subjects", subject, "versions"]:
                return self._register(subject, body)
            case "POST", ["subjects", subject]:
                return self._find(subject, body)
            case "GET", ["subjects", subject, "versions", version]:
                return self._version(subject, version)
        return _error(404, 404, "HTTP 404 Not Found")

    def _register(self, subject: str, body: dict[str, Any]) -> Answer:
        versions = self.subjects.get(subject, [])
        schema, kind = body["schema"], body.get("schemaType", "AVRO")
        known = any(self.schemas[id]["schema"] == schema for id in versions)
        newest = self.schemas[versions[-1]]["schema"] if versions and not known else None
        if subject in self.refuse or (newest is not None and kind == "AVRO" and _lacks_default(newest, schema)):
            return _error(
                409,
                409,
                "Schema being registered is incompatible with an earlier schema for subject "
                f'"{subject}", details: READER_FIELD_MISSING_DEFAULT_VALUE',
            )
        return 200, {"id": self.add(subject, schema, kind, body.get("references") or ())}

    def _find(self, subject: str, body: dict[str, Any]) -> Answer:
        if subject not in self.subjects:
            return _error(404, 40401, f"Subject '{subject}' not found.")
        for number, id in enumerate(self.subjects[subject], 1):
            if self.schemas[id]["schema"] == body["schema"]:
                return 200, {"subject": subject, "id": id, "version": number, **self.schemas[id]}
        return _error(404, 40403, "Schema not found")

    def _version(self, subject: str, version: str) -> Answer:
        versions = self.subjects.get(subject)
        if not versions:
            return _error(404, 40401, f"Subject '{subject}' not found.")
        number = len(versions) if version == "latest" else int(version)
        if not 1 <= number <= len(versions):
            return _error(404, 40402, f"Version {version} not found.")
        id = versions[number - 1]
        return 200, {"subject": subject, "id": id, "version": number, **self.schemas[id]}


def _lacks_default(old: str, new: str) -> bool:
    known = {field["name"] for field in json.loads(old).get("fields", ())}
    return any(each["name"] not in known and "default" not in each for each in json.loads(new).get("fields", ()))


class _Handler(BaseHTTPRequestHandler):
    registry: FakeRegistry

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: Any) -> None:
        said = urlsplit(self.path)
        self.registry.asked.append(f"{self.command} {said.path}")
        if self.registry.away:
            status, content = _error(503, 50301, "the registry starts")
        elif not self._let_in():
            status, content = _error(401, 401, "Unauthorized")
        else:
            path = [unquote(part) for part in said.path.strip("/").split("/")]
            status, content = self.registry.answer(self.command, path, body)
            serialized = parse_qs(said.query).get("format") == ["serialized"]
            assert status != 200 or content.get("schemaType") != "PROTOBUF" or serialized or self.command == "POST"
        told = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)

    def _let_in(self) -> bool:
        login = self.registry.login
        if login is None:
            return True
        return self.headers.get("Authorization") == f"Basic {base64.b64encode(login.encode()).decode()}"

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads what it would say."""


@contextmanager
def running_registry(login: str | None = None) -> Iterator[FakeRegistry]:
    registry = FakeRegistry(login)
    try:
        yield registry
    finally:
        registry.close()
