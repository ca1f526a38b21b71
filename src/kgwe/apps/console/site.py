"""The pages: built files with headers that let a browser run nothing else. Every other path is the one page."""

from __future__ import annotations

import hashlib
import mimetypes
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from starlette.responses import Response
from starlette.routing import Route

from kgwe.httpapi import problems

if TYPE_CHECKING:
    from starlette.requests import Request

#: where `make console` puts the built pages
BUILT: Final = Path(__file__).parent / "static"
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
        " font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
        " require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_HSTS: Final = "max-age=31536000"
_NOT_BUILT: Final = (
    "<!doctype html><title>KGWE</title><h1>The pages are not built</h1>"
    "<p>Run <code>make console</code> (it needs Node or access to PyPI and npm), then start the console again."
    " The HTTP API works without them: see <a href=/openapi.json>/openapi.json</a>.</p>"
)
_FOREVER: Final = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    packed: bytes
    media_type: str
    etag: str


class Site:
    """Files of a directory, read once."""

    def __init__(self, directory: Path, *, secure: bool = True) -> None:
        self._headers = {**HEADERS, **({"Strict-Transport-Security": _HSTS} if secure else {})}
        self._files = dict(_read_files(directory)) if directory.is_dir() else {}

    @property
    def is_built(self) -> bool:
        return "index.html" in self._files

    def list_routes(self) -> list[Route]:
        """Return the routes; they match everything that no route of the API matches."""
        return [Route("/{path:path}", self._answer, methods=["GET", "HEAD"])]

    async def _answer(self, request: Request) -> Response:
        path = request.path_params["path"]
        if path.startswith("api/"):
            problem = problems.not_found("GET /openapi.json lists the paths")
            return Response(
                b'{"title":"Not Found","status":404,"detail":"GET /openapi.json lists the paths"}',
                problem.status,
                media_type="application/problem+json",
                headers=self._headers,
            )
        file = self._files.get(path)
        if file is None and "." in path.rpartition("/")[2]:
            return Response("not found", 404, headers=self._headers, media_type="text/plain")
        cache = _FOREVER if file is not None and path.startswith("assets/") else "no-cache"
        file = file or self._files.get("index.html")
        if file is None:
            return Response(_NOT_BUILT, 503, headers=self._headers, media_type="text/html")
        headers = {**self._headers, "Cache-Control": cache, "ETag": file.etag, "Vary": "Accept-Encoding"}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(file.packed, headers=headers | {"Content-Encoding": "gzip"}, media_type=file.media_type)
        return Response(file.body, headers=headers, media_type=file.media_type)


def _read_files(directory: Path) -> list[tuple[str, _File]]:
    import gzip  # noqa: PLC0415 - only while files are read

    found = []
    for path in sorted(directory.rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            body = path.read_bytes()
            kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
            digest = hashlib.blake2b(body, digest_size=16).hexdigest()
            found.append(
                (str(path.relative_to(directory)), _File(body, gzip.compress(body, 9, mtime=0), kind, f'"{digest}"'))
            )
    return found
