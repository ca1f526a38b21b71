"""`/api/v1/cost/focus`: charges as a FOCUS file, for users who may read the costs of all namespaces."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from starlette.responses import Response

from kgwe.costing.focus.columns import list_columns, parse_version
from kgwe.costing.money import DAY_S
from kgwe.costing.reports.texts import write_csv
from kgwe.httpapi import problems
from kgwe.httpapi.cost_reader import READ_COST
from kgwe.httpapi.routes import Route
from kgwe.store.ledger.focus import load_focus_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.httpapi.authentication import User
    from kgwe.httpapi.authorization import Authorizer
    from kgwe.store.ledger.ledger import Ledger

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Disposition": 'attachment; filename="kgwe-focus.csv"',
    "X-Content-Type-Options": "nosniff",
}


class FocusQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of `/api/v1/cost/focus`."""

    days: Annotated[int, msgspec.Meta(ge=1, le=366, description="Days before the last count.")] = 30
    version: Literal["1.2", "1.3"] = "1.2"
    period: Annotated[Literal["hour", "day"], msgspec.Meta(description="Length of a charge.")] = "hour"


class FocusRoutes:
    """Writes FOCUS files."""

    def __init__(self, ledger: Callable[[], Ledger], authorizer: Authorizer) -> None:
        """`ledger`: opens the cost ledger, called in a thread; Transient while there is none."""
        self._ledger = ledger
        self._authorizer = authorizer
        self._writing = asyncio.Lock()

    def list_routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route(
                "/api/v1/cost/focus",
                "Charges as a FOCUS file",
                FocusQuery,
                str,
                self.write,
                "cost",
                media_type="text/csv",
            )
        ]

    async def write(self, user: User, query: FocusQuery) -> Response:
        """Return the file. Its rows sum to the fleet, so it needs rights in all namespaces."""
        if not await self._authorizer.may(user, READ_COST):
            raise problems.forbidden("a FOCUS file has the costs of all namespaces: it needs get gpuworkloads in all")
        async with self._writing:
            text = await asyncio.to_thread(self._make_file, query)
        return Response(text, media_type="text/csv", headers=_HEADERS)

    def _make_file(self, query: FocusQuery) -> str:
        version = parse_version(query.version)
        with self._ledger() as ledger:
            rows = load_focus_rows(ledger, version, query.days * DAY_S, period=query.period)
        columns = list_columns(version)
        return write_csv([columns, *([row[name] or "" for name in columns] for row in rows)])
