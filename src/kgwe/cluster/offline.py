"""A read-only view of the cluster at one moment: what the scheduler would know, from one list of each kind.

It uses the same state as the scheduler, so that its answers are those of the scheduler. The client refuses writes.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from kgwe import errors
from kgwe.cluster import names
from kgwe.cluster.gangs.leader_actions import LeaderActions
from kgwe.cluster.state import prerequisites, refusal_text, run_state
from kgwe.cluster.state.cluster_state import ClusterState, selector_of
from kgwe.cluster.state.running_view import RunningView
from kgwe.cluster.workload import scheduler_policy as policy
from kgwe.cluster.workload.manifests import pod_template, workload_ask
from kgwe.cluster.workload.pdb import DisruptionBudgets
from kgwe.kube import dialects
from kgwe.kube.api import resources, timestamp
from kgwe.kube.client.client import Forbidden
from kgwe.kube.client.informer import Change
from kgwe.kube.translate import podrequest, podspec
from kgwe.placement.disruption.preemption import Evictable
from kgwe.placement.disruption.running import grant_milli
from kgwe.placement.planning import planner
from kgwe.placement.planning.ask import Ask
from kgwe.placement.planning.unmet import find_unmet
from kgwe.placement.queue.ask import workload_from_ask
from kgwe.placement.queue.queue import Queue
from kgwe.placement.refusal import Reason, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kgwe.cluster.gangs.external_gangs import ExternalGangs
    from kgwe.cluster.workload.workload import Workload
    from kgwe.kube.api import core
    from kgwe.kube.api.meta import Condition
    from kgwe.kube.api.resources import Resource
    from kgwe.kube.client.client import KubeClient
    from kgwe.placement.disruption.running import Running
    from kgwe.placement.live.fleet import LiveFleet

#: kinds of ours, and of dynamic resource allocation, which need not be there
OWN: Final[tuple[Resource[Any], ...]] = (
    resources.SCHEDULER_CONFIG,
    resources.TOPOLOGY_DOMAIN,
    resources.MIG_STRATEGY,
    resources.GPU_NODE,
    resources.WARP_GPU_WORKLOAD,
    resources.GPU_WORKLOAD,
    resources.RIGHTSIZING_DECISION,
    resources.RESOURCE_SLICE,
    resources.RESOURCE_CLAIM,
)
# Condition reasons of workloads that never start as they are.
_HOPELESS: Final = frozenset(
    {Reason.TOO_LARGE, Reason.NOT_OFFERED, Reason.NO_MATCHING_NODE, Reason.UNKNOWN_LEVEL, Reason.UNKNOWN_STRATEGY}
)
# Condition reasons of workloads that had a place and did not start, for causes that no free GPU cures.
_REPAIRS: Final = frozenset({run_state.NOT_SCHEDULED, run_state.ATTEMPTS_EXHAUSTED})
_ARRIVALS: Final = 1_000_000
_NAMESPACED: Final = (
    resources.GPU_WORKLOAD,
    resources.WARP_GPU_WORKLOAD,
    resources.RIGHTSIZING_DECISION,
    resources.RESOURCE_CLAIM,
)


class ClusterUnreadable(errors.Permanent):
    """The user may not read kinds that are needed of the whole cluster."""


def read_only(client: KubeClient) -> KubeClient:
    """The same client, which refuses to write."""
    return client.with_guard(_refuse_write)


def _refuse_write() -> None:
    raise errors.InvariantBroken("a write was attempted; this command only reads")


@dataclass
class View:
    """What is known of the cluster."""

    state: ClusterState
    gangs: ExternalGangs
    census: RunningView
    now_s: float
    #: owner -> what it asks for: everything that waits and could be planned
    asks: dict[str, Ask] = field(default_factory=dict)
    #: owner -> why it cannot even be planned
    problems: dict[str, str] = field(default_factory=dict)
    #: what could not be read
    warnings: tuple[str, ...] = ()
    #: kinds that were listed, and kinds that the user may not list
    listed: tuple[Resource[Any], ...] = ()
    hidden: tuple[Resource[Any], ...] = ()
    #: the one namespace that was read; empty: all of them, and the nodes
    namespace: str = ""

    @property
    def fleet(self) -> LiveFleet:
        return self.state.fleet

    # --- what is asked for ------------------------------------------------------------------------------

    def ask_of(self, workload: Workload) -> Ask:
        """What a workload asks for, within the limits of the SchedulerConfig; Permanent if it is invalid."""
        try:
            ask = workload_ask.build_ask(
                workload, pod_template.build_pod_template(workload, names.DEFAULT_IMAGE), frozenset()
            )
        except (KeyError, TypeError, AttributeError, ValueError) as exc:
            raise errors.Permanent(f"podTemplate is invalid: {exc}") from exc
        return self.limit_ask(ask)

    def ask_of_pod(self, pod: core.Pod) -> Ask:
        """What a pod that belongs to no gang asks for."""
        found, meta = podrequest.read_request(pod, pieces=self.fleet.shares_per_gpu(pod.spec.nodeName)), pod.metadata
        return self.limit_ask(
            Ask(
                meta.uid, found.request, found.amounts, strategy=found.strategy or "", priority=pod.spec.priority,
                since=meta.creationTimestamp or "", namespace=meta.namespace, name=meta.name,
                fields=podrequest.FIELDS,
            )
        )  # fmt: skip

    def limit_ask(self, ask: Ask) -> Ask:
        return policy.limit_ask(ask, self.state.config)

    def check_allowed(self, ask: Ask) -> Refusal | None:
        """Why the settings do not let it be planned."""
        return policy.check_allowed(ask, self.state.config)

    def config_problems(self) -> tuple[str, ...]:
        """Problems of the SchedulerConfig, as far as it and the nodes can be read."""
        config = self.state.config
        if config is None:
            return ()
        if self.namespace:
            said = [each for each in config.status.conditions if each.type == "Ready" and each.status == "False"]
            return tuple(f"SchedulerConfig {config.metadata.name}: {each.message}" for each in said)
        verdict = self.state.reader.check_config()
        return () if verdict.ready else (f"SchedulerConfig {config.metadata.name}: {verdict.message}",)

    # --- what waits and what runs -----------------------------------------------------------------------

    def find_waiting(self) -> None:
        """Find everything that waits."""
        self.asks, self.problems = {}, {}
        for workload in self.state.workloads.values():
            uid = workload.meta.uid
            if uid not in self.state.runs and workload.is_wanted:
                if missing := prerequisites.find_missing(self.state, workload):
                    self.problems[uid] = missing.message
                    continue
                try:
                    self.asks[uid] = self.ask_of(workload)
                except errors.Permanent as exc:
                    self.problems[uid] = str(exc)
        self.gangs.start_leading(LeaderActions(request_plan=self._note_ask))
        for owner in self.gangs.owners():
            group = self.gangs.group(owner)
            if group is not None and group.problem:
                self.problems[owner] = group.problem
        for uid, pod in self._lone_pods():
            try:
                self.asks[uid] = self.ask_of_pod(pod)
            except errors.Permanent as exc:
                self.problems[uid] = str(exc)

    def _note_ask(self, ask: Ask) -> None:
        self.asks[ask.owner] = self.limit_ask(ask)

    def _lone_pods(self) -> Iterator[tuple[str, core.Pod]]:
        """GPU pods of no gang and of no workload of ours that have no node yet."""
        in_gangs = {uid for owner in self.gangs.owners() for uid in self._list_members(owner)}
        for uid, pod in self.state.pods.items():
            if uid not in in_gangs and not pod.spec.nodeName and self.state.is_external(pod) and is_gpu_pod(pod):
                yield uid, pod

    def _list_members(self, owner: str) -> Iterable[str]:
        group = self.gangs.group(owner)
        return group.members if group is not None else ()

    def list_in_order(self) -> list[str]:
        """Owners of waiting workloads that free GPUs could start, in queue order.

        Creation times have whole seconds; among workloads of one second the older resource version goes first.
        """
        queue = Queue()
        arrived = sorted(self.asks.values(), key=lambda ask: (ask.since, self._version_of(ask.owner)))
        for number, ask in enumerate(ask for ask in arrived if not self._is_out_of_turn(ask)):
            since_s = timestamp.epoch_seconds(ask.since) + number / _ARRIVALS
            queue.put(workload_from_ask(ask, self.fleet.fitter, since_s))
        return [work.key for work in queue.iterate_in_order(self.held_by_namespace())]

    def _is_out_of_turn(self, ask: Ask) -> bool:
        return self.is_hopeless(ask) or self._needs_repair(ask.owner)

    def _needs_repair(self, owner: str) -> bool:
        """Whether it had a place, and could not start for a cause that other workloads' ends do not cure."""
        workload = self.state.find_workload(owner)
        if workload is None:
            said = (run_state.scheduler_refusal(pod) for pod in self.state.owners.pods(owner))
            return any(refusal_text.find_missing_volume(each.message) for each in said if each is not None)
        if workload.status.observed_generation != workload.meta.generation:
            return False
        return any(_is_repair(each) for each in workload.status.conditions if each.status == "False")

    def is_hopeless(self, ask: Ask) -> bool:
        """Whether waiting cannot help: no node could run a pod of it, or the scheduler wrote so."""
        if self._written_refusal(ask) is not None:
            return True
        whole = planner.divide_ask(self.fleet.fitter, ask)
        requests = [role.request for role in whole.gang.roles] if whole.gang is not None else [whole.request]
        return any(find_unmet(self.fleet.fitter, request, whole.fields) is not None for request in requests)

    def refuse_hopeless(self, ask: Ask) -> Refusal | None:
        """Why waiting cannot help, as the scheduler wrote it or would write it; None: waiting may help."""
        if not self.is_hopeless(ask):
            return None
        found = self._written_refusal(ask) or planner.make_plan(self.fleet, ask)
        return found if isinstance(found, Refusal) else None

    def _written_refusal(self, ask: Ask) -> Refusal | None:
        """What the scheduler wrote into the status of a workload that never starts as it is."""
        workload = self.state.find_workload(ask.owner)
        if workload is None or workload.status.observed_generation != workload.meta.generation:
            return None
        conditions = (each for each in workload.status.conditions if each.status == "False")
        said = next((each for each in conditions if each.reason in _HOPELESS), None)
        return None if said is None else Refusal(Reason(said.reason), said.message, possible=False)

    def _version_of(self, owner: str) -> int:
        target = self.state.owners.event_target(owner)
        version = target.meta.resourceVersion if target is not None else ""
        return int(version) if version and version.isdigit() else 0

    def held_by_namespace(self) -> dict[str, int]:
        """Namespace -> thousandths of GPUs that its pods hold."""
        found: dict[str, int] = {}
        for uid, pod in self.state.pods.items():
            milli = sum(grant_milli(grant, self.fleet.snapshot) for grant in self.fleet.grants(uid))
            if milli:
                found[pod.metadata.namespace] = found.get(pod.metadata.namespace, 0) + milli
        return found

    def list_evictable(self) -> Evictable:
        """What may be preempted, under names for users."""
        budgets = DisruptionBudgets(self.state.budgets)
        running = tuple(self._list_victims(budgets))
        return Evictable(running, self.now_s, budgets.left)

    def _list_victims(self, budgets: DisruptionBudgets) -> Iterator[Running]:
        if not policy.spec_of(self.state.config).enablePreemption:
            return
        for each in self.census.list_preemptible():
            pods = self.state.owners.pods(each.name)
            budget = budgets.budget_of_all(pods)
            if budget is not None and not any(pod.metadata.deletionTimestamp for pod in pods):
                yield replace(each, name=self.state.owners.title(each.name), budget=budget)


