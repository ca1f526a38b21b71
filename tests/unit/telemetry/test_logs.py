"""Logs: one format for ours and the libraries', and no stream held that somebody may close."""

import io
import json
import logging
import sys

import pytest
import structlog

from kgwe.telemetry import logs


@pytest.fixture(autouse=True)
def _restored():
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level


def test_ours_and_the_libraries_lines_are_json(monkeypatch):
    monkeypatch.setattr(sys, "stderr", out := io.StringIO())
    logs.configure(level="info", json=True)
    structlog.get_logger("ours").info("placed", node="n1")
    structlog.get_logger("ours").debug("not shown")
    logging.getLogger("theirs").warning("careful: %s", "x")
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert (first["event"], first["node"], first["level"]) == ("placed", "n1", "info")
    assert (second["event"], second["level"]) == ("careful: x", "warning")


def test_a_logger_survives_the_stream_it_was_configured_on(monkeypatch):
    monkeypatch.setattr(sys, "stderr", closed := io.StringIO())
    logs.configure(json=True)
    log = structlog.get_logger("survivor")
    log.info("first")
    closed.close()
    monkeypatch.setattr(sys, "stderr", out := io.StringIO())
    log.info("second")
    logging.getLogger("theirs").warning("third")
    assert "second" in out.getvalue()
    assert "third" in out.getvalue()
