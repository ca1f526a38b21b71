"""Preemption: less important workloads are stopped when that lets a more important one start.

    refused ──► cheapest victims that suffice ──► their place reserved ──► stopped ──► all gone ──► the workload starts
                (plan_preemption, in a thread)                               │
                                                                             └ a budget refuses: nothing more is stopped

Pods with a disruption budget are evicted first. Then runs are deleted, and then their other pods are evicted: a Job
that still exists replaces an evicted pod at once. A bound replacement is a victim too, and is waited for.

Victims consent: by `preemptible` of a workload, or by an annotation on other pods.
A stopped workload waits for a place again, in the order of creation; other pods are created again by their owners.
A workload has one preemption at a time; if it is deleted meanwhile, the reserved place is free again.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import itertools
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import structlog

from kgwe import errors
from kgwe.apps.background import TaskSet
from kgwe.cluster.workload import scheduler_policy
from kgwe.cluster.workload.owner import ExternalGangOwner
from kgwe.cluster.workload.pdb import DisruptionBudgets
from kgwe.kube.client import eviction
from kgwe.kube.client.client import DisruptionBudgetRefused
from kgwe.kube.client.events import Event
from kgwe.model.units.phrasing import list_names
from kgwe.placement.disruption.preemption import PreemptionPlan, plan_preemption
from kgwe.placement.disruption.running import Running
from kgwe.placement.live.holding import Holding
from kgwe.placement.live.scratch import ScratchFleet
from kgwe.placement.planning import planner as planning
from kgwe.placement.planning.plan import Seat
from kgwe.placement.refusal import Reason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from kgwe.apps.scheduler.deps import Deps
    from kgwe.apps.scheduler.planning.planner import Planner
    from kgwe.cluster.checkpoint.caller import Caller
    from kgwe.cluster.state.running_view import RunningView
    from kgwe.cluster.workload.runs import Run
    from kgwe.kube.api import core
    from kgwe.placement.planning.ask import Ask

log = structlog.get_logger(__name__)

# Refusals of one pass are handled together.
_GATHER_S: Final = 0.1
# After a search without result, the next one for the same workload comes after this long at the earliest and latest.
_PAUSE_S: Final = 2.0
_AGAIN_S: Final = 15.0
# A preemption whose victims are not gone after this long ends.
_PATIENCE_S: Final = 600.0
# Pauses after errors of the API server, before a victim is stopped again.
_PAUSES_S: Final = (0.1, 0.5, 2.0, 5.0)
# Reasons for waiting that preemption can help with.
_HELPS: Final = frozenset(
    {
        Reason.INSUFFICIENT_GPU,
        Reason.INSUFFICIENT_RESOURCES,
        Reason.TOPOLOGY_NOT_MET,
        Reason.PREEMPTED,
        Reason.RECOVERING,
    }
)
# Workloads for which one look searches victims.
_MOST: Final = 8
_LISTED: Final = 5


class _EndedError(errors.KgweError):
    """The preemption is no longer under way: no further victim is stopped."""


@dataclass
class PreemptionInProgress:
    """One preemption under way."""

    since: float
    words: str
    #: uids of the pods to stop
    pods: frozenset[str]
    #: workload -> its run to delete
    runs: dict[str, Run]
    stopped: bool = False


class PreemptionController:
    """The preemptions of one term of leadership."""

    def __init__(
        self,
        deps: Deps,
        planner: Planner,
        census: RunningView,
        *,
        checkpoints: Caller | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = deps.client
        self._state = deps.state
        self._gangs = deps.gangs
        self._events = deps.events
        self._metrics = deps.metrics
        self._planner = planner
        self._faults = deps.faults
        self._census = census
        self._clock = clock
        self._checkpoints = checkpoints
        self._checkpoint_s = deps.settings.checkpoint_seconds
        self.under_way: dict[str, PreemptionInProgress] = {}
        self._tried: dict[str, tuple[float, int]] = {}  # owner -> when, and at which version of the fleet
        self._copy: ScratchFleet | None = None
        self._thread: concurrent.futures.ThreadPoolExecutor | None = None
        self._looking: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._tasks = TaskSet()

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await self._tasks.cancel()
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    # --- what is heard ----------------------------------------------------------------------------------

    def look_soon(self) -> None:
        """A workload was refused a place, or something that preemption depends on has changed."""
        self._look_in(_GATHER_S)

    def handle_freed_capacity(self) -> None:
        """Capacity was freed: perhaps the last victim is gone."""
        for owner, each in list(self.under_way.items()):
            if self._planner.waiting_ask(owner) is None:
                self._end_preemption(owner, "the workload is gone or was placed elsewhere")
            elif each.stopped and self._are_gone(each):
                del self.under_way[owner]
                log.info("preempted", owner=owner, seconds=round(self._clock() - each.since, 2))
                self._planner.place_reserved(owner)
            elif self._clock() - each.since > _PATIENCE_S:
                self._end_preemption(owner, "its victims did not stop in time")

    def forget(self, owner: str) -> None:
        self._tried.pop(owner, None)
        if owner in self.under_way:
            self._end_preemption(owner, "the workload is gone")

    def _are_gone(self, each: PreemptionInProgress) -> bool:
        """Whether no victim has its place any more; a Job may have replaced pods before it was deleted."""
        return not each.pods & self._state.pods.keys() and not any(
            self._is_current(owner, run) or any(pod.spec.nodeName for pod in self._state.pods_of(run).values())
            for owner, run in each.runs.items()
        )

    def _is_current(self, owner: str, run: Run) -> bool:
        """Whether the workload still has this run."""
        known = self._state.runs.get(owner)
        return known is not None and known.meta.uid == run.meta.uid

    def _end_preemption(self, owner: str, why: str) -> None:
        del self.under_way[owner]
        self._planner.release_reservation(owner)
        log.info("preemption_ended", owner=owner, reason=why)

    # --- looking for victims ----------------------------------------------------------------------------

    def _look_in(self, delay_s: float) -> None:
        when = self._clock() + delay_s
        if self._timer is not None:
            if self._due <= when:
                return
            self._timer.cancel()
        self._due = when
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._look)

    def _look(self) -> None:
        self._timer = None
        self.handle_freed_capacity()
        if self._looking is None and scheduler_policy.spec_of(self._state.config).enablePreemption:
            self._looking = asyncio.create_task(self._look_for_victims())
            self._looking.add_done_callback(self._handle_look_done)

    def _handle_look_done(self, task: asyncio.Task[None]) -> None:
        self._looking = None
        broken = None if task.cancelled() else task.exception()
        if isinstance(broken, Exception):
            self._faults.record("preempt", "", broken)
            self._look_in(_AGAIN_S)

    async def _look_for_victims(self) -> None:
        in_vain: set[tuple[Ask, int]] = set()
        seen, running = (-1, -1), list[Running]()
        budgets = DisruptionBudgets(self._state.budgets)
        for ask in itertools.islice(self._list_preemptors(), _MOST):
            fleet = self._state.fleet
            if seen != (fleet.generation, fleet.snapshot.version):
                seen, budgets = (fleet.generation, fleet.snapshot.version), DisruptionBudgets(self._state.budgets)
                running = list(self._list_victims(budgets))
            victims = [each for each in running if each.priority < ask.priority]
            shape = (ask.without_identity(), ask.priority)
            if not victims or shape in in_vain:
                continue
            self._tried[ask.owner] = (self._clock(), self._state.fleet.snapshot.version)
            if not await self._try_preempt(ask, victims, budgets):
                in_vain.add(shape)
        if self._planner.waiting_count:
            self._look_in(_AGAIN_S)

    async def _try_preempt(self, ask: Ask, victims: Sequence[Running], budgets: DisruptionBudgets) -> bool:
        """Returns whether victims were found. An error concerns this workload only; it is tried again as others are."""
        try:
            plan = await self._plan_preemption(ask, victims, budgets)
            if plan is not None:
                self._begin_preemption(ask, plan, budgets)
        except Exception as exc:  # noqa: BLE001 - counted; the others have their turn
            self._faults.record("preempt", ask.owner, exc)
            return False
        return plan is not None

    def _list_preemptors(self) -> Iterator[Ask]:
        """Waiting workloads by priority; each once per version of the fleet, and not too often."""
        planner = self._planner
        lowest = min(self._census.list_preemptible_priorities(), default=None)
        if lowest is None:
            return
        refused = [(ask, refusal) for ask, refusal in planner.refused_asks() if ask.priority > lowest]
        asks = [ask for ask, refusal in refused if refusal.code in _HELPS and refusal.possible]
        for ask in sorted(asks, key=lambda each: each.sort_key()):
            at, version = self._tried.get(ask.owner, (-_AGAIN_S, -1))
            is_due = self._clock() >= at + (_PAUSE_S if version != self._state.fleet.snapshot.version else _AGAIN_S)
            if planner.waiting_ask(ask.owner) and ask.owner not in self.under_way and is_due and self._may_preempt(ask):
                yield ask

    def _may_preempt(self, ask: Ask) -> bool:
        """Whether the workload may preempt others: pods can have a preemptionPolicy of Never.

        Where parts of a gang are bound to different places, room that one of them could use may not help the other.
        """
        whole = ask.partial
        if whole is not None and whole.missing > 1 and any(role.segments for role in whole.gang.roles):
            return False
        owners = self._state.owners
        pods = owners.pods(ask.owner) if isinstance(owners.resolve(ask.owner), ExternalGangOwner) else []
        return all(pod.spec.preemptionPolicy != "Never" for pod in pods)

    def _list_victims(self, budgets: DisruptionBudgets) -> Iterator[Running]:
        """Everything that consents to be stopped, with its disruption budget."""
        busy = frozenset().union(*(each.pods for each in self.under_way.values()))
        for running in self._census.list_preemptible(self._faults.record):
            pods = self._state.owners.pods(running.name)
            budget = budgets.budget_of_all(pods)
            dying = any(pod.metadata.deletionTimestamp or pod.metadata.uid in busy for pod in pods)
            if budget is not None and not dying:
                yield replace(running, budget=budget)

    async def _plan_preemption(
        self, ask: Ask, victims: Sequence[Running], budgets: DisruptionBudgets
    ) -> PreemptionPlan | None:
        """Plan in a thread, on a copy of the fleet. The plan is void if its nodes have changed meanwhile."""
        fleet = self._state.fleet
        if self._copy is None:
            self._copy = ScratchFleet(fleet, fleet.weights)
            self._thread = concurrent.futures.ThreadPoolExecutor(1, "preemption")
        self._copy.sync()
        generation, version = fleet.generation, fleet.snapshot.version
        whole = planning.divide_ask(self._copy.fitter, ask)
        wanted = whole.request if whole.pods == 1 and whole.gang is None else planning.gang_request(whole)
        call = functools.partial(
            plan_preemption,
            self._copy.fitter,
            fleet.tree,
            wanted,
            victims,
            time.time(),
            priority=ask.priority,
            budgets=budgets.left,
        )
        found = await asyncio.get_running_loop().run_in_executor(self._thread, call)
        if not isinstance(found, PreemptionPlan):
            log.debug("no_victims", owner=ask.owner, reason=str(found))
            return None
        fleet = self._state.fleet
        touched = {grant.node for grant in found.placement}
        touched |= {grant.node for victim in found.victims for grant in victim.grants}
        if fleet.generation != generation or any(fleet.snapshot.changed[node] > version for node in touched):
            self._tried.pop(ask.owner, None)
            self._look_in(_GATHER_S)
            return None
        return found

    # --- stopping them ----------------------------------------------------------------------------------

    def _begin_preemption(self, ask: Ask, plan: PreemptionPlan, budgets: DisruptionBudgets) -> None:
        owner = ask.owner
        if self._planner.waiting_ask(owner) != ask:
            return
        if not plan.victims:
            self._planner.plan_soon()  # it fits without preemption
            return
        pods = [pod for victim in plan.victims for pod in self._state.owners.pods(victim.workload)]
        runs = {
            victim.workload: run
            for victim in plan.victims
            if (run := self._state.runs.get(victim.workload)) is not None
        }
        for victim in plan.victims:
            self._gangs.make_way(victim.workload)
        names = [self._state.owners.key(victim.workload) for victim in plan.victims]
        listed = list_names(names, _LISTED)
        preempting = PreemptionInProgress(
            self._clock(),
            f"preempting {listed}",
            frozenset(pod.metadata.uid for pod in pods if pod.spec.nodeName),
            runs,
        )
        self.under_way[owner] = preempting
        self._planner.reserve(owner, dict(enumerate(self._list_places(ask, plan))), ready=False)
        self._record_event(owner, "Preempting", f"{preempting.words} (cost {plan.cost.gpu_hours:.2f} GPU-hours)")
        log.info("preempting", owner=owner, victims=names, proven=plan.proven, gpu_hours=round(plan.cost.gpu_hours, 3))
        self._tasks.spawn(self._stop_victims(ask, preempting, pods, budgets))

    def _list_places(self, ask: Ask, plan: PreemptionPlan) -> Iterator[Holding]:
        """The places of the workload, by rank."""
        whole = planning.divide_ask(self._state.fleet.fitter, ask)
        nodes = self._state.fleet.snapshot.nodes
        if whole.gang is not None:
            wanted = [planning.pod_amounts(role.request) for role in whole.gang.roles for _ in range(role.replicas)]
        else:
            wanted = [dict(whole.amounts)] * whole.pods
        for amounts, grant in zip(wanted, plan.placement, strict=False):
            seat = Seat.from_grant(nodes[grant.node].name, grant)
            yield Holding(seat.node, amounts, seat.gpus, seat.slices)

    async def _stop_victims(
        self, ask: Ask, preempting: PreemptionInProgress, pods: Sequence[core.Pod], budgets: DisruptionBudgets
    ) -> None:
        """Stop pods with a disruption budget first, one by one: if one is refused, all others still run."""
        bound = [pod for pod in pods if pod.spec.nodeName]
        covered = [pod for pod in bound if budgets.budget_of(pod)]
        others = [pod for pod in bound if not budgets.budget_of(pod)]
        replaced = {uid for run in preempting.runs.values() for uid in self._state.pods_of(run)}
        evicted: list[core.Pod] = []
        try:
            await self._checkpoint(ask, bound)
            for pod in covered:
                await self._insist(preempting, functools.partial(self._evict_pod, pod))
                evicted.append(pod)
            lone = [functools.partial(self._evict_pod, pod) for pod in others if pod.metadata.uid not in replaced]
            await asyncio.gather(*(self._insist(preempting, each) for each in lone))
            for victim, run in preempting.runs.items():
                await self._insist(preempting, functools.partial(self._delete_run, victim, run, ask))
        except Exception as exc:  # noqa: BLE001 - also a defect of ours must not keep the place reserved
            await self._call_off(ask.owner, preempting, exc, evicted)
            return
        # These pods end with their runs. Eviction only saves the time until the garbage collector deletes them.
        ending = [self._evict_pod(pod) for pod in others if pod.metadata.uid in replaced]
        for problem in await asyncio.gather(*ending, return_exceptions=True):
            if isinstance(problem, BaseException):
                log.info("victim_left_to_garbage_collector", owner=ask.owner, error=str(problem))
        self._metrics.preemptions.inc(len(bound))
        for victim in preempting.runs:
            self._record_event(victim, "Preempted", f"preempted by {ask.name or ask.owner} (priority {ask.priority})")
        preempting.stopped = True
        self.handle_freed_capacity()

    async def _checkpoint(self, ask: Ask, pods: Sequence[core.Pod]) -> None:
        """Let the victims checkpoint as a whole. It takes no time if none declares how."""
        if self._checkpoints is not None:
            reason = f"preempted by {ask.name or ask.owner}"
            cause = f"preemption/{ask.owner}"
            await self._checkpoints.call(cause, pods, seconds=self._checkpoint_s, reason=reason)

    async def _insist(self, preempting: PreemptionInProgress, stop: Callable[[], Awaitable[None]]) -> None:
        """Repeat a write that the API server refused for now. Otherwise victims would have stopped without making room.

        It ends with the preemption: no victim is stopped for a workload that is gone.
        """
        for pause_s in itertools.chain(_PAUSES_S, itertools.repeat(_PAUSES_S[-1])):
            if not any(each is preempting for each in self.under_way.values()):
                raise _EndedError("it ended before all victims were stopped")
            try:
                await stop()
            except DisruptionBudgetRefused:
                raise
            except errors.Transient as exc:
                log.info("preemption_waits", error=str(exc), retry_in_s=pause_s)
                await asyncio.sleep(pause_s)
            else:
                return

    async def _evict_pod(self, pod: core.Pod) -> None:
        with contextlib.suppress(errors.NotFound):
            await eviction.evict_pod(self._client, pod)

    async def _delete_run(self, victim: str, run: Run, ask: Ask) -> None:
        if not self._is_current(victim, run):
            return
        self._planner.interruptions.record(victim, Reason.PREEMPTED, f"Preempted by {ask.name or ask.owner}")
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            await self._client.delete(run.resource, run.meta.name, run.meta.namespace, uid=run.meta.uid)

    async def _call_off(
        self, owner: str, preempting: PreemptionInProgress, why: Exception, evicted: Sequence[core.Pod]
    ) -> None:
        """End the preemption. Owners create evicted pods again; those of KGWE's own Jobs come back at once."""
        if self.under_way.get(owner) is preempting:
            self._end_preemption(owner, str(why))
        refused = isinstance(why, DisruptionBudgetRefused)
        if not isinstance(why, _EndedError):
            self._record_event(owner, "PreemptionRefused" if refused else "PreemptionFailed", str(why))
        for pod in evicted:
            if not self._state.is_external(pod):
                with contextlib.suppress(errors.KgweError):
                    await eviction.remove_tracking_finalizer(self._client, pod)

    # --- words ------------------------------------------------------------------------------------------

    def _record_event(self, owner: str, reason: str, words: str) -> None:
        """Record an Event on the workload, or on a pod of the gang."""
        target = self._state.owners.event_target(owner)
        if target is not None:
            self._events.record(Event(target.resource, target.meta, "Warning", reason, words, "Preemption"))
