"""One round of the controller: from what the informers show to layouts in GPUNodes and the status of strategies.

Strategies are taken by priority, then by name; a card belongs to the first that selects it. Each decides on its cards
of one geometry together (`kgwe.sharing.mig.rebalance`); the gate is shared, so that no more nodes are cut at a time
than allowed. Everything decided is in the GPUNodes' specs: what is remembered here only makes decisions calmer.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import structlog

from kgwe import errors
from kgwe.apps.mig import census, demand, drains
from kgwe.apps.mig.claims import Claims
from kgwe.apps.mig.status import Outcome, build_status, changes_only_messages
from kgwe.kube.api import resources, timestamp
from kgwe.kube.api.kgwe.gpunode import CardSpec, MIGLayout
from kgwe.kube.translate import mig_layouts
from kgwe.model.gpu import mig
from kgwe.model.units import quantity
from kgwe.sharing.mig import rebalance
from kgwe.sharing.mig.lifecycle import format_placement
from kgwe.sharing.mig.types import Gate, Group

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kgwe.apps.mig.census import MigCard
    from kgwe.apps.mig.settings import Settings
    from kgwe.kube.api import core
    from kgwe.kube.api.kgwe.gpunode import GPUNode
    from kgwe.kube.api.kgwe.gpuworkload import GPUWorkload
    from kgwe.kube.api.kgwe.migstrategy import MIGStrategy
    from kgwe.kube.client.client import KubeClient
    from kgwe.sharing.mig.types import MovablePod, PartitionedGpu, SliceRequest

log = structlog.get_logger(__name__)

FIELD_MANAGER: Final = "kgwe-mig"
# More than can be cut for in one go; the rest has its turn in the next.
_MOST_ASKS: Final = 256


@dataclass(frozen=True)
class Stores:
    """What the informers know, by key."""

    strategies: Mapping[str, MIGStrategy]
    nodes: Mapping[str, core.Node]
    gpu_nodes: Mapping[str, GPUNode]
    pods: Mapping[str, core.Pod]
    workloads: Mapping[str, GPUWorkload]
    claims: Claims = field(default_factory=Claims)


@dataclass
class _Memory:
    """Of one strategy."""

    busy: demand.SliceUsage = field(default_factory=demand.SliceUsage)
    due_at_s: float = 0.0
    is_due: bool = False
    told_at_s: float = -math.inf


@dataclass
class _Round:
    """What is found and decided in one go."""

    now_s: float
    gate: Gate
    asks: list[SliceRequest]
    taken: dict[str, census.Held]
    movable: dict[str, MovablePod]  # by uid
    served_by: dict[str, int] = field(default_factory=dict)  # request -> group that has a place for it
    drained_by: dict[str, int] = field(default_factory=dict)  # request -> group in which others make way for it
    layouts: dict[str, dict[str, CardSpec]] = field(default_factory=dict)  # node -> card -> what is asked of it
    outcomes: dict[str, Outcome] = field(default_factory=dict)


class Controller:
    """Call `round` whenever something changed. `clock` is monotonic, `wall` counts from 1970."""

    def __init__(
        self,
        client: KubeClient,
        settings: Settings,
        stores: Stores,
        *,
        record: drains.Record = lambda _event: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self.drain_executor = drains.DrainExecutor(
            client, record=record, pause_s=settings.drain_pause_seconds, clock=clock
        )
        self._settings = settings
        self._stores = stores
        self._clock = clock
        self._wall = wall
        self._mix = demand.RequestMix(settings.forecast_half_life_seconds)
        self._memories: dict[str, _Memory] = {}
        self._asked_at: dict[str, float] = {}  # card -> when it was last asked to change
        self._written: dict[str, GPUNode] = {}  # newer than the watch has shown
        self._movable: frozenset[str] = frozenset()  # uids of pods that consent to be moved
        self._of_others: dict[str, tuple[CardSpec, ...]] = {}  # node -> what others ask of its cards
        #: cards asked to change so far, and requests that no card can be cut for now
        self.recuts = 0
        self.waiting = 0
        #: phase -> selected cards in it
        self.phases: dict[str, int] = {}

    async def reconcile(self) -> None:
        """Decide on every selected card, write what changed, and ask those to leave who are in the way."""
        await self._decide_and_write()
        if await self.drain_executor.evict_pods(self._gpu_nodes().values(), self._stores.pods.values(), self._movable):
            await self._decide_and_write()

    async def _decide_and_write(self) -> None:
        shown = self._stores
        # A copy, for a thread: what is decided for thousands of cards must not hold up the Lease.
        copy = Stores(
            dict(shown.strategies),
            dict(shown.nodes),
            dict(self._gpu_nodes()),
            dict(shown.pods),
            dict(shown.workloads),
            shown.claims.copy(),
        )
        decided = await asyncio.to_thread(self._decide, copy)
        self._movable = frozenset(decided.movable)
        for node in sorted(decided.layouts.keys() | self._owned()):
            await self._write_node(node, decided.layouts.get(node, {}))
        for name, outcome in decided.outcomes.items():
            await self._write_status(name, outcome)

    # --- deciding ---------------------------------------------------------------------------------------

    def _gpu_nodes(self) -> Mapping[str, GPUNode]:
        shown = self._stores.gpu_nodes
        self._written = {
            name: obj for name, obj in self._written.items() if name in shown and _is_newer(obj, shown[name])
        }
        return {**shown, **self._written}

    def _decide(self, stores: Stores) -> _Round:
        """Decide on all selected GPUs, from a copy of what the informers show."""
        self._count_requests(stores)
        found = self._read_round(stores)
        cards = self._select(stores, found)
        found.gate = self._open_gate(stores, cards, found.now_s)
        groups = _group_by_geometry(cards)
        # A request that existing slices serve, or soon will, is no reason for another strategy to cut GPUs.
        found.served_by = rebalance.assign_groups([[seen.card for seen in mine] for _, mine in groups], found.asks)
        for name in cards:
            found.outcomes[name].seen = tuple(cards[name])
            self._remember(stores.strategies[name], cards[name], found)
        self._decide_groups(stores, groups, found)
        self.waiting = sum(len(outcome.waiting) for outcome in found.outcomes.values())
        self.phases = _count_phases(cards)
        return found

    def _read_round(self, stores: Stores) -> _Round:
        """The requests for slices, the slices in use, and the pods that may be moved."""
        gpu_nodes = stores.gpu_nodes
        nodes = demand.Nodes((stores.nodes[name] for name in gpu_nodes if name in stores.nodes), gpu_nodes)
        asks = demand.list_requests(stores.pods.values(), stores.workloads.values(), nodes, stores.claims)[:_MOST_ASKS]
        taken = self._taken(stores)
        return _Round(self._clock(), Gate(0), asks, taken, self._find_movable(stores, taken, nodes))

    def _open_gate(self, stores: Stores, cards: Mapping[str, Sequence[MigCard]], now_s: float) -> Gate:
        """How many more nodes may change their layouts now."""
        seen = [each for group in cards.values() for each in group]
        moving = {each.card.node for each in seen if each.is_moving}
        moving = {node for node in moving if self._is_patient(stores.gpu_nodes[node], now_s)}
        # Nodes that pods are leaving have been let through already.
        drained = {each.card.node for each in seen if each.card.drain} - moving
        slots = self._settings.max_concurrent_nodes - len(moving) - len(drained)
        return Gate(max(slots, 0), frozenset(moving), frozenset(drained))

    def _find_movable(
        self, stores: Stores, taken: Mapping[str, census.Held], nodes: demand.Nodes
    ) -> dict[str, MovablePod]:
        if not self._settings.enable_draining:
            return {}
        willing = drains.ConsentingPods(stores.pods.values(), stores.workloads.values(), self.drain_executor.refused)
        started = self._wall() - self._settings.drain_min_run_seconds
        return willing.find_movable(stores.gpu_nodes, taken, nodes, started_before_s=started)

    def _count_requests(self, stores: Stores) -> None:
        wall_s = self._wall()
        for pod in stores.pods.values():
            meta = pod.metadata
            if (wanted := demand.requested_slices(pod.spec)) is not None:
                self._mix.count(meta.uid, *wanted, meta.creationTimestamp, wall_s)

    def forget(self, uid: str) -> None:
        """A pod is gone."""
        self._mix.forget(uid)

    @staticmethod
    def _taken(stores: Stores) -> dict[str, census.Held]:
        on: dict[str, list[core.Pod]] = {}
        for pod in stores.pods.values():
            if pod.spec.nodeName:
                on.setdefault(pod.spec.nodeName, []).append(pod)
        planned = demand.planned_uuids(stores.workloads.values()) | stores.claims.assigned_uuids()
        return {name: census.read_held(obj, on.get(name, ()), planned) for name, obj in stores.gpu_nodes.items()}

    def _select(self, stores: Stores, found: _Round) -> dict[str, list[MigCard]]:
        """Strategy -> its cards, in the order in which strategies decide."""
        order = sorted(stores.strategies.values(), key=lambda each: (-each.spec.priority, each.metadata.name))
        cards: dict[str, list[MigCard]] = {each.metadata.name: [] for each in order}
        clocks = census.Clocks(self._asked_at, self._settings.cooldown_seconds, self._settings.patience_seconds)
        by_uid = {pod.metadata.uid: pod for pod in stores.pods.values()} if _is_any_drained(stores) else {}
        for name in cards:
            found.outcomes[name] = Outcome()
        for node_name, obj in sorted(stores.gpu_nodes.items()):
            node = stores.nodes.get(node_name)
            if node is None:
                continue
            labels = node.metadata.labels
            why = mig_layouts.left_alone(labels)
            for device in obj.status.gpus:
                chosen = next((each for each in order if mig_layouts.selects_gpu(each, labels, device)), None)
                if chosen is None:
                    continue
                outcome = found.outcomes[chosen.metadata.name]
                seen = census.read_card(obj, device, found.taken[node_name], clocks, found.now_s)
                if why or seen is None:
                    outcome.left_alone[node_name] = why or "its cards are cut in a way that is not known"
                else:
                    self._asked_at.setdefault(device.uuid, found.now_s - clocks.cooldown_s)
                    after_s = self._wall() - self._settings.drain_timeout_seconds
                    drain = drains.read_drain(
                        seen, found.taken[node_name], by_uid, found.movable, begun_after_s=after_s
                    )
                    cards[chosen.metadata.name].append(replace(seen, card=replace(seen.card, drain=drain)))
        return cards

    def _is_patient(self, obj: GPUNode, now_s: float) -> bool:
        """Whether the node's agent may still be expected to do what it was asked."""
        asked = [self._asked_at.get(card.uuid, now_s) for card in obj.spec.cards]
        return bool(asked) and now_s - max(asked) <= self._settings.patience_seconds

    def _remember(self, strategy: MIGStrategy, cards: Sequence[MigCard], found: _Round) -> None:
        """How busy its slices are, and whether a rebalance is due."""
        name, interval_s = strategy.metadata.name, quantity.parse_duration(strategy.spec.rebalanceInterval)
        memory = self._memories.setdefault(name, _Memory(due_at_s=found.now_s))
        memory.is_due = found.now_s >= memory.due_at_s
        if memory.is_due:
            memory.due_at_s = found.now_s + interval_s
        used = {
            each.uuid: place in seen.card.used
            for seen in cards
            for each, place in zip(seen.device.mig.instances, _places(seen), strict=True)
        }
        memory.busy.observe(used, found.now_s, interval_s)

    def _decide_groups(self, stores: Stores, groups: Sequence[tuple[str, list[MigCard]]], found: _Round) -> None:
        """First without asking anybody to leave. Who is still without a place then may be worth that."""
        decided: dict[int, tuple[Group, rebalance.Decision]] = {}
        waiting: dict[str, None] = {}
        for number, (name, mine) in enumerate(groups):
            group = self._group(stores.strategies[name], mine, found)
            decided[number] = group, self._decide_group(number, group, found)
            waiting |= dict.fromkeys(decided[number][1].waiting)
        for number, (_, first) in decided.items():
            found.drained_by |= {card.drain.ask: number for card in first.gpus if card.drain}
        for number, (group, first) in decided.items():
            if group.movable and any(name not in found.served_by for name in waiting):
                cards = (replace(card, is_open=card.is_open and card.uuid not in first.changed) for card in first.gpus)
                again = replace(group, gpus=tuple(cards), is_due=False, may_drain=True)
                second = self._decide_group(number, again, found)
                found.drained_by |= {card.drain.ask: number for card in second.gpus if card.drain}
                changed = first.changed | second.changed
                decided[number] = group, replace(second, changed=changed, short=first.short)
        for number, (name, mine) in enumerate(groups):
            self._keep(mine, decided[number][1], found, found.outcomes[name])

    def _group(self, strategy: MIGStrategy, cards: Sequence[MigCard], found: _Round) -> Group:
        spec, settings = strategy.spec, self._settings
        memory, outcome, geometry = self._memories[strategy.metadata.name], found.outcomes, cards[0].geometry
        if not rebalance.known_profiles(geometry, spec.profileDistribution):
            outcome[strategy.metadata.name].strange.append(geometry.name)
        is_dynamic = spec.allowDynamicReconfig and settings.enable_auto_rebalancing
        mine = {seen.card.uuid for seen in cards}
        return Group(
            geometry,
            spec.profileDistribution,
            tuple(self._with_warm(seen, memory, spec.minUtilizationThreshold) for seen in cards),
            is_dynamic=is_dynamic,
            is_due=is_dynamic and memory.is_due,
            mix=self._mix.weights(self._wall()),
            preferred=settings.preferred_profiles if settings.enable_prewarming else (),
            movable=tuple(
                each for each in found.movable.values() if is_dynamic and all(uuid in mine for uuid, _ in each.slices)
            ),
            may_drain=False,
        )

    @staticmethod
    def _decide_group(number: int, group: Group, found: _Round) -> rebalance.Decision:
        theirs = {**found.drained_by, **found.served_by} if group.may_drain else found.served_by
        asks = [ask for ask in found.asks if theirs.get(ask.name, number) == number]
        decision = rebalance.decide_layouts(group, asks, found.gate)
        found.gate = decision.gate
        for ask in asks:
            if ask.profile in group.geometry.profiles and ask.name not in decision.waiting:
                found.served_by[ask.name] = number
        return decision

    @staticmethod
    def _with_warm(seen: MigCard, memory: _Memory, threshold: float) -> PartitionedGpu:
        warm = {
            place
            for each, place in zip(seen.device.mig.instances, _places(seen), strict=True)
            if memory.busy.busy_share(each.uuid) >= threshold and place in seen.card.spare
        }
        return replace(seen.card, warm=frozenset(warm))

    def _keep(self, cards: Sequence[MigCard], decision: rebalance.Decision, found: _Round, outcome: Outcome) -> None:
        now = timestamp.of(self._wall())
        for seen, new in zip(cards, decision.gpus, strict=True):
            wanted = found.layouts.setdefault(new.node, {})
            is_changed = new.uuid in decision.changed
            if is_changed or (new.is_decided and seen.asked is None):
                layout = MIGLayout(not new.is_whole, tuple(format_placement(place) for place in new.layout))
                is_new = is_changed and (seen.asked is None or layout != drains.end_drain(seen.asked).mig)
                wanted[new.uuid] = CardSpec(new.uuid, layout, now if is_new or seen.asked is None else seen.asked.since)
                if is_new:
                    self.recuts += 1
                    self._asked_at[new.uuid] = found.now_s
                    outcome.changed.add(new.uuid)
                    log.info("card_to_cut", node=new.node, uuid=new.uuid, layout=layout.instances or "whole")
            elif seen.asked is not None:
                wanted[new.uuid] = drains.write_drain(seen.asked, seen.card, new, found.movable, now)
        outcome.waiting += tuple(
            f"{name}: {why}" for name, why in decision.waiting.items() if name not in found.served_by
        )
        for profile, count in decision.short.items():
            outcome.short[profile] = outcome.short.get(profile, 0) + count

    # --- writing ----------------------------------------------------------------------------------------

    def _owned(self) -> set[str]:
        """Nodes that a decision was written to."""
        return {name for name, obj in self._gpu_nodes().items() if obj.spec.cards}

    async def _write_node(self, node: str, cards: Mapping[str, CardSpec]) -> None:
        obj = self._gpu_nodes()[node]
        wanted = tuple(cards[device.uuid] for device in obj.status.gpus if device.uuid in cards)
        if wanted == obj.spec.cards or (not wanted and self._of_others.get(node) == obj.spec.cards):
            return
        # The uid keeps a node that is gone from coming back as an empty one.
        body: dict[str, Any] = {"metadata": {"name": node, "uid": obj.metadata.uid}, "spec": {}}
        if wanted:
            body["spec"]["cards"] = [drains.manifest(card) for card in wanted]
        try:
            written = self._written[node] = await self._client.apply(resources.GPU_NODE, body)
        except (errors.NotFound, errors.Conflict) as exc:
            log.info("gpunode_gone", node=node, error=str(exc))
            return
        if not wanted:
            # The rest was written by others: an administrator, where no strategy selects the node.
            self._of_others[node] = written.spec.cards

    async def _write_status(self, name: str, outcome: Outcome) -> None:
        strategy = self._stores.strategies.get(name)
        if strategy is None:
            return
        status = build_status(strategy, outcome, timestamp.of(self._wall()))
        if status is None:
            return
        memory, now_s = self._memories.setdefault(name, _Memory()), self._clock()
        if (
            changes_only_messages(strategy, status)
            and now_s - memory.told_at_s < self._settings.message_interval_seconds
        ):
            return
        memory.told_at_s = now_s
        body = {"metadata": {"resourceVersion": strategy.metadata.resourceVersion}, "status": status}
        try:
            await self._client.patch(resources.MIG_STRATEGY, name, body, subresource="status")
        except (errors.NotFound, errors.Conflict) as exc:
            log.info("strategy_changed", strategy=name, error=str(exc))


