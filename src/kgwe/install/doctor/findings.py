"""What a check found, and how it is shown."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import msgspec

from kgwe import errors
from kgwe.kube.client.client import Forbidden

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.kube.client.client import KubeClient


class Level(enum.StrEnum):
    OK = "ok"
    #: the check does not apply here
    SKIPPED = "skipped"
    #: not known: a right is missing, or something does not answer
    UNKNOWN = "unknown"
    WARNING = "warning"
    ERROR = "error"


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One sentence about one thing, and what to do about it."""

    check: str
    level: Level
    message: str
    fix: str = ""


class Cluster:
    """Reads objects of any kind as they are, without types."""

    def __init__(self, client: KubeClient, namespace: str, node_namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self.node_namespace = node_namespace

    async def get(self, path: str) -> dict[str, Any] | None:
        """Return an object; None if it does not exist."""
        try:
            found: dict[str, Any] = msgspec.json.decode(await self.client.request("GET", path))
        except errors.NotFound:
            return None
        return found

    async def list(self, path: str, **params: str) -> list[dict[str, Any]]:
        """Return all objects of a kind; none if the kind does not exist."""
        items: list[dict[str, Any]] = []
        query = {"limit": "500", **params}
        while True:
            try:
                page = msgspec.json.decode(await self.client.request("GET", path, params=query))
            except errors.NotFound:
                return items
            items += page.get("items") or []
            if not (token := page["metadata"].get("continue")):
                return items
            query = {**query, "continue": token}

    def deployment_path(self, name: str = "") -> str:
        base = f"/apis/apps/v1/namespaces/{self.namespace}/deployments"
        return f"{base}/{name}" if name else base


def describe_error(check: str, exc: Exception) -> Finding:
    """A check that could not be made."""
    fix = "run doctor as a cluster administrator" if isinstance(exc, Forbidden) else "run doctor again"
    return Finding(check, Level.UNKNOWN, str(exc), fix)


_SIGNS = {Level.OK: "ok", Level.SKIPPED: "-", Level.UNKNOWN: "?", Level.WARNING: "WARNING", Level.ERROR: "ERROR"}


def format_table(findings: Sequence[Finding]) -> str:
    """Return one line per finding, with the advice below it."""
    width = max((len(each.check) for each in findings), default=0)
    lines = []
    for each in findings:
        lines.append(f"{_SIGNS[each.level]:<8} {each.check:<{width}}  {each.message}")
        if each.fix:
            lines.append(f"{'':<8} {'':<{width}}  -> {each.fix}")
    counts = {level: sum(each.level is level for each in findings) for level in Level}
    lines.append(
        f"\n{counts[Level.OK]} ok, {counts[Level.WARNING]} warnings, {counts[Level.ERROR]} errors,"
        f" {counts[Level.UNKNOWN]} unknown"
    )
    return "\n".join(lines) + "\n"
