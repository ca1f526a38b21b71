"""Structured logs: JSON lines in a cluster, colours on a terminal."""

from __future__ import annotations

import logging
import sys
from typing import Any

import msgspec
import structlog


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
        renderer: list[Any] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(_encode)]
    else:
        renderer = [structlog.dev.ConsoleRenderer()]
    threshold = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers = [handler]
    # Libraries narrate at info (one line per request); their warnings are enough.
    root.setLevel(max(threshold, logging.WARNING))


def _encode(value: Any, **_: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()
