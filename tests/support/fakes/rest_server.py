"""A small HTTP server of JSON for stand-ins of clouds: a handler answers, and faults are injected before it."""

from __future__ import annotations

import json
import threading
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qsl, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class RestRequest:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any
    base: str
    """The address of the server."""


@dataclass
class RestAnswer:
    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class RestFault:
    """An answer instead of the next one."""

    answer: RestAnswer
    only_writes: bool = True


class RestHandler(Protocol):
    def handle(self, request: RestRequest) -> RestAnswer: ...


class RestServer:
    """Serves one handler on loopback. One request at a time."""

    def __init__(self, handler: RestHandler) -> None:
        self.faults: deque[RestFault] = deque()
        self.lost_answers = 0
        self.loses: Callable[[RestRequest], bool] = lambda _: True
        """Whether the answer to a write may get lost."""
        self.requests: list[RestRequest] = []
        self._handler = handler
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._make_handler())
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, request: RestRequest) -> RestAnswer | None:
        with self._lock:
            self.requests.append(request)
            is_write = request.method != "GET" and not request.path.endswith("/listManagedInstances")
            if self.faults and (is_write or not self.faults[0].only_writes):
                return self.faults.popleft().answer
            answer = self._handler.handle(request)
            if self.lost_answers and is_write and self.loses(request):
                self.lost_answers -= 1
                return None
            return answer

    def _make_handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                url = urlsplit(self.path)
                answer = server._answer(
                    RestRequest(
                        self.command,
                        url.path,
                        dict(parse_qsl(url.query)),
                        {key.lower(): value for key, value in self.headers.items()},
                        json.loads(text) if text else None,
                        f"http://{server.address}",
                    )
                )
                if answer is None:
                    self.close_connection = True
                    return
                body = b"" if answer.body is None else json.dumps(answer.body).encode()
                self.send_response(answer.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                for key, value in answer.headers.items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - names that http.server looks for

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        return Handler
