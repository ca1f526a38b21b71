"""`/api/v1/overview`, `/api/v1/fleet` and `/api/v1/health`: GPUs, what holds them, and what is wrong with them."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from kgwe.apps.console.lists import Fields, Name, Search, cut_page, search_rows, select_fields
from kgwe.apps.console.node_rows import NodeRow
from kgwe.apps.console.stream import FleetReply
from kgwe.apps.console.work_rows import WAITING, WorkRow, is_hopeless
from kgwe.httpapi import problems
from kgwe.httpapi.paging import Continue, Limit  # noqa: TC001 - read by msgspec when it describes the query
from kgwe.httpapi.routes import NoQuery, Route
from kgwe.kube.api import resources

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kgwe.apps.console.cluster_watch import ClusterWatch
    from kgwe.apps.console.node_rows import GpuCell
    from kgwe.apps.console.scope import Scope, ScopeReader
    from kgwe.apps.console.stream import Hub
    from kgwe.apps.console.work_cache import WorkCache
    from kgwe.httpapi.authentication import User
    from kgwe.kube.api.kgwe.gpubudget import GPUBudget
    from kgwe.kube.api.kgwe.gpunode import GPUNode

_TOP: Final = 6
_UNUSABLE: Final = frozenset({"Unhealthy", "Unknown"})


class FleetQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of `/api/v1/fleet`."""

    search: Search = ""
    model: Annotated[Name, msgspec.Meta(description="Only nodes with this GPU model.")] = ""
    pool: Annotated[Name, msgspec.Meta(description="Only nodes of this pool.")] = ""
    domain: Annotated[Name, msgspec.Meta(description="Only nodes of this network domain.")] = ""
    fields: Fields = ""
    limit: Limit = 5000
    mark: Continue = msgspec.field(default="", name="continue")


class FleetPage(FleetReply, frozen=True, omit_defaults=True, kw_only=True):
    """GPU nodes that the user may see."""

    mark: Annotated[str, msgspec.Meta(description="Where the next page begins.")] = msgspec.field(
        default="", name="continue"
    )


class NodeQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parts of the path of one node."""

    name: Name


class GpuDetails(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One GPU in detail."""

    index: int
    uuid: str
    model: str
    memory_mib: int
    health: str
    message: str = ""
    action: Annotated[str, msgspec.Meta(description="What to do about it.")] = ""
    last_xid: int | None = None
    links: Annotated[str, msgspec.Meta(description="NVLinks that are up, of those that are wired.")] = ""
    numa_node: int | None = None
    reliability: float = 1.0


class IncidentRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that went wrong."""

    time: str
    node: str
    reason: str
    gpu: str = ""
    xid: int | None = None
    count: int = 1


class NodeReply(msgspec.Struct, frozen=True):
    """One node in detail."""

    node: NodeRow
    gpus: list[GpuDetails]
    incidents: list[IncidentRow]
    labels: dict[str, str]
    driver: str


class ModelUse(msgspec.Struct, frozen=True):
    """GPUs of one model."""

    model: str
    total: int
    held: float
    unusable: int


class FleetUse(msgspec.Struct, frozen=True, rename="camel"):
    """GPUs and what they cost. `free` is absent for users who do not see all pods."""

    nodes: int
    nodes_ready: int
    gpus: int
    held: float
    unusable: int
    models: list[ModelUse]
    free: float | None = None
    fleet_per_hour: Annotated[float | None, msgspec.Meta(description="US dollars of all priced nodes.")] = None
    held_per_hour: Annotated[float | None, msgspec.Meta(description="US dollars of the GPUs that pods hold.")] = None
    unpriced: Annotated[int, msgspec.Meta(description="Nodes without a known price.")] = 0


class Alert(msgspec.Struct, frozen=True):
    """Something to look at."""

    level: Annotated[str, msgspec.Meta(description="error or warning.")]
    title: str
    text: str
    link: Annotated[str, msgspec.Meta(description="Page of the console that shows it.")]


class Overview(msgspec.Struct, frozen=True, rename="camel"):
    """The cluster at a glance; only what the user may list is counted."""

    phases: dict[str, int]
    waiting: list[WorkRow]
    alerts: list[Alert]
    fleet: FleetUse | None = None


class HealthReply(msgspec.Struct, frozen=True):
    """Nodes and GPUs with problems, and recent incidents."""

    visible: Annotated[bool, msgspec.Meta(description="Whether the user may list nodes and GPUNodes.")]
    nodes: list[NodeRow]
    incidents: list[IncidentRow]


class FleetRoutes:
    """Answers questions about GPUs."""

    def __init__(self, watch: ClusterWatch, hub: Hub, work: WorkCache, scopes: ScopeReader) -> None:
        self._watch = watch
        self._hub = hub
        self._work = work
        self._scopes = scopes

    def list_routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/api/v1/overview", "The cluster at a glance", NoQuery, Overview, self.read_overview, "fleet"),
            Route("/api/v1/fleet", "GPU nodes and what holds them", FleetQuery, FleetPage, self.read_fleet, "fleet"),
            Route("/api/v1/fleet/{name}", "One node in detail", NodeQuery, NodeReply, self.read_node, "fleet"),
            Route("/api/v1/health", "Nodes and GPUs with problems", NoQuery, HealthReply, self.read_health, "fleet"),
        ]

    async def read_fleet(self, user: User, query: FleetQuery) -> Any:
        """Return the nodes that the user may see."""
        scope = await self._scopes.read(user)
        if query == FleetQuery():
            return self._hub.encode_fleet(scope)
        channel = self._hub.open(scope)
        rows = [
            row
            for row in channel.rows.values()
            if query.model in {"", row.model}
            and query.pool in {"", row.pool}
            and (not query.domain or query.domain in row.path)
        ]
        rows = search_rows(rows, query.search, "name", "path", "model", "pool", "gpus")
        page, mark = cut_page(rows, query.limit, query.mark)
        nodes: Any = select_fields(page, NodeRow, query.fields)
        return FleetPage(channel.version, self._hub.list_levels(scope), list(nodes), scope.sees_fleet, mark=mark)

    async def read_node(self, user: User, query: NodeQuery) -> NodeReply:
        """Return one node; one that the user may not list is not found."""
        scope = await self._scopes.read(user)
        row = self._hub.open(scope).rows.get(query.name)
        if row is None:
            raise problems.not_found("there is no such GPU node, or you may not list nodes")
        node, gpu_node = self._watch.state.reader.objects(query.name)
        shown = gpu_node if scope.gpu_nodes else None
        return NodeReply(
            row,
            _list_gpus(shown),
            _list_incidents([shown] if shown is not None else []),
            dict(sorted(node.metadata.labels.items())),
            shown.status.driverVersion if shown is not None else "",
        )

    async def read_health(self, user: User, _query: NoQuery) -> HealthReply:
        """Return what is wrong."""
        scope = await self._scopes.read(user)
        rows = [row for row in self._hub.list_rows(scope) if _has_problem(row)]
        found: Iterable[GPUNode] = self._watch.stores.get(resources.GPU_NODE, {}).values() if scope.gpu_nodes else ()
        return HealthReply(scope.nodes and scope.gpu_nodes, rows, _list_incidents(found)[:200])

    async def read_overview(self, user: User, _query: NoQuery) -> Overview:
        """Return the cluster at a glance."""
        scope = await self._scopes.read(user)
        work = self._work.list_rows(scope)
        rows = self._hub.list_rows(scope) if scope.nodes else []
        waiting = [row for row in work if row.phase in WAITING]
        return Overview(
            phases=dict(Counter(row.phase for row in work)),
            waiting=waiting[:_TOP],
            alerts=list(self._list_alerts(scope, rows, work)),
            fleet=measure_use(rows, scope) if scope.nodes else None,
        )

    def _list_alerts(self, scope: Scope, rows: Sequence[NodeRow], work: Sequence[WorkRow]) -> Iterable[Alert]:
        down = [row.name for row in rows if not row.ready]
        if down:
            yield Alert("error", _count(len(down), "node is", "nodes are") + " not ready", _join(down), "/health")
        sick = [f"{row.name} GPU {number}" for row in rows for number, gpu in enumerate(row.gpus) if _is_sick(gpu)]
        if sick:
            yield Alert("error", _count(len(sick), "GPU is", "GPUs are") + " unhealthy", _join(sick), "/health")
        failed = [f"{row.namespace}/{row.name}" for row in work if row.phase == "Failed"]
        if failed:
            title = _count(len(failed), "workload has", "workloads have") + " failed"
            yield Alert("warning", title, _join(failed), "/workloads?phase=Failed")
        stuck = [f"{row.namespace}/{row.name}" for row in work if is_hopeless(row)]
        if stuck:
            title = _count(len(stuck), "workload", "workloads") + " will not start by waiting"
            yield Alert("warning", title, _join(stuck), "/queue")
        for budget in self._list_budgets(scope):
            share = _read_share(budget)
            if share is not None and share >= 1:
                spec = budget.spec
                text = f"{budget.status.currentSpend} of {spec.limit} {spec.currency}, policy {spec.enforcementPolicy}"
                yield Alert("error", f"Budget {budget.metadata.key} is spent", text, "/cost?tab=budgets")

    def _list_budgets(self, scope: Scope) -> list[GPUBudget]:
        store = self._watch.stores.get(resources.GPU_BUDGET, {})
        return [each for each in store.values() if scope.budgets.covers(each.metadata.namespace)]


def measure_use(rows: Sequence[NodeRow], scope: Scope) -> FleetUse:
    """Return how many GPUs there are, how many are held, and what they cost."""
    models: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0])
    fleet = held_rate = 0.0
    priced = 0
    for row in rows:
        held = sum(gpu_use(gpu) for gpu in row.gpus)
        sums = models[row.model or "unknown"]
        sums[0] += len(row.gpus)
        sums[1] += held
        sums[2] += sum(gpu.health in _UNUSABLE for gpu in row.gpus)
        if row.price_per_hour is not None:
            priced += 1
            fleet += row.price_per_hour
            held_rate += row.price_per_hour * held / len(row.gpus) if row.gpus else 0.0
    total, held, unusable = (sum(each[number] for each in models.values()) for number in range(3))
    free = sum(
        1 - gpu_use(gpu)
        for row in rows
        for gpu in row.gpus
        if row.ready and not row.cordoned and gpu.health not in _UNUSABLE and not gpu.reserved
    )
    return FleetUse(
        nodes=len(rows),
        nodes_ready=sum(row.ready for row in rows),
        gpus=int(total),
        held=round(held, 3),
        unusable=int(unusable),
        models=[ModelUse(name, int(each[0]), round(each[1], 3), int(each[2])) for name, each in sorted(models.items())],
        free=round(free, 3) if scope.sees_fleet else None,
        fleet_per_hour=round(fleet, 2) if priced else None,
        held_per_hour=round(held_rate, 2) if priced else None,
        unpriced=len(rows) - priced,
    )


def gpu_use(gpu: GpuCell) -> float:
    """Return which part of a GPU is held, 0 to 1. Slices count by their size."""
    if not gpu.slices:
        return gpu.milli / 1000
    size = sum(each.size for each in gpu.slices)
    return sum(each.size for each in gpu.slices if each.pod) / max(size, 8)


def _has_problem(row: NodeRow) -> bool:
    return not row.ready or row.cordoned or any(gpu.health for gpu in row.gpus)


def _is_sick(gpu: GpuCell) -> bool:
    return gpu.health in _UNUSABLE


def _list_gpus(gpu_node: GPUNode | None) -> list[GpuDetails]:
    found = []
    for each in gpu_node.status.gpus if gpu_node is not None else ():
        link = each.nvlink
        found.append(
            GpuDetails(
                index=each.index,
                uuid=each.uuid,
                model=each.model,
                memory_mib=each.memoryMiB,
                health=each.health.state,
                message=each.health.message,
                action=each.health.action,
                last_xid=each.health.lastXID,
                links=f"{link.links} of {link.maxLinks}" if link is not None else "",
                numa_node=each.numaNode,
                reliability=each.reliability.score if each.reliability is not None else 1.0,
            )
        )
    return found


def _list_incidents(nodes: Iterable[GPUNode]) -> list[IncidentRow]:
    found = [
        IncidentRow(each.time, node.metadata.name, each.reason, each.gpu, each.xid, each.count)
        for node in nodes
        for each in node.status.incidents
    ]
    return sorted(found, key=lambda each: each.time, reverse=True)


def _read_share(budget: GPUBudget) -> float | None:
    try:
        limit = float(budget.spec.limit)
        return float(budget.status.currentSpend or 0) / limit if limit > 0 else None
    except ValueError:
        return None


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _join(names: Sequence[str]) -> str:
    more = f" and {len(names) - _TOP} more" if len(names) > _TOP else ""
    return ", ".join(names[:_TOP]) + more
