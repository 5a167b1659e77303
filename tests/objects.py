"""An object store for tests: moto's S3 behind HTTP, on a port of its own, with faults that a test can order.

Requests are answered one after the other. moto looks for an object and then writes it; only so is a conditional put the
one step that it is in a real object store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from uuid import uuid4

Answer = Callable[..., Any]

ACCESS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@dataclass
class Fault:
    """What happens to the requests of a method whose path ends in a certain way, ``times`` times."""

    method: str
    path: str
    code: str
    status: str = "500 Internal Server Error"
    times: int = 1
    done: bool = False
    """Whether the request is carried out all the same, and only its answer is lost."""


@dataclass
class Faults:
    ordered: list[Fault] = field(default_factory=list)
    ignores_conditions: bool = False
    """As object stores did before they knew conditional puts."""

    def take(self, method: str, path: str) -> Fault | None:
        for fault in self.ordered:
            if fault.times and fault.method in ("*", method) and path.endswith(fault.path):
                fault.times -= 1
                return fault
        return None


class ObjectServer:
    """Serves until the block ends. ``seen`` are the requests, as text: ``PUT /bucket/key``."""

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import WSGIRequestHandler, make_server

        class Quiet(WSGIRequestHandler):
            def log(self, *_: Any, **__: Any) -> None:
                pass

        self.faults = Faults()
        self.seen: list[str] = []
        self._one = threading.Lock()
        self._moto: Answer = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=Quiet)
        self._thread = threading.Thread(target=self._server.serve_forever, name="objects", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def make_bucket(self) -> str:
        """A bucket that nobody else has."""
        import boto3

        name = f"bucket-{uuid4().hex[:12]}"
        client = boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name=ACCESS["AWS_DEFAULT_REGION"],
            aws_access_key_id=ACCESS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=ACCESS["AWS_SECRET_ACCESS_KEY"],
        )
        client.create_bucket(Bucket=name)
        client.close()
        return name

    def __enter__(self) -> ObjectServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        with self._one:
            self.seen.append(f"{method} {path}")
            fault = self.faults.take(method, path)
            if self.faults.ignores_conditions:
                environ.pop("HTTP_IF_NONE_MATCH", None)
            if fault is None:
                return list(self._moto(environ, start))
            if fault.done:
                list(self._moto(environ, lambda *_: lambda _: None))
            else:
                environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            body = f"<?xml version='1.0'?><Error><Code>{fault.code}</Code><Message>ordered</Message></Error>".encode()
            start(fault.status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
            return [b"" if method == "HEAD" else body]
