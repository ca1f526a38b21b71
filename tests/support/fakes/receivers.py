"""Servers on loopback that receive notifications."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from aiosmtpd.smtp import SMTP, AuthResult

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@dataclass
class Answer:
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b"ok"


@dataclass
class Request:
    path: str
    headers: dict[str, str]
    body: bytes


class HttpReceiver:
    """Remembers requests, and answers with what a test has prepared, otherwise with 200."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.answers: deque[Answer] = deque()
        self.released = threading.Event()
        self.released.set()
        self.url = ""

    @contextmanager
    def serve(self) -> Iterator[HttpReceiver]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), self._make_handler())
        self.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            self.released.set()
            server.shutdown()
            server.server_close()
            thread.join()

    def _make_handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.requests.append(Request(self.path, dict(self.headers), body))
                receiver.released.wait()
                answer = receiver.answers.popleft() if receiver.answers else Answer()
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        return Handler


class MailReceiver:
    """An SMTP server that remembers mails. `replies` are sent instead of accepting the recipient."""

    def __init__(self) -> None:
        self.mails: list[Any] = []
        self.replies: deque[str] = deque()
        self.password = b""
        self.port = 0

    @asynccontextmanager
    async def serve(self, **options: Any) -> AsyncIterator[MailReceiver]:
        if self.password:
            options |= {"authenticator": self._authenticate, "auth_required": True}
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: SMTP(self, hostname="localhost", **options), "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            await server.wait_closed()

    async def handle_RCPT(self, _server: Any, _session: Any, envelope: Any, address: str, _options: Any) -> str:  # noqa: N802
        if self.replies:
            return self.replies.popleft()
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802
        self.mails.append(envelope)
        return "250 OK"

    def _authenticate(self, _server: Any, _session: Any, _envelope: Any, _mechanism: str, data: Any) -> AuthResult:
        return AuthResult(success=data.password == self.password, handled=False)
