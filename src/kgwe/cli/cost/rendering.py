"""Statements in the format that a user asks for. All formats have the same values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from kgwe.costing.reports import page, texts
from kgwe.costing.reports.values import describe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.costing.statement import Statement


def render(statements: Sequence[Statement], output: str, more: dict[str, Any] | None = None) -> str:
    """Return the text of statements. JSON and YAML of one statement are an object, of several a list.

    `more`: values that JSON and YAML of one statement show beside it.
    """
    if output == "table":
        return texts.make_tables(statements)
    if output == "csv":
        return texts.make_csv(statements)
    if output == "html":
        return page.make_page(statements)
    values = [describe(each) for each in statements]
    body: Any = (values[0] | (more or {})) if len(values) == 1 else values
    return encode(body, output)


def encode(body: Any, output: str) -> str:
    """Return plain values as JSON or YAML."""
    if output == "json":
        return msgspec.json.format(msgspec.json.encode(body), indent=2).decode() + "\n"
    return msgspec.yaml.encode(body).decode()
