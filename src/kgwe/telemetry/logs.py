"""Structured logs: JSON lines in a cluster, colors on a terminal."""

from __future__ import annotations

import io
import logging
import sys
from typing import Any, TextIO, cast

import msgspec
import structlog

from kgwe.telemetry import redaction


class _Stderr(io.TextIOBase):
    """The current sys.stderr: loggers outlive a redirection of it."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


_STDERR = cast("TextIO", _Stderr())


def configure(*, level: str = "info", json: bool | None = None) -> None:
    """Send structlog and the standard library's loggers to stderr in one format."""
    if json is None:
        json = not sys.stderr.isatty()
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if json:
        renderer: list[Any] = [
            structlog.processors.format_exc_info,
            redaction.redact_event,
            structlog.processors.JSONRenderer(_encode),
        ]
    else:
        renderer = [redaction.redact_event, structlog.dev.ConsoleRenderer()]
    threshold = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.PrintLoggerFactory(_STDERR),
        cache_logger_on_first_use=True,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer]
    )
    handler = logging.StreamHandler(_STDERR)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers = [handler]
    # Libraries log each request at info; their warnings are enough.
    root.setLevel(max(threshold, logging.WARNING))


def _encode(value: Any, **_: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()
