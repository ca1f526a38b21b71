"""Errors as replies: a status, and what to do, as a problem document (RFC 9457)."""

from __future__ import annotations

import msgspec

from kgwe import errors


class ProblemDocument(msgspec.Struct, frozen=True):
    """What a reply with an error says."""

    title: str
    status: int
    detail: str = ""


class Problem(errors.KgweError):
    """An error in the response to a client."""

    def __init__(self, status: int, title: str, detail: str = "", headers: dict[str, str] | None = None) -> None:
        super().__init__(f"{title}: {detail}" if detail else title)
        self.status = status
        self.document = ProblemDocument(title, status, detail)
        self.headers = headers or {}


def bad_request(detail: str) -> Problem:
    """The client asked for something that cannot be answered."""
    return Problem(400, "Bad Request", detail)


def not_found(detail: str) -> Problem:
    """There is nothing, or the client may not see it."""
    return Problem(404, "Not Found", detail)


def forbidden(detail: str) -> Problem:
    return Problem(403, "Forbidden", detail)


def unauthorized(detail: str) -> Problem:
    return Problem(401, "Unauthorized", detail, {"WWW-Authenticate": "Bearer"})


def unavailable(detail: str) -> Problem:
    return Problem(503, "Service Unavailable", detail, {"Retry-After": "5"})


def too_many(retry_s: int) -> Problem:
    return Problem(429, "Too Many Requests", "slow down", {"Retry-After": str(max(retry_s, 1))})


def from_error(error: errors.KgweError) -> Problem:
    """Return the problem of an error of KGWE."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, errors.NotFound):
        return not_found(str(error))
    if isinstance(error, errors.Transient):
        return unavailable(str(error))
    return bad_request(str(error))