def _is_repair(said: Condition) -> bool:
    if said.reason == run_state.NODE_REFUSED:
        return refusal_text.needs_repair(said.message)
    if said.reason == run_state.PODS_NOT_CREATED:
        # Other workloads give quota back when they end.
        return "exceeded quota" not in said.message
    return said.reason in _REPAIRS


def is_gpu_pod(pod: core.Pod) -> bool:
    try:
        return podrequest.asks_for_gpus(podspec.sum_requests(pod.spec))
    except errors.Permanent:
        return False


# --- reading ---------------------------------------------------------------------------------------------


def empty_view() -> View:
    """A view of a cluster of which nothing is known yet."""
    state = ClusterState()
    return View(state, state.gangs, RunningView(state, state.gangs, names.DEFAULT_IMAGE), time.time())


def make_view(
    found: Mapping[Resource[Any], Iterable[Any]],
    gang_kinds: Iterable[Resource[Any]],
    now_s: float,
    *,
    namespace: str = "",
) -> View:
    """Return a view of objects that were read already; `namespace`: the only one they are of."""
    view = replace(empty_view(), now_s=now_s, listed=tuple(found), namespace=namespace)
    view.state.claim_names.is_watched = resources.RESOURCE_CLAIM in found
    _feed_state(view.state, {kind: found.get(kind, ()) for kind in (*found, *gang_kinds, resources.JOB)}, gang_kinds)
    if namespace:
        view.gangs.start_leading(LeaderActions())
        return view
    view.find_waiting()
    return replace(view, warnings=view.state.reader.problems)


