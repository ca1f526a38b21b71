"""`/api/v1/cost` and `/api/v1/budgets`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import msgspec

from kgwe.costing import money
from kgwe.costing.books import Dimension
from kgwe.costing.segments import PPM
from kgwe.httpapi import problems
from kgwe.httpapi.authorization import Right, find_readable
from kgwe.httpapi.paging import DEFAULT_LIMIT, Continue, Limit, cut_page
from kgwe.httpapi.routes import Route
from kgwe.httpapi.windows import parse_window
from kgwe.kube.api import timestamp
from kgwe.kube.api.kgwe.gpubudget import (  # noqa: TC001 - read by msgspec when it describes the reply
    GPUBudgetSpec,
    GPUBudgetStatus,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kgwe.costing.books import Books, Sums
    from kgwe.httpapi.authentication import User
    from kgwe.httpapi.authorization import Authorizer
    from kgwe.httpapi.cost_reader import CostReader
    from kgwe.kube.api.kgwe.gpubudget import GPUBudget

_READ_BUDGET = Right("get", "kgwe.nvidia.io", "gpubudgets")
Name = Annotated[str, msgspec.Meta(max_length=253)]
Amount = Annotated[str, msgspec.Meta(description="A decimal with six digits.")]


class CostQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of `/api/v1/cost`."""

    window: Annotated[
        str, msgspec.Meta(max_length=64, description="A length such as 7d, a name such as today, or two times.")
    ] = "7d"
    by: Annotated[Dimension, msgspec.Meta(description="What each line is about.")] = Dimension.NAMESPACE
    namespace: Annotated[Name, msgspec.Meta(description="Only pods of this namespace.")] = ""
    team: Annotated[Name, msgspec.Meta(description="Only pods of this team.")] = ""
    limit: Limit = DEFAULT_LIMIT
    mark: Continue = msgspec.field(default="", name="continue")


class CostLine(msgspec.Struct, frozen=True):
    """What one name cost. Used, idle and unmeasured sum to the cost."""

    name: str
    cost: Amount
    used: Amount
    idle: Amount
    unmeasured: Amount
    gpu_hours: float = msgspec.field(name="gpuHours")


class FleetBooks(msgspec.Struct, frozen=True):
    """What all GPU nodes cost; only for users who may read all namespaces."""

    fleet: Amount
    allocated: Amount
    idle: Amount
    unallocated: Amount
    reserved_idle: Amount = msgspec.field(name="reservedIdle")


class CostReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """Costs of a window. Only namespaces that the user may read are shown and counted."""

    start: str
    end: str
    by: str
    currency: str
    split_method: str = msgspec.field(name="splitMethod")
    total: Amount
    lines: list[CostLine]
    mark: Annotated[str, msgspec.Meta(description="Where the next page begins.")] = msgspec.field(
        default="", name="continue"
    )
    books: FleetBooks | None = None
    unpriced_gpu_hours: Annotated[
        float, msgspec.Meta(description="GPU-hours of these pods on nodes without a price; they are not in the costs.")
    ] = msgspec.field(default=0.0, name="unpricedGpuHours")


class BudgetQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of `/api/v1/budgets`."""

    namespace: Annotated[Name, msgspec.Meta(description="Only budgets of this namespace.")] = ""
    limit: Limit = DEFAULT_LIMIT
    mark: Continue = msgspec.field(default="", name="continue")


class OneBudgetQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parts of the path of one budget."""

    namespace: Name
    name: Name


class BudgetView(msgspec.Struct, frozen=True):
    """A GPUBudget."""

    namespace: str
    name: str
    spec: GPUBudgetSpec
    status: GPUBudgetStatus


class BudgetReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The budgets that the user may read."""

    budgets: list[BudgetView]
    mark: Annotated[str, msgspec.Meta(description="Where the next page begins.")] = msgspec.field(
        default="", name="continue"
    )


class CostRoutes:
    """Answers questions about costs and budgets."""

    def __init__(
        self,
        reader: CostReader,
        budgets: Callable[[], Mapping[str, GPUBudget]],
        authorizer: Authorizer,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._reader = reader
        self._budgets = budgets
        self._authorizer = authorizer
        self._clock = clock

    def list_routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/api/v1/cost", "What pods cost, by a dimension", CostQuery, CostReply, self.read_cost, "cost"),
            Route("/api/v1/budgets", "Budgets and their spend", BudgetQuery, BudgetReply, self.list_budgets, "cost"),
            Route(
                "/api/v1/budgets/{namespace}/{name}",
                "One budget and its spend",
                OneBudgetQuery,
                BudgetView,
                self.read_budget,
                "cost",
            ),
        ]

    async def read_cost(self, user: User, query: CostQuery) -> CostReply:
        """Return costs of a window."""
        access = await self._reader.open()
        window = parse_window(query.window, int(self._clock()))
        found = await self._reader.read(user, window, query.by, namespace=query.namespace, team=query.team)
        names = sorted(found.lines, key=lambda name: (-found.lines[name].ticks, name))
        costs = money.round_lines([found.lines[name].ticks for name in names])
        lines = [_make_line(name, found.lines[name], micros) for name, micros in zip(names, costs, strict=True)]
        page, mark = cut_page(lines, query.limit, query.mark)
        return CostReply(
            start=timestamp.format_time(window.start_s),
            end=timestamp.format_time(window.end_s),
            by=query.by.value,
            currency=access.currency,
            split_method=access.method,
            total=_decimal(sum(costs)),
            lines=list(page),
            mark=mark,
            books=_describe_books(found.books) if found.books is not None else None,
            unpriced_gpu_hours=round(sum(each.unpriced_ppm_s for each in found.lines.values()) / PPM / money.HOUR_S, 6),
        )

    async def list_budgets(self, user: User, query: BudgetQuery) -> BudgetReply:
        """Return the budgets that the user may read."""
        known = dict(sorted(self._budgets().items()))
        wanted = {obj.metadata.namespace for obj in known.values()}
        wanted = wanted & {query.namespace} if query.namespace else wanted
        readable = await find_readable(self._authorizer, user, _READ_BUDGET, wanted)
        found = [
            _view(obj)
            for obj in known.values()
            if obj.metadata.namespace in wanted and readable.covers(obj.metadata.namespace)
        ]
        page, mark = cut_page(found, query.limit, query.mark)
        return BudgetReply(list(page), mark)

    async def read_budget(self, user: User, query: OneBudgetQuery) -> BudgetView:
        """Return one budget; one that the user may not read is not found."""
        obj = self._budgets().get(f"{query.namespace}/{query.name}")
        readable = await find_readable(self._authorizer, user, _READ_BUDGET, (query.namespace,))
        if obj is None or not readable.covers(query.namespace):
            raise problems.not_found("there is no such budget, or you may not read it")
        return _view(obj)


def _view(obj: GPUBudget) -> BudgetView:
    return BudgetView(obj.metadata.namespace, obj.metadata.name, obj.spec, obj.status)


def _make_line(name: str, sums: Sums, micros: int) -> CostLine:
    weights = (sums.used_ticks, sums.idle_ticks, sums.ticks - sums.measured_ticks)
    parts = money.divide(micros, weights) if sum(weights) > 0 and min(weights) >= 0 else (0, 0, micros)
    used, idle, unmeasured = map(_decimal, parts)
    hours = round(sums.ppm_s / PPM / money.HOUR_S, 6)
    return CostLine(name, _decimal(micros), used=used, idle=idle, unmeasured=unmeasured, gpu_hours=hours)


def _describe_books(books: Books) -> FleetBooks:
    parts = money.round_lines([books.allocated, books.idle, books.unallocated, books.reserved_idle])
    return FleetBooks(_decimal(money.round_ticks(books.fleet)), *map(_decimal, parts))


def _decimal(micros: int) -> str:
    return money.format_dollars(micros, 6).replace(",", "")
