"""Workloads as the console lists them: GPUWorkloads of both API groups, and GPU pods that no workload owns."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from kgwe.cluster.offline import is_gpu_pod
from kgwe.cluster.workload.metadata_keys import UID_LABEL
from kgwe.cluster.workload.workload import from_kgwe, from_warp
from kgwe.costing.budgets.admission import TOO_SMALL
from kgwe.kube.api import resources
from kgwe.kube.api.kgwe.gpuworkload_status import Phase
from kgwe.model.units import amounts
from kgwe.placement.disruption.running import grant_milli
from kgwe.placement.refusal import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kgwe.apps.console.cluster_watch import ClusterWatch
    from kgwe.apps.console.node_rows import NodeRows
    from kgwe.cluster.workload.workload import Workload
    from kgwe.kube.api import core

_ORDER: Final = {"Failed": 0, "Pending": 1, "Scheduling": 2, "Scheduled": 3, "Running": 4, "Suspended": 5}
_LONGEST: Final = 1024
WAITING: Final = frozenset({"Pending", "Scheduling"})
_HOPELESS: Final = frozenset(
    {
        Reason.TOO_LARGE,
        Reason.NOT_OFFERED,
        Reason.NO_MATCHING_NODE,
        Reason.UNKNOWN_LEVEL,
        Reason.UNKNOWN_STRATEGY,
        Reason.COST_LIMIT,
    }
)


class WorkRow(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A workload, or a GPU pod that no workload owns."""

    kind: Annotated[str, msgspec.Meta(description="GPUWorkload or Pod.")]
    namespace: str
    name: str
    phase: Annotated[str, msgspec.Meta(description="Pending, Scheduled, Running, Succeeded, Failed or Suspended.")]
    group: Annotated[str, msgspec.Meta(description="API group of a GPUWorkload.")] = ""
    gpus: Annotated[str, msgspec.Meta(description="The GPUs asked for: 8, 2×1g.10gb or 0.5.")] = ""
    gpus_held: Annotated[float, msgspec.Meta(description="GPUs that its pods hold; slices and shares are parts.")] = 0.0
    pods: int = 0
    priority: int = 0
    type: str = ""
    created: str = ""
    started: str = ""
    ended: str = ""
    nodes: Annotated[str, msgspec.Meta(description="Where it is, in short.")] = ""
    node_names: Annotated[tuple[str, ...], msgspec.Meta(description="Nodes of its pods or of its plan.")] = ()
    domain: str = ""
    score: int | None = None
    message: Annotated[str, msgspec.Meta(description="What it waits for, or what went wrong.")] = ""
    reason: Annotated[str, msgspec.Meta(description="Why, as one CamelCase word.")] = ""
    estimated_start: Annotated[
        tuple[str, str] | None,
        msgspec.Meta(description="Half of such work starts by the first, 9 of 10 by the second."),
    ] = None
    advice: Annotated[str, msgspec.Meta(description="What the optimizer recommends.")] = ""
    rate_per_hour: Annotated[
        float | None, msgspec.Meta(description="US dollars: prices of its nodes, by the GPUs that it holds.")
    ] = None


def is_hopeless(row: WorkRow) -> bool:
    """Whether something waits that will not start by waiting."""
    is_too_dear = row.reason == Reason.BUDGET_EXCEEDED and f" {TOO_SMALL}: " in row.message
    return row.phase in WAITING and (row.reason in _HOPELESS or is_too_dear)


class WorkRows:
    """Makes rows from the stores of informers and the state of the cluster."""

    def __init__(self, watch: ClusterWatch, nodes: NodeRows) -> None:
        self._watch = watch
        self._state = watch.state
        self._nodes = nodes

    def make_rows(self) -> list[WorkRow]:
        """Return all rows, the most urgent first."""
        held: dict[str, float] = defaultdict(float)
        rates: dict[str, float] = defaultdict(float)
        unpriced: set[str] = set()
        nodes: dict[str, dict[str, None]] = defaultdict(dict)
        outside: list[core.Pod] = []
        owned = self._list_owned()
        for uid, pod in list(self._state.pods.items()):
            owner = self._find_owner(uid, pod, owned)
            if owner == uid and is_gpu_pod(pod):
                outside.append(pod)
            gpus = sum(grant_milli(grant, self._state.fleet.snapshot) for grant in self._state.fleet.grants(uid)) / 1000
            node = pod.spec.nodeName
            if not node or not is_gpu_pod(pod):
                continue
            nodes[owner][node] = None
            held[owner] += gpus
            price, count = self._nodes.price_of(node), self._count_gpus(node)
            if price is None or not count:
                unpriced.add(owner)
            else:
                rates[owner] += price * gpus / count
        facts = _Facts(held, {owner: rate for owner, rate in rates.items() if owner not in unpriced}, nodes)
        rows = [*self._list_workloads(facts), *(_make_pod_row(pod, facts) for pod in outside)]
        return sorted(
            rows, key=lambda row: (_ORDER.get(row.phase, 9), -row.priority, row.created, row.namespace, row.name)
        )

    def _find_owner(self, uid: str, pod: core.Pod, owned: Mapping[str, set[str]]) -> str:
        """Return the uid of the workload that the pod belongs to; its own uid if there is none."""
        if self._state.is_external(pod):
            return uid
        seat = self._state.seat_of(pod)
        if seat is not None:
            return seat[0]
        # Users write labels: one that names a workload of another namespace counts for nothing.
        said, namespace = pod.metadata.labels.get(UID_LABEL, ""), pod.metadata.namespace
        return said if said in owned.get(namespace, ()) else uid

    def _list_owned(self) -> dict[str, set[str]]:
        """Return the uids of workloads and their replicas, by namespace."""
        found: dict[str, set[str]] = defaultdict(set)
        for kind in (resources.GPU_WORKLOAD, resources.WARP_GPU_WORKLOAD):
            for obj in list(self._watch.stores.get(kind, {}).values()):
                found[obj.metadata.namespace] |= {obj.metadata.uid, *self._list_uids(obj.metadata.uid)}
        return found

    def _count_gpus(self, node: str) -> int:
        found = self._state.fleet.node(node)
        return found.shape.gpu_count if found is not None else 0

    def _list_workloads(self, facts: _Facts) -> Iterator[WorkRow]:
        for kind, read in ((resources.GPU_WORKLOAD, from_kgwe), (resources.WARP_GPU_WORKLOAD, from_warp)):
            for obj in list(self._watch.stores.get(kind, {}).values()):
                yield _make_workload_row(read(obj), self._list_uids(obj.metadata.uid), facts)

    def _list_uids(self, uid: str) -> Iterable[str]:
        return self._state.workload_registry.uids_of_object(uid) or (uid,)


