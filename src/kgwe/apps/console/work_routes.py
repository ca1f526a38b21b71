"""`/api/v1/workloads`, `/api/v1/explain`, `/api/v1/what-if` and `/api/v1/queue`."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Protocol

import msgspec

from kgwe import errors
from kgwe.apps.console.lists import Fields, Name, Search, cut_page, search_rows, select_fields, sort_rows
from kgwe.apps.console.work_rows import WAITING, WorkRow, is_hopeless
from kgwe.httpapi import problems
from kgwe.httpapi.paging import Continue, Limit  # noqa: TC001 - read by msgspec when it describes the query
from kgwe.httpapi.routes import NoQuery, Route
from kgwe.kube.api import resources

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.apps.console.cluster_watch import ClusterWatch
    from kgwe.apps.console.scope import ScopeReader
    from kgwe.apps.console.work_cache import WorkCache
    from kgwe.cluster.offline import View
    from kgwe.httpapi.authentication import User

# A view of the whole cluster is used again for so long.
_KEEP_S: Final = 2.0
_MOST_MANIFEST: Final = 60_000
Group = Annotated[Name, msgspec.Meta(description="API group of the GPUWorkload, if both groups have the name.")]


class WorkQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of `/api/v1/workloads`."""

    namespace: Annotated[Name, msgspec.Meta(description="Only this namespace.")] = ""
    phase: Annotated[
        str, msgspec.Meta(max_length=128, description="Only these phases, with commas, such as Pending,Failed.")
    ] = ""
    node: Annotated[Name, msgspec.Meta(description="Only what runs on this node.")] = ""
    kind: Literal["", "GPUWorkload", "Pod"] = ""
    search: Search = ""
    sort: Annotated[str, msgspec.Meta(max_length=64, description="A field; -field for the largest first.")] = ""
    fields: Fields = ""
    limit: Limit = 100
    mark: Continue = msgspec.field(default="", name="continue")


class WorkReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The workloads that the user may list, the most urgent first."""

    items: list[WorkRow]
    total: Annotated[int, msgspec.Meta(description="Rows of all pages.")]
    phases: Annotated[dict[str, int], msgspec.Meta(description="Rows by phase, without the filter of phases.")]
    namespaces: Annotated[list[str], msgspec.Meta(description="Namespaces of rows that the user may list.")]
    mark: Annotated[str, msgspec.Meta(description="Where the next page begins.")] = msgspec.field(
        default="", name="continue"
    )


class SubjectQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A workload or a pod."""

    namespace: Name
    name: Name
    kind: Literal["", "workload", "pod"] = ""
    group: Group = ""


class WhatIfBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Manifests to plan, as YAML or JSON."""

    manifest: Annotated[str, msgspec.Meta(max_length=_MOST_MANIFEST)]
    namespace: Annotated[Name, msgspec.Meta(description="Of workloads that name none.")] = "default"


class QueueRow(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Something that waits for GPUs."""

    namespace: str
    name: str
    kind: str
    gpus: str
    message: str
    position: Annotated[
        int, msgspec.Meta(description="Place in the queue, from 1; 0: not known, or waiting does not help.")
    ] = 0
    priority: int = 0
    created: str = ""
    group: str = ""
    reason: str = ""
    hopeless: Annotated[bool, msgspec.Meta(description="Whether it will not start by waiting.")] = False
    estimated_start: tuple[str, str] | None = None


class QueueReply(msgspec.Struct, frozen=True):
    """What waits, in the order of the queue."""

    items: list[QueueRow]
    ordered: Annotated[bool, msgspec.Meta(description="Whether the user sees the whole cluster, and so positions.")]
    shares: Annotated[
        dict[str, float], msgspec.Meta(description="GPUs that each namespace holds; the smallest share goes first.")
    ]


class Answers(Protocol):
    """Explains and plans on a view of the cluster."""

    @property
    def explanation(self) -> type[msgspec.Struct]: ...
    @property
    def scenario(self) -> type[msgspec.Struct]: ...
    def explain(self, view: View, query: SubjectQuery) -> object: ...
    def read(self, manifest: str) -> list[dict[str, Any]]: ...
    def plan(self, view: View, documents: list[dict[str, Any]], namespace: str) -> object: ...


