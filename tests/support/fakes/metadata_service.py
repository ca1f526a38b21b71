"""A stand-in of the metadata services of AWS, GCP and Azure, with the paths, headers and bodies that they document."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN = "session-token"  # noqa: S105 - of a stand-in


@dataclass
class MetadataService:
    """What the services announce; a test sets it."""

    token: str = TOKEN
    action: dict[str, str] | None = None
    rebalance: dict[str, str] | None = None
    preempted: str = "FALSE"
    maintenance: str = "NONE"
    events: list[dict[str, Any]] = field(default_factory=list)
    vm: str = "pool_0"
    broken: str = ""
    """Body of every answer, instead of what is asked for."""
    status: int = 200
    url: str = ""
    tokens: int = 0

    def answer(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        if self.status != 200 or self.broken:
            return self.status, self.broken
        if path.startswith("/latest/"):
            return self._answer_aws(method, path, headers)
        if path.startswith("/computeMetadata/v1/"):
            if headers.get("metadata-flavor") != "Google":
                return 403, "Missing Metadata-Flavor:Google header."
            found = {"preempted": self.preempted, "maintenance-event": self.maintenance}
            return 200, found[path.rpartition("/")[2]]
        if headers.get("metadata") != "true":
            return 400, '{"error":"Bad request. Required metadata header not specified"}'
        if path.startswith("/metadata/instance/compute/name?"):
            return 200, self.vm
        if path == "/metadata/scheduledevents?api-version=2020-07-01":
            return 200, json.dumps({"DocumentIncarnation": 1, "Events": self.events})
        return 404, ""

    def _answer_aws(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        if path == "/latest/api/token":
            has_time = headers.get("x-aws-ec2-metadata-token-ttl-seconds", "").isdigit()
            self.tokens += 1
            return (200, self.token) if method == "PUT" and has_time else (400, "")
        if headers.get("x-aws-ec2-metadata-token") != self.token:
            return 401, "Unauthorized"
        found = {
            "/latest/meta-data/spot/instance-action": self.action,
            "/latest/meta-data/events/recommendations/rebalance": self.rebalance,
        }.get(path)
        return (200, json.dumps(found)) if found else (404, "Not Found")

    @contextmanager
    def serve(self) -> Iterator[MetadataService]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                headers = {key.lower(): value for key, value in self.headers.items()}
                status, text = service.answer(self.command, self.path, headers)
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_PUT = do_GET  # noqa: N815 - the name that http.server looks for

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        self.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