class _Facts:
    """What pods hold, summed by owner."""

    def __init__(
        self, held: Mapping[str, float], rates: Mapping[str, float], nodes: Mapping[str, Iterable[str]]
    ) -> None:
        self.held, self.rates, self.nodes = held, rates, nodes


def _make_workload_row(workload: Workload, uids: Iterable[str], facts: _Facts) -> WorkRow:
    status, meta = workload.status, workload.meta
    of = list(uids)
    placed = status.placed
    nodes = dict.fromkeys(node for uid in of for node in facts.nodes.get(uid, ()))
    planned = [node for node, _, _ in placed.placements] if placed is not None else [status.node] * bool(status.node)
    priced = [facts.rates[uid] for uid in of if uid in facts.rates]
    suspended = workload.suspend and not workload.finished
    reason = next((each.reason for each in status.conditions if each.status == "False"), "")
    waits = not workload.finished and not nodes
    return WorkRow(
        kind="GPUWorkload",
        group=workload.kind.resource.group,
        namespace=meta.namespace,
        name=meta.name,
        phase="Suspended" if suspended else status.phase or "Pending",
        gpus=status.gpus or workload.gpus,
        gpus_held=round(sum(facts.held.get(uid, 0.0) for uid in of), 3),
        pods=workload.pods * max(workload.desired, 1),
        priority=workload.priority,
        type=str(workload.workload_type),
        created=meta.creationTimestamp or "",
        started=status.start_time or "",
        ended=status.completion_time or "",
        nodes=status.nodes or status.node,
        node_names=tuple(sorted(nodes or {each: None for each in planned if each}))[:_LONGEST],
        domain=placed.details.domain if placed is not None else "",
        score=placed.details.score if placed is not None else None,
        message=status.message or ("" if status.phase else "no status yet: it is new, or no scheduler runs"),
        reason=reason if waits or status.phase == Phase.FAILED else "",
        estimated_start=status.estimate,
        advice=status.optimization.message if status.optimization is not None else "",
        rate_per_hour=round(sum(priced), 4) if priced else None,
    )


def _make_pod_row(pod: core.Pod, facts: _Facts) -> WorkRow:
    meta, uid = pod.metadata, pod.metadata.uid
    said = next(
        (each for each in pod.status.conditions if each.type == "PodScheduled" and each.status == "False"), None
    )
    rate = facts.rates.get(uid)
    return WorkRow(
        kind="Pod",
        namespace=meta.namespace,
        name=meta.name,
        phase=("Running" if pod.status.phase == "Running" else "Scheduled") if pod.spec.nodeName else "Pending",
        gpus=_describe_request(pod),
        gpus_held=round(facts.held.get(uid, 0.0), 3),
        pods=1,
        priority=pod.spec.priority or 0,
        created=meta.creationTimestamp or "",
        nodes=pod.spec.nodeName,
        node_names=(pod.spec.nodeName,) if pod.spec.nodeName else (),
        message=said.message if said is not None else "",
        reason=said.reason if said is not None else "",
        rate_per_hour=round(rate, 4) if rate is not None else None,
    )


def _describe_request(pod: core.Pod) -> str:
    found: dict[str, int] = defaultdict(int)
    for container in pod.spec.containers:
        for name, text in {**container.resources.requests, **container.resources.limits}.items():
            if amounts.is_gpu(name) and text.isdigit():
                found[name.removeprefix("nvidia.com/")] += int(text)
    return ", ".join(str(count) if name == "gpu" else f"{count}×{name}" for name, count in sorted(found.items()))