def _group_by_geometry(cards: Mapping[str, Sequence[MigCard]]) -> list[tuple[str, list[MigCard]]]:
    """(strategy, its GPUs of one geometry)."""
    return [
        (name, [seen for seen in mine if seen.geometry is geometry])
        for name, mine in cards.items()
        for geometry in {seen.geometry.name: seen.geometry for seen in mine}.values()
    ]


def _count_phases(cards: Mapping[str, Sequence[MigCard]]) -> dict[str, int]:
    """Phase -> selected GPUs in it."""
    phases = (each.phase or ("Ready" if each.is_settled else "Pending") for mine in cards.values() for each in mine)
    return dict(Counter(phases))


def _places(seen: MigCard) -> list[mig.Placement]:
    """Of the slices that are there, in their order."""
    return [mig.Placement(seen.geometry.profiles[each.profile], each.start) for each in seen.device.mig.instances]


def _is_any_drained(stores: Stores) -> bool:
    return any(card.drain is not None for obj in stores.gpu_nodes.values() for card in obj.spec.cards)


def _is_newer(mine: GPUNode, shown: GPUNode) -> bool:
    versions = mine.metadata.resourceVersion, shown.metadata.resourceVersion
    return (
        mine.metadata.uid == shown.metadata.uid
        and all(map(str.isdigit, versions))
        and (int(versions[0]) > int(versions[1]))
    )