async def read(client: KubeClient) -> View:
    """List everything once, and find what waits."""
    client = read_only(client)
    gang_kinds = [kind for kind in await dialects.find_served(client) if kind is not resources.JOB]
    own = set(await dialects.find_served(client, OWN))
    lists = [_List(kind) for kind in OWN if kind in own] + [
        _List(resources.NODE, needed=True),
        _List(resources.POD_DISRUPTION_BUDGET),
        _List(resources.JOB),
        _List(resources.DEPLOYMENT),
        _List(resources.POD, needed=True),
        _List(resources.PRIORITY_CLASS),
        *(_List(kind) for kind in gang_kinds),
    ]
    view = await _read_view(client, lists, gang_kinds)
    view.find_waiting()
    return replace(view, warnings=view.warnings + view.state.reader.problems)


async def read_namespace(client: KubeClient, namespace: str) -> View:
    """List one namespace, as far as the user may; of the rest of the cluster only the settings.

    The view knows no nodes: nothing can be planned on it.
    """
    client = read_only(client)
    gang_kinds = [kind for kind in await dialects.find_served(client) if kind.namespaced and kind is not resources.JOB]
    own = [kind for kind in await dialects.find_served(client, OWN) if kind in _NAMESPACED]
    lists = [_List(kind, namespace=namespace) for kind in (*own, resources.JOB, *gang_kinds)]
    lists.append(_List(resources.DEPLOYMENT, namespace=namespace))
    lists.append(_List(resources.POD, namespace=namespace))
    lists.append(_List(resources.SCHEDULER_CONFIG))
    view = await _read_view(client, lists, gang_kinds, namespace)
    view.gangs.start_leading(LeaderActions())
    return view