class WorkRoutes:
    """Answers questions about workloads."""

    def __init__(
        self,
        watch: ClusterWatch,
        work: WorkCache,
        scopes: ScopeReader,
        answers: Answers,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watch = watch
        self._work = work
        self._scopes = scopes
        self._answers = answers
        self._clock = clock
        self._view: tuple[float, int, View] | None = None
        self._planning = asyncio.Lock()

    def list_routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/api/v1/workloads", "Workloads and GPU pods", WorkQuery, WorkReply, self.list_work, "workloads"),
            Route(
                "/api/v1/explain/{namespace}/{name}",
                "Why a workload or pod is where it is, or why it waits",
                SubjectQuery,
                self._answers.explanation,
                self.explain,
                "workloads",
            ),
            Route(
                "/api/v1/what-if",
                "Where manifests would go, before they are submitted",
                NoQuery,
                self._answers.scenario,
                self.plan,
                "workloads",
                "POST",
                WhatIfBody,
            ),
            Route(
                "/api/v1/queue",
                "What waits, in the order of the queue",
                NoQuery,
                QueueReply,
                self.read_queue,
                "workloads",
            ),
        ]

    async def list_work(self, user: User, query: WorkQuery) -> WorkReply:
        """Return a page of workloads."""
        scope = await self._scopes.read(user)
        rows = self._work.list_rows(scope)
        names = sorted({row.namespace for row in rows})
        rows = [
            row
            for row in rows
            if query.namespace in {"", row.namespace}
            and query.kind in {"", row.kind}
            and (not query.node or query.node in row.node_names)
        ]
        rows = search_rows(rows, query.search, "namespace", "name", "nodes", "message", "reason")
        phases = dict(Counter(row.phase for row in rows))
        wanted = {each for each in query.phase.split(",") if each}
        rows = sort_rows([row for row in rows if not wanted or row.phase in wanted], WorkRow, query.sort)
        page, mark = cut_page(rows, query.limit, query.mark)
        items: Any = select_fields(page, WorkRow, query.fields)
        return WorkReply(list(items), len(rows), phases, names, mark)

    async def explain(self, user: User, query: SubjectQuery) -> object:
        """Return why a workload waits, or where it is; from its own namespace for users who see no other."""
        scope = await self._scopes.read(user)
        kinds = {"workload": ("GPUWorkload",), "pod": ("Pod",), "": ("GPUWorkload", "Pod")}[query.kind]
        groups = (query.group,) if query.group else (resources.GPU_WORKLOAD.group, resources.WARP_GPU_WORKLOAD.group)
        if not any(scope.covers_work(kind, group, query.namespace) for kind in kinds for group in groups):
            raise _not_found()
        try:
            if not scope.sees_cluster:
                view = self._watch.build_namespace(query.namespace, scope)
                return self._answers.explain(view, query)
            async with self._planning:
                view = await self._read_view()
                return await asyncio.to_thread(self._answers.explain, view, query)
        except errors.NotFound as exc:
            raise _not_found() from exc

    async def plan(self, user: User, _query: NoQuery, body: WhatIfBody) -> object:
        """Return where manifests would go. Needs rights on the whole cluster: the answer names what runs there."""
        scope = await self._scopes.read(user)
        if not scope.sees_cluster:
            raise problems.forbidden(
                "what-if plans on the whole cluster: it needs list of nodes, gpunodes, pods, jobs and gpuworkloads in"
                " all namespaces. The ClusterRole kgwe-advisor has them"
            )
        # A manifest that takes long to read lets no other user wait.
        documents = await asyncio.to_thread(self._answers.read, body.manifest)
        async with self._planning:
            # The plan changes its view.
            view = await self._build_view()
            return await asyncio.to_thread(self._answers.plan, view, documents, body.namespace)

    async def read_queue(self, user: User, _query: NoQuery) -> QueueReply:
        """Return what waits."""
        scope = await self._scopes.read(user)
        waiting = [row for row in self._work.list_rows(scope) if row.phase in WAITING]
        if not scope.sees_cluster:
            return QueueReply([_make_queue_row(row, 0) for row in waiting], ordered=False, shares={})
        async with self._planning:
            view = await self._read_view()
            order, shares = await asyncio.to_thread(_read_order, view)
        places = {title: number for number, title in enumerate(order, 1)}
        rows = [_make_queue_row(row, places.get((row.kind, row.namespace, row.name), 0)) for row in waiting]
        rows.sort(key=lambda row: (row.position == 0, row.position))
        return QueueReply(rows, ordered=True, shares=shares)

    async def _read_view(self) -> View:
        now, version = self._clock(), self._watch.version
        if self._view is None or (self._view[1] != version and now > self._view[0] + _KEEP_S):
            self._view = now, version, await self._build_view()
        return self._view[2]

    async def _build_view(self) -> View:
        return await asyncio.to_thread(self._watch.build_view, self._watch.copy_objects())


def _read_order(view: View) -> tuple[list[tuple[str, str, str]], dict[str, float]]:
    order = []
    for owner in view.list_in_order():
        ask = view.asks[owner]
        kind = "Pod" if view.state.find_workload(owner) is None else "GPUWorkload"
        order.append((kind, ask.namespace, ask.name))
    shares = {name: round(milli / 1000, 3) for name, milli in sorted(view.held_by_namespace().items())}
    return order, shares


def _make_queue_row(row: WorkRow, position: int) -> QueueRow:
    return QueueRow(
        namespace=row.namespace,
        name=row.name,
        kind=row.kind,
        gpus=row.gpus,
        message=row.message,
        position=position,
        priority=row.priority,
        created=row.created,
        group=row.group,
        reason=row.reason,
        hopeless=is_hopeless(row),
        estimated_start=row.estimated_start,
    )


def _not_found() -> problems.Problem:
    return problems.not_found("there is no such workload or pod, or you may not list it")
