"""Answers kube-scheduler's calls about a pod, from memory and without a write.

A pod with a seat may only use that seat. A member of a gang without a plan fits nowhere; the answer says what it waits
for. Any other pod is placed at once: the answer is the best of the offered nodes, one name only, so that kube-scheduler
skips its own scoring. The place is assumed for the pod until the watch shows it bound, or the time is over.

A call only says which pod it is about (uid and namespace). What the pod asks for comes from the watch. A pod that the
watch has not shown holds nothing and registers nothing, so a caller cannot take GPUs with pods that do not exist.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe import errors
from kgwe.cluster.workload.owner import Nomination
from kgwe.kube.translate import extender_wire, podrequest, podspec
from kgwe.model.units import amounts
from kgwe.placement.planning.ask import Ask
from kgwe.placement.pod.engine import Decision
from kgwe.placement.pod.fit_status import FitStatus
from kgwe.placement.pod.ranking import Strategy
from kgwe.placement.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from kgwe.apps.scheduler.recording.recorder import Recorder
    from kgwe.cluster.gangs.external_gangs import ExternalGangs
    from kgwe.cluster.state.cluster_state import ClusterState
    from kgwe.kube.api import core
    from kgwe.kube.translate.extender_wire import Args, BindArgs, MetaVictims, PreemptArgs
    from kgwe.kube.translate.podrequest import PodRequest
    from kgwe.placement.fleet.node import Request
    from kgwe.placement.fleet.snapshot import Grant

# Requests that are remembered: kube-scheduler asks about a waiting pod again and again.
_KEPT: Final = 20_000
_POINTS_PER_SCORE: Final = 10.0
_PRIORITY_SHIFT: Final = 2**31


class ExtenderHandlers:
    """The extender's verbs over one state."""

    def __init__(
        self,
        state: ClusterState,
        gangs: ExternalGangs,
        *,
        assume_s: float,
        blocked: Callable[[int], NDArray[np.bool_] | None] = lambda _priority: None,
        on_decision: Callable[[str, bool, float], None] = lambda _strategy, _placed, _took_s: None,
        recorder: Recorder | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`blocked`: nodes that pods of that priority must not use, because they are reserved.

        `on_decision`: called with the strategy, whether there was a place, and the time it took.
        """
        self._state = state
        self._gangs = gangs
        self._assume_s = assume_s
        self._blocked = blocked
        self._clock = clock
        # uid -> (the annotations it was read from, the request)
        self._asks: dict[str, tuple[Mapping[str, str], PodRequest | str]] = {}
        self._on_decision = on_decision
        self._recorder = recorder

    def pod(self, args: Args | PreemptArgs) -> core.Pod | None:
        """The pod of a call as the watch shows it; None: it shows no such pod in that namespace."""
        pod = self._state.pods.get(args.uid)
        return pod if pod is not None and pod.metadata.namespace == args.namespace else None

    # --- filter -----------------------------------------------------------------------------------------

    def filter(self, args: Args) -> tuple[bytes, str]:
        """(reply, outcome for the metrics)"""
        pod = self.pod(args)
        if pod is None or self._state.is_early(pod):
            # kube-scheduler tries an error again soon; a refusal stands until the workload is placed elsewhere.
            what = "the owner of " if pod is not None else ""
            return extender_wire.reply_with_error(
                f"kgwe: {what}pod {args.pod_name} is not in the watch yet; retrying"
            ), "unknown"
        if pod.spec.nodeName:
            # It holds its place already. To assume it again would drop that place when the assumption expires.
            return extender_wire.reply_with_error(
                f"kgwe: pod {args.pod_name} is already bound to {pod.spec.nodeName}"
            ), "bound"
        seat = self._seat_node(pod)
        if seat is not None:
            if args.has_node(seat):
                return extender_wire.reply_with_node(seat), "planned"
            return args.refuse_all(f"kgwe: assigned to {seat}, which kube-scheduler filtered out"), "planned_elsewhere"
        self._gangs.note_filter_call(pod)
        if (waits := self._gangs.why_waiting(pod)) is not None:
            return args.refuse_all(waits), "gang_waits"
        if not podrequest.says_its_share(pod):
            return self._place_share(args, pod)
        ask = self._ask_of(pod)
        if isinstance(ask, str):
            return args.refuse_all(ask), "invalid"
        return self._place_pod(args, pod, (ask,))

    def _place_share(self, args: Args, pod: core.Pod) -> tuple[bytes, str]:
        """Place a pod that asks for a share of any size: of the most frequent size, else of another."""
        divisions = self._state.fleet.fitter.share_counts
        if not divisions or podspec.sum_requests(pod.spec)[amounts.SHARED] > 1:
            # It is unknown how nodes divide their GPUs, or what several shares are worth: kube-scheduler counts them.
            return extender_wire.reply_with_nodes(args.names()), "not_ours"
        asks = []
        for pieces in divisions:
            ask = self._read_ask(pod, pieces)
            if isinstance(ask, str):
                return args.refuse_all(ask), "invalid"
            asks.append(ask)
        return self._place_pod(args, pod, asks)

    def _seat_node(self, pod: core.Pod) -> str | None:
        """The node of the pod's seat; None when it has none."""
        seat = self._gangs.seat(pod.metadata.uid) or self._state.seat_of(pod)
        if seat is None:
            return None
        holding = self._state.ledger.reserved_seat(*seat)
        return holding.node if holding else None

    def _ask_of(self, pod: core.Pod) -> PodRequest | str:
        """What the pod asks for, or why that cannot be read."""
        uid, annotations = pod.metadata.uid, pod.metadata.annotations
        known = self._asks.get(uid)
        if known is not None and known[0] == annotations:
            return known[1]
        ask = self._read_ask(pod, self._state.fleet.shares_per_gpu(""))
        # Otherwise the size of its share depends on what nodes offer now.
        if podrequest.says_its_share(pod):
            if len(self._asks) >= _KEPT:
                del self._asks[next(iter(self._asks))]
            self._asks[uid] = annotations, ask
        return ask

    @staticmethod
    def _read_ask(pod: core.Pod, pieces: int) -> PodRequest | str:
        try:
            return podrequest.read_request(pod, pieces=pieces)
        except errors.Permanent as exc:
            return f"kgwe: {exc}"

    def _place_pod(self, args: Args, pod: core.Pod, asks: Sequence[PodRequest]) -> tuple[bytes, str]:
        """Place the pod by the first of these asks that fits."""
        now = self._clock()
        self._state.expire_assumed(now)
        found: Decision | None = None
        ask = asks[0]

        def decide() -> tuple[Mapping[str, int], Grant] | None:
            nonlocal found, ask
            for ask in asks:
                answer = self._decide_node(args, pod, ask)
                if isinstance(answer, Decision):
                    found = answer
                    return ask.amounts, answer.grant
            return None

        self._state.ledger.try_assume_pod(args.uid, Nomination(args.uid).text, decide, now + self._assume_s)
        strategy = ask.strategy or self._state.fleet.engine.strategy
        self._on_decision(strategy, found is not None, self._clock() - now)
        if found is None:
            return self._refuse_nodes(args, asks), "no_room"
        return extender_wire.reply_with_node(found.name), "placed"

    def _decide_node(self, args: Args, pod: core.Pod, ask: PodRequest) -> Decision | Refusal:
        engine, blocked = self._state.fleet.engine, self._blocked(pod.spec.priority)
        strategy = ask.strategy or engine.strategy
        draws = (len(self._asks),) if strategy is Strategy.RANDOM else ()
        found = None
        if not draws:
            found = engine.decide_offered(ask.request, args.has_node, strategy=strategy, excluded=blocked)
        elif blocked is None:
            drawn = engine.decide(ask.request, strategy=strategy, rng=np.random.default_rng(draws[0]))
            found = drawn if isinstance(drawn, Refusal) or args.has_node(drawn.name) else None
        if found is None:
            # kube-scheduler offers few nodes, or those drawn or ranked first are not among them.
            draws = ()
            found = engine.decide(ask.request, strategy=strategy, candidates=self._offered_nodes(args, blocked))
        if self._recorder is not None:
            asked = _build_ask(pod, replace(ask, strategy=strategy))
            among = None if draws else self._find_restriction(args, ask.request, strategy, found, blocked)
            self._recorder.record_pod(self._state.fleet, asked, found, among=among, draws=draws)
        return found

    def _find_restriction(
        self,
        args: Args,
        request: Request,
        strategy: Strategy,
        found: Decision | Refusal,
        blocked: NDArray[np.bool_] | None,
    ) -> list[str] | None:
        """The nodes that the pod was offered; None: the decision would be the same with all nodes."""
        engine = self._state.fleet.engine
        best = engine.list_best_nodes(request, 1, strategy=strategy)
        if blocked is None and best == ([found.node] if isinstance(found, Decision) else []):
            return None
        nodes = engine.snapshot.nodes
        return [nodes[number].name for number in self._offered_nodes(args, blocked).tolist()]

    def _offered_nodes(self, args: Args, blocked: NDArray[np.bool_] | None) -> NDArray[np.intp]:
        index = self._state.fleet.snapshot.index
        # In a fixed order, so that the same node wins a tie whatever the order of kube-scheduler's list.
        offered = np.array(sorted([index[name] for name in args.names() if name in index]), np.intp)
        return offered if blocked is None else offered[~blocked[offered]]

    def _refuse_nodes(self, args: Args, asks: Sequence[PodRequest]) -> bytes:
        """Refuse each node with a reason. Where only running pods are in the way, kube-scheduler may preempt."""
        fleet = self._state.fleet
        index = fleet.snapshot.index
        codes, never = fleet.engine.check_nodes(asks[0].request), fleet.fitter.check_empty_nodes(asks[0].request)
        for ask in asks[1:]:
            # Other nodes offer shares of another size.
            other = fleet.fitter.check_empty_nodes(ask.request)
            here = other != FitStatus.TOO_FEW_GPUS
            codes = np.where(here, fleet.engine.check_nodes(ask.request), codes)
            never = np.where(here, other, never)
        codes, never = codes.tolist(), never.tolist()
        failed: dict[str, str] = {}
        unresolvable: dict[str, str] = {}
        for name in args.names():
            number = index.get(name)
            if number is None:
                unresolvable[name] = "kgwe: node has no GPUs known to KGWE"
            elif never[number]:
                unresolvable[name] = _WORDS[never[number]]
            else:
                failed[name] = _WORDS[codes[number] or FitStatus.GPUS_TAKEN]
        return extender_wire.reply_without_nodes(failed, unresolvable)

    # --- prioritize -------------------------------------------------------------------------------------

    def prioritize(self, args: Args) -> bytes:
        pod = self.pod(args)
        names = args.names()
        if pod is None:
            return args.reply_with_scores([0] * len(names))
        seat = self._seat_node(pod)
        if seat is not None:
            return args.reply_with_scores([extender_wire.HIGHEST if name == seat else 0 for name in names])
        ask = self._ask_of(pod)
        if isinstance(ask, str):
            return args.reply_with_scores([0] * len(names))
        fleet = self._state.fleet
        index = fleet.snapshot.index
        points = np.rint(fleet.engine.score_nodes(ask.request) / _POINTS_PER_SCORE).astype(np.intp)
        try:
            return args.reply_with_scores(points[list(map(index.__getitem__, names))].tolist())
        except KeyError:  # not all are known
            return args.reply_with_scores([int(points[index[name]]) if name in index else 0 for name in names])

    # --- preempt ----------------------------------------------------------------------------------------

    def preempt(self, args: PreemptArgs) -> bytes:
        """The nodes and victims that kube-scheduler may use for preemption.

        kube-scheduler knows neither gangs nor seats. A node is kept only if the pod then fits there by the ledger, too,
        and no victim belongs to a gang or workload. Members of gangs get no nodes: the planner makes room for them.
        Pods that the watch has not shown neither preempt nor are preempted.

        Of these nodes the answer names the best one, as kube-scheduler would choose it. What the pod wants is reserved
        there at once: its victims may be gone before the watch shows that the pod is nominated.
        """
        pod = self.pod(args)
        if (
            pod is None
            or pod.spec.nodeName
            or self._seat_node(pod) is not None
            or self._gangs.why_waiting(pod) is not None
        ):
            return extender_wire.reply_with_victims({})
        ask = self._ask_of(pod)
        if isinstance(ask, str):
            return extender_wire.reply_with_victims({})
        kept = {
            node: victims
            for node, victims in args.victims().items()
            if self._makes_room(args.uid, ask, pod.spec.priority, node, victims)
        }
        if not kept:
            return extender_wire.reply_with_victims({})
        best = min(kept, key=lambda node: self._rank_victims(kept[node]))
        self._state.nominations.expect(pod, best, self._clock() + self._assume_s)
        return extender_wire.reply_with_victims({best: kept[best]})

    def _rank_victims(self, victims: MetaVictims) -> tuple[int, int, int, int]:
        """The order of kube-scheduler: fewest broken budgets, lowest highest priority, lowest sum, fewest pods."""
        priorities = [pod.spec.priority for uid in _uids_of(victims) if (pod := self._state.pods.get(uid)) is not None]
        # kube-scheduler adds a constant to each priority so that more pods never count less than fewer.
        shifted = sum(priority + _PRIORITY_SHIFT for priority in priorities)
        return victims.NumPDBViolations, max(priorities, default=0), shifted, len(priorities)

    def _makes_room(self, pod: str, ask: PodRequest, priority: int, node: str, victims: MetaVictims) -> bool:
        fleet = self._state.fleet
        number = fleet.snapshot.index.get(node)
        uids = _uids_of(victims)
        if number is None or not all(self._may_go(uid, node, priority) for uid in uids):
            return False
        with fleet.snapshot.trial() as trial:
            trial.release_all(grant for uid in uids for grant in fleet.grants(uid))
            trial.release_all(self._state.ledger.grants(Nomination(pod).text))  # reserved by an earlier answer
            return fleet.fitter.find_grant(ask.request, number) is not None

    def _may_go(self, uid: str, node: str, priority: int) -> bool:
        pod = self._state.pods.get(uid)
        if pod is None or pod.spec.priority >= priority:
            return False
        holding = self._state.fleet.holding(uid)
        if (pod.spec.nodeName or (holding.node if holding else "")) != node:
            return False  # its place is elsewhere
        # Seats belong to workloads and gangs: stopping one member would stop the others without freeing them.
        return self._state.seat_of(pod) is None

    # --- bind -------------------------------------------------------------------------------------------

    def refuse_binding(self, args: BindArgs) -> str:
        """Why the pod may not be bound there; empty: it may. Only what a filter answered is bound."""
        pod = self._state.pods.get(args.PodUID)
        if pod is None or (pod.metadata.namespace, pod.metadata.name) != (args.PodNamespace, args.PodName):
            return f"pod {args.PodNamespace}/{args.PodName} with uid {args.PodUID} is not in the watch yet"
        if not podrequest.says_its_share(pod) and args.PodUID not in self._state.ledger.assumed:
            return ""  # kube-scheduler placed it alone
        holding = self._state.fleet.holding(args.PodUID)
        node = self._seat_node(pod) or (holding.node if holding else "")
        if node == args.Node:
            return ""
        return f"assigned to {node}" if node else "its reservation expired before it was bound"

    # --- looking inside ---------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, object]:
        """The state of the scheduler, for /debug/snapshot."""
        fleet, ledger = self._state.fleet, self._state.ledger
        snapshot = fleet.snapshot
        return {
            "generation": fleet.generation,
            "version": snapshot.version,
            "nodes": {
                node.name: {
                    "ready": node.ready,
                    "free": int(snapshot.free[number]).bit_count(),
                    "freeCards": f"{int(snapshot.free[number]):x}",
                    "cards": node.shape.gpu_count,
                    "cpuMilli": int(snapshot.cpu_milli[number]),
                    "holders": list(fleet.holders(node.name)),
                }
                for number, node in enumerate(snapshot.nodes)
            },
            "seats": {
                owner: {str(number): holding.node for number, holding in ledger.booked_seats(owner).items()}
                for owner in ledger.owners()
            },
            "assumed": list(ledger.assumed),
            "gangs": self._gangs.dump(),
        }


def _build_ask(pod: core.Pod, ask: PodRequest) -> Ask:
    """The ask of a single pod."""
    meta = pod.metadata
    return Ask(
        meta.uid, ask.request, ask.amounts, strategy=ask.strategy or "", priority=pod.spec.priority,
        since=meta.creationTimestamp or "", namespace=meta.namespace, name=meta.name,
    )  # fmt: skip


def _uids_of(victims: MetaVictims) -> list[str]:
    """Each victim once: it gives its place once."""
    return list(dict.fromkeys(victim.UID for victim in victims.Pods or ()))


_WORDS: Final[Mapping[int, str]] = {verdict: f"kgwe: {verdict.reason}" for verdict in FitStatus}


def is_gpu_pod(pod: core.Pod) -> bool:
    try:
        return podrequest.asks_for_gpus(podspec.sum_requests(pod.spec))
    except errors.Permanent:
        return False