async def _read_view(
    client: KubeClient, lists: Sequence[_List], gang_kinds: Iterable[Resource[Any]], namespace: str = ""
) -> View:
    """Read the lists into a state. `gang_kinds`: kinds of externally created gangs among them."""
    found = dict(await asyncio.gather(*(each.read(client) for each in lists)))
    view = empty_view()
    view.state.claim_names.is_watched = any(
        each.kind is resources.RESOURCE_CLAIM and not each.problem for each in lists
    )
    _feed_state(view.state, found, gang_kinds)
    return replace(
        view,
        warnings=tuple(dict.fromkeys(each.problem for each in lists if each.problem)),
        listed=tuple(each.kind for each in lists if not each.problem),
        hidden=tuple(dict.fromkeys(each.kind for each in lists if each.hidden)),
        namespace=namespace,
    )


def _feed_state(
    state: ClusterState, found: Mapping[Resource[Any], Iterable[Any]], gang_kinds: Iterable[Resource[Any]]
) -> None:
    """Give the objects to the state, in the order in which they can be understood."""
    for kind in (*gang_kinds, resources.JOB):
        state.group_objects.add_store(kind, {obj.metadata.key: obj for obj in found[kind]})
    for kind, listener in state.listeners().items():
        for obj in found.get(kind, ()):
            listener(Change(obj.metadata.key, None, obj))


@dataclass
class _List:
    """One kind to be listed."""

    kind: Resource[Any]
    #: empty: all of them
    namespace: str = ""
    #: whether it is required
    needed: bool = False
    problem: str = ""
    #: whether the user may not list it
    hidden: bool = False

    async def read(self, client: KubeClient) -> tuple[Resource[Any], list[Any]]:
        chosen = selector_of(self.kind)
        selectors = {"labelSelector": chosen.label, "fieldSelector": chosen.field}
        params = {key: text for key, text in selectors.items() if text}
        try:
            return self.kind, await client.list(self.kind, self.namespace or None, **params)
        except Forbidden as exc:
            if self.needed:
                raise ClusterUnreadable(f"{exc}; deploy/advisor.yaml has the required rights") from exc
            self.hidden = True
            self.problem = f"you may not list {self.kind.full_name}"
            return self.kind, []
        except errors.Permanent as exc:
            if self.needed:
                raise errors.Permanent(f"{exc}; deploy/advisor.yaml has the required rights") from exc
            self.problem = f"{self.kind.plural} could not be read: {exc}"
            return self.kind, []
