"""The meters of all GPU nodes, fed by changes of nodes, pods, claims and namespaces.

All times are whole seconds. Changes that the API dates are counted from their date, others from when they were seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import structlog

from kgwe.apps.cost import nodes, pods
from kgwe.apps.cost.pods import PodTimes
from kgwe.costing.metering.device_choice import GpuWish, choose_devices
from kgwe.costing.metering.division import Claim, GpuClaim
from kgwe.costing.metering.late_starts import LateStart
from kgwe.costing.metering.meter import NodeMeter, NodeState, end_claim, name_owner
from kgwe.costing.metering.timeline import ClaimSpan
from kgwe.costing.metering.use import UseKey
from kgwe.costing.prices.book import NodeKind, Quote, Unpriced
from kgwe.costing.prices.commitments import PREFIX, Candidate, Pools
from kgwe.costing.split import HostShape
from kgwe.model.units import amounts
from kgwe.store.ledger.ledger import NodeFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from kgwe.apps.cost.devices import KnownDevices
    from kgwe.apps.cost.nodes import CostNode
    from kgwe.apps.cost.pods import CostPod
    from kgwe.costing.attribution import AttributionRules
    from kgwe.costing.prices.book import PriceBook
    from kgwe.costing.segments import Holder, Segment
    from kgwe.costing.split import SplitMethod
    from kgwe.kube.api.kgwe.gpunode import GPUNode
    from kgwe.kube.api.resource import ResourceClaim
    from kgwe.kube.client.informer import Change
    from kgwe.model.usage.window import PodKey, UsageWindow

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Stores:
    """The objects of the cluster, by key, as informers keep them."""

    nodes: Mapping[str, CostNode]
    pods: Mapping[str, CostPod]
    gpu_nodes: Mapping[str, GPUNode] = field(default_factory=dict)
    claims: Mapping[str, ResourceClaim] = field(default_factory=dict)
    namespaces: Mapping[str, Any] = field(default_factory=dict)


class ClusterMeter:
    """Meters from a settled time on. One term of leadership has one."""

    def __init__(
        self,
        stores: Stores,
        *,
        rules: AttributionRules,
        settled_s: int,
        clock: Callable[[], float],
        devices: KnownDevices,
        book: PriceBook | None = None,
    ) -> None:
        self._stores = stores
        self._book = book
        self._pools = Pools(book.commitments if book is not None else ())
        self._rules = rules
        self._clock = clock
        self._devices = devices
        self._meters: dict[str, NodeMeter] = {}
        self._on_node: dict[str, dict[str, str]] = {}
        """Node -> key of a pod -> its UID."""
        self.settled_s = settled_s
        self.failures = 0
        self._now_s = settled_s
        for name in stores.gpu_nodes:
            devices.set_gpu_node(name, stores.gpu_nodes[name])
        for key, pod in stores.pods.items():
            self._note_pod(key, pod)
        for name in stores.nodes:
            self._refresh_node(name, is_new=True)

    def now_s(self) -> int:
        """Return the present second. It never goes back, also when the clock of the machine does."""
        self._now_s = max(self._now_s, int(self._clock()))
        return self._now_s

    # --- changes --------------------------------------------------------------------------------------------

    def on_node(self, change: Change[CostNode]) -> None:
        """A node appeared, changed, or is gone."""
        self._refresh_node(change.key, is_new=change.old is None)

    def on_gpu_node(self, change: Change[GPUNode]) -> None:
        """An agent reports other GPUs or slices, or other holders."""
        self._devices.set_gpu_node(change.key, change.new)
        self._refresh_node(change.key)
        self._refresh_pods(change.key)

    def on_devices(self, node: str) -> None:
        """The ResourceSlices of a node changed."""
        self._refresh_node(node)
        self._refresh_pods(node)

    def on_pod(self, change: Change[CostPod]) -> None:
        """A pod was bound, changed, ended, or is gone."""
        old, new = change.old, change.new
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._end_pod(change.key, old)
        if new is not None:
            self._note_pod(change.key, new)
            self._refresh_pod(change.key)

    def on_claim(self, change: Change[ResourceClaim]) -> None:
        """A ResourceClaim was allocated: the pod that has it holds its devices."""
        owner = change.new.metadata.controller if change.new is not None else None
        for held in list(self._on_node.values()):
            for key, uid in list(held.items()):
                pod = self._stores.pods.get(key)
                is_owner = owner is not None and owner.uid == uid
                if pod is not None and (is_owner or change.key in pods.list_claims(pod)):
                    self._refresh_pod(key)

    def on_usage(self, window: UsageWindow) -> None:
        """Pods used their devices this much. Steps without a sample stay unknown."""
        unnamed: dict[tuple[str, PodKey], list[int]] = {}
        for row, device in enumerate(window.devices):
            key = device.key
            meter = self._meters.get(key.node)
            if key.pod is None or meter is None or meter.state is None:
                continue
            if not any(gpu.uuid == key.uuid for gpu in meter.state.gpus):
                unnamed.setdefault((key.node, key.pod), []).append(row)
                continue
            place = self._devices.find_slice(key.uuid, key.instance)
            if place is not None:
                _add_use(meter, UseKey(*key.pod, key.uuid, place), window, window.activity[row])
        for (node, pod), rows in unnamed.items():
            # The GPUs have made-up names: all devices of the pod count alike.
            used = window.activity[rows]
            counts = (~np.isnan(used)).sum(axis=0)
            means = np.where(counts > 0, np.nansum(used, axis=0) / np.maximum(counts, 1), np.nan)
            _add_use(self._meters[node], UseKey(*pod, ""), window, means)

    # --- counting -------------------------------------------------------------------------------------------

    def count(self, until_s: int, grace_s: int, book: PriceBook, method: SplitMethod) -> list[Segment]:
        """Return the segments to write up to a time, and settle what is older than the grace."""
        self._now_s = max(self._now_s, until_s)
        self._cover_nodes(until_s)
        found: list[Segment] = []
        for name, meter in list(self._meters.items()):
            try:
                found += meter.derive(until_s, book, method)
                meter.settle(until_s - grace_s, book, method)
            except Exception:
                # One node must not stop the counting of all.
                self.failures += 1
                log.exception("node_not_counted", node=name)
                continue
            if meter.is_finished:
                del self._meters[name]
        self.settled_s = max(self.settled_s, until_s - grace_s)
        return found

    def list_ends(self, before_s: int) -> dict[Holder, int]:
        """Return the pods that ended before a time, with their ends."""
        found: dict[Holder, int] = {}
        for pod in self._stores.pods.values():
            times = pods.read_times(pod, self.now_s())
            if times is not None and times.end_s is not None and times.end_s < before_s:
                found[self._name_holder(pod)] = times.end_s
        return found

    def list_starts(self, since_s: int, before_s: int, book: PriceBook, method: SplitMethod) -> Iterator[LateStart]:
        """Yield the pods that held something between two times, with what it cost. They may be charged already."""
        for pod in self._stores.pods.values():
            times = pods.read_times(pod, self.now_s())
            if times is None or not times.overlaps(since_s, before_s):
                continue
            meter = self._meters.get(pod.spec.node_name)
            if meter is None:
                continue
            span = meter.find_claim(pod.metadata.uid) or ClaimSpan(
                times.start_s, times.end_s, self._make_claim(pod, meter, None, times)
            )
            lines = meter.price_claim(span, max(times.start_s, since_s), book, method)
            if lines:
                end_s = before_s if times.end_s is None else min(times.end_s, before_s)
                yield LateStart(self._name_holder(pod), max(times.start_s, since_s), end_s, lines)

    def list_owners(self, book: PriceBook, at_s: int) -> dict[str, Holder]:
        """Return who owns what no pod holds, by node: nodes that a commitment pays."""
        quotes = {state.name: book.quote(state.kind, at_s) for state in self.list_states()}
        return {name: name_owner(each) for name, each in quotes.items() if isinstance(each, Quote) and each.commitment}

    def list_states(self) -> Iterator[NodeState]:
        """Yield the GPU nodes that exist."""
        for meter in self._meters.values():
            if meter.state is not None and meter.state.gpus:
                yield meter.state

    def list_facts(self) -> list[NodeFacts]:
        """Return what bills and exports need to know of the GPU nodes that exist."""
        found = []
        for state in self.list_states():
            node = self._stores.nodes.get(state.name)
            provider = node.spec.provider_id if node is not None else ""
            kind = state.kind
            found.append(NodeFacts(state.name, provider, kind.region, kind.zone, kind.gpu_model, kind.gpus))
        return found

    def list_unpriced(self, book: PriceBook) -> dict[str, str]:
        """Return the GPU nodes without a price, with the reason."""
        quotes = {state.name: book.quote(state.kind, self._now_s) for state in self.list_states()}
        return {name: quote.reason for name, quote in quotes.items() if isinstance(quote, Unpriced)}

    # --- from objects to facts ------------------------------------------------------------------------------

    def _refresh_node(self, name: str, *, is_new: bool = False) -> None:
        node = self._stores.nodes.get(name)
        reported = self._stores.gpu_nodes.get(name) or self._devices.describe(name)
        state = nodes.read_state(node, reported) if node is not None else None
        meter = self._meters.get(name)
        if meter is None:
            if state is None or node is None:
                return
            meter = self._meters[name] = NodeMeter(self.settled_s)
            is_new = True
        created = pods.parse_time(node.metadata.creationTimestamp) if node is not None and is_new else None
        # The clocks of API server and engine differ: a node is never created later than it is seen.
        at_s = self.now_s() if created is None else min(max(created, meter.settled_s), self.now_s())
        before = meter.state
        if before is not None and state is not None and nodes.is_named_later(before, state):
            at_s = meter.settled_s  # the GPUs were the same before
        if state is None:
            self._pools.release(name)
        else:
            state = self._commit(state)
        meter.set_state(at_s, state)
        if self._pools and (before is None or state is None):
            self._cover_nodes(at_s)
        if state is not None and (before is None or before.gpus != state.gpus):
            self._refresh_pods(name)

    def _commit(self, state: NodeState) -> NodeState:
        return replace(state, kind=replace(state.kind, commitment=self._pools.find(state.name)))

    def _cover_nodes(self, at_s: int) -> None:
        """Let commitments cover nodes, and meter what they do not cover as nodes of their own."""
        if not self._pools or self._book is None:
            return
        candidates = [_describe_candidate(state, self._book, at_s) for state in self.list_states()]
        for name in self._pools.assign(candidates, at_s):
            state = self._meters[name].state
            if state is not None:
                self._meters[name].set_state(at_s, self._commit(state))
        for pool in self._pools.list_names():
            meter = self._meters.setdefault(f"{PREFIX}{pool}", NodeMeter(self.settled_s))
            kind = NodeKind(commitment=pool, idle_micros=self._pools.measure_idle(pool, at_s))
            first_s = at_s if meter.state is not None else max(meter.settled_s, 0)
            meter.set_state(first_s, NodeState(f"{PREFIX}{pool}", kind, (), HostShape(0, 0)))

    def _note_pod(self, key: str, pod: CostPod) -> None:
        if pod.spec.node_name:
            self._on_node.setdefault(pod.spec.node_name, {})[key] = pod.metadata.uid

    def _refresh_pods(self, node: str) -> None:
        for key in list(self._on_node.get(node, ())):
            self._refresh_pod(key)

    def _refresh_pod(self, key: str) -> None:
        pod = self._stores.pods.get(key)
        meter = self._meters.get(pod.spec.node_name) if pod is not None else None
        if pod is None or meter is None:
            return
        times = pods.read_times(pod, self.now_s())
        if times is None:
            return
        before = meter.find_claim(pod.metadata.uid)
        if before is not None and before.end_s is not None and times.end_s is None:
            return  # told late: the pod has ended already
        end_s = times.end_s
        if before is not None and before.end_s is not None and end_s is not None:
            end_s = min(end_s, before.end_s)
        claim = self._make_claim(pod, meter, before, PodTimes(times.start_s, end_s))
        meter.set_claim(ClaimSpan(times.start_s, end_s, claim), self._name_holder(pod))

    def _make_claim(self, pod: CostPod, meter: NodeMeter, before: ClaimSpan | None, times: PodTimes) -> Claim:
        wanted, holder = pods.sum_requests(pod), self._name_holder(pod)
        gpus = self._choose(pod, meter, before, wanted, times)
        return Claim(holder.uid, holder.is_overhead, gpus, wanted.get(amounts.CPU, 0), wanted.get(amounts.MEMORY, 0))

    def _choose(
        self, pod: CostPod, meter: NodeMeter, before: ClaimSpan | None, wanted: Mapping[str, int], times: PodTimes
    ) -> tuple[GpuClaim, ...]:
        """Return what a pod holds: as the cluster says, as before, or a choice among what is free."""
        wish = pods.read_wish(wanted)
        claims = [each for each in map(self._stores.claims.get, pods.list_claims(pod)) if each is not None]
        state = meter.state
        if state is None or not (wish or claims):
            return before.claim.gpus if before is not None else ()
        is_shared = bool(wish.shares) or (wish.gpus > 0 and any(each.shares > 1 for each in state.gpus))
        known = self._devices.find(state.name, pod.metadata.key, claims, shared=is_shared)
        uuids = {each.uuid for each in state.gpus}
        known = tuple(each for each in known if each.gpu in uuids)
        if known:
            return known
        if before is not None and before.claim.gpus and all(each.gpu in uuids for each in before.claim.gpus):
            return before.claim.gpus
        if is_shared:
            wish = GpuWish(0, wish.shares + wish.gpus, wish.slices)
        held = [
            gpu
            for span in meter.list_claims()
            if span.claim.holder != pod.metadata.uid and times.overlaps(span.start_s, span.end_s)
            for gpu in span.claim.gpus
        ]
        return choose_devices(wish, state.gpus, held)

    def _end_pod(self, key: str, pod: CostPod) -> None:
        """A pod is gone. It ended when its status says so, else now."""
        uid, node = pod.metadata.uid, pod.spec.node_name
        if self._on_node.get(node, {}).get(key) == uid:
            del self._on_node[node][key]
            if not self._on_node[node]:
                del self._on_node[node]
        meter = self._meters.get(node)
        span = meter.find_claim(uid) if meter is not None else None
        if meter is None or span is None:
            return
        times = pods.read_times(pod, self.now_s())
        end_s = times.end_s if times is not None and times.end_s is not None else self.now_s()
        ended = end_claim(span, max(end_s, span.start_s))
        meter.set_claim(ended, self._name_holder(pod))

    def _name_holder(self, pod: CostPod) -> Holder:
        return pods.read_holder(pod, self._rules, self._find_labels(pod.metadata.namespace))

    def _find_labels(self, namespace: str) -> Mapping[str, str]:
        found = self._stores.namespaces.get(namespace)
        return found.metadata.labels if found is not None else {}


def _add_use(meter: NodeMeter, key: UseKey, window: UsageWindow, used: NDArray[np.floating[Any]]) -> None:
    for step, share in enumerate(used.tolist()):
        if not math.isnan(share):
            start_s = round(window.start_s + step * window.step_s)
            end_s = round(window.start_s + (step + 1) * window.step_s)
            meter.add_use(key, start_s, end_s, round(1000 * share))


def _describe_candidate(state: NodeState, book: PriceBook, at_s: int) -> Candidate:
    kind = state.kind
    usual = book.quote(replace(kind, commitment=""), at_s)
    rate = usual.micros_per_hour if isinstance(usual, Quote) else None
    return Candidate(state.name, kind.instance_type, kind.region, kind.zone, rate)
