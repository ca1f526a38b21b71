"""Decides the MIG layouts of all selected GPUs, from what the informers show.

Strategies are taken by priority, then by name; a GPU belongs to the first that selects it. Each strategy decides on
its GPUs of one geometry together (`kgwe.sharing.mig.rebalance`). They share one gate, so that no more nodes change at
a time than allowed. Decisions are stored in the specs of GPUNodes; the memory of earlier rounds only avoids
needless changes.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import structlog

from kgwe.apps.mig import census, demand, drains
from kgwe.apps.mig.status import Outcome
from kgwe.kube.api import timestamp
from kgwe.kube.api.kgwe.gpunode import CardSpec, MIGLayout
from kgwe.kube.translate import mig_layouts
from kgwe.model.gpu import mig
from kgwe.model.units import quantity
from kgwe.sharing.mig import rebalance
from kgwe.sharing.mig.lifecycle import format_placement
from kgwe.sharing.mig.types import Gate, Group

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from kgwe.apps.mig.census import MigCard
    from kgwe.apps.mig.settings import Settings
    from kgwe.apps.mig.stores import Stores
    from kgwe.kube.api import core
    from kgwe.kube.api.kgwe.gpunode import GPUNode
    from kgwe.kube.api.kgwe.migstrategy import MIGStrategy
    from kgwe.sharing.mig.rebalance import Decision
    from kgwe.sharing.mig.types import MovablePod, PartitionedGpu, SliceRequest

log = structlog.get_logger(__name__)

# More than one round can handle; the next round takes the rest.
_MOST_ASKS: Final = 256


@dataclass
class _StrategyMemory:
    """The state of one strategy between rounds."""

    busy: demand.SliceUsage = field(default_factory=demand.SliceUsage)
    due_at_s: float = 0.0
    is_due: bool = False


@dataclass
class Round:
    """The data and decisions of one round."""

    now_s: float
    gate: Gate
    asks: list[SliceRequest]
    taken: dict[str, census.Held]
    movable: dict[str, MovablePod]  # by uid
    served_by: dict[str, int] = field(default_factory=dict)  # request -> group that has a slot for it
    drained_by: dict[str, int] = field(default_factory=dict)  # request -> group in which pods are evicted for it
    layouts: dict[str, dict[str, CardSpec]] = field(default_factory=dict)  # node -> GPU -> its desired layout
    outcomes: dict[str, Outcome] = field(default_factory=dict)


class LayoutPlanner:
    """Decides in rounds. `clock` is monotonic, `wall` counts from 1970."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._wall = wall
        self._mix = demand.RequestMix(settings.forecast_half_life_seconds)
        self._memories: dict[str, _StrategyMemory] = {}
        self._asked_at: dict[str, float] = {}  # GPU -> time of the last requested change
        #: requested changes so far, and requests that no GPU can serve now
        self.recuts = 0
        self.waiting = 0
        #: phase -> selected GPUs in it
        self.phases: dict[str, int] = {}

    def decide(self, stores: Stores, refused: AbstractSet[str]) -> Round:
        """Decide on all selected GPUs. `refused`: uids of pods whose eviction was refused."""
        self._count_requests(stores)
        found = self._read_round(stores, refused)
        cards = self._select_cards(stores, found)
        found.gate = self._open_gate(stores, cards, found.now_s)
        groups = _group_by_geometry(cards)
        # A request that existing or coming slices serve is no reason for another strategy to change layouts.
        found.served_by = rebalance.assign_groups([[seen.card for seen in mine] for _, mine in groups], found.asks)
        for name in cards:
            found.outcomes[name].seen = tuple(cards[name])
            self._observe_usage(stores.strategies[name], cards[name], found)
        self._decide_groups(stores, groups, found)
        self.waiting = sum(len(outcome.waiting) for outcome in found.outcomes.values())
        self.phases = _count_phases(cards)
        return found

    def _read_round(self, stores: Stores, refused: AbstractSet[str]) -> Round:
        """Return the requests for slices, the slices in use, and the pods that may be moved."""
        gpu_nodes = stores.gpu_nodes
        nodes = demand.Nodes((stores.nodes[name] for name in gpu_nodes if name in stores.nodes), gpu_nodes)
        asks = demand.list_requests(stores.pods.values(), stores.workloads.values(), nodes, stores.claims)[:_MOST_ASKS]
        taken = _read_held(stores)
        return Round(self._clock(), Gate(0), asks, taken, self._find_movable(stores, taken, nodes, refused))

    def _open_gate(self, stores: Stores, cards: Mapping[str, Sequence[MigCard]], now_s: float) -> Gate:
        """Return how many more nodes may change their layouts now."""
        seen = [each for group in cards.values() for each in group]
        moving = {each.card.node for each in seen if each.is_moving}
        moving = {node for node in moving if self._is_patient(stores.gpu_nodes[node], now_s)}
        # Nodes that are being drained already count.
        drained = {each.card.node for each in seen if each.card.drain} - moving
        slots = self._settings.max_concurrent_nodes - len(moving) - len(drained)
        return Gate(max(slots, 0), frozenset(moving), frozenset(drained))

    def _find_movable(
        self, stores: Stores, taken: Mapping[str, census.Held], nodes: demand.Nodes, refused: AbstractSet[str]
    ) -> dict[str, MovablePod]:
        if not self._settings.enable_draining:
            return {}
        willing = drains.ConsentingPods(stores.pods.values(), stores.workloads.values(), refused)
        started = self._wall() - self._settings.drain_min_run_seconds
        return willing.find_movable(stores.gpu_nodes, taken, nodes, started_before_s=started)

    def _count_requests(self, stores: Stores) -> None:
        wall_s = self._wall()
        for pod in stores.pods.values():
            meta = pod.metadata
            if (wanted := demand.requested_slices(pod.spec)) is not None:
                self._mix.count(meta.uid, *wanted, meta.creationTimestamp, wall_s)

    def forget(self, uid: str) -> None:
        """Forget a deleted pod."""
        self._mix.forget(uid)

    def _select_cards(self, stores: Stores, found: Round) -> dict[str, list[MigCard]]:
        """Return strategy -> its GPUs, in the order in which strategies decide."""
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
                    outcome.left_alone[node_name] = why or "its GPUs have an unknown MIG layout"
                else:
                    self._asked_at.setdefault(device.uuid, found.now_s - clocks.cooldown_s)
                    after_s = self._wall() - self._settings.drain_timeout_seconds
                    drain = drains.read_drain(
                        seen, found.taken[node_name], by_uid, found.movable, begun_after_s=after_s
                    )
                    cards[chosen.metadata.name].append(replace(seen, card=replace(seen.card, drain=drain)))
        return cards

    def _is_patient(self, obj: GPUNode, now_s: float) -> bool:
        """Return whether the node's agent may still apply the requested layouts."""
        asked = [self._asked_at.get(card.uuid, now_s) for card in obj.spec.cards]
        return bool(asked) and now_s - max(asked) <= self._settings.patience_seconds

    def _observe_usage(self, strategy: MIGStrategy, cards: Sequence[MigCard], found: Round) -> None:
        """Record the usage of a strategy's slices, and whether its rebalance is due."""
        name, interval_s = strategy.metadata.name, quantity.parse_duration(strategy.spec.rebalanceInterval)
        memory = self._memories.setdefault(name, _StrategyMemory(due_at_s=found.now_s))
        memory.is_due = found.now_s >= memory.due_at_s
        if memory.is_due:
            memory.due_at_s = found.now_s + interval_s
        used = {
            each.uuid: place in seen.card.used
            for seen in cards
            for each, place in zip(seen.device.mig.instances, _places(seen), strict=True)
        }
        memory.busy.observe(used, found.now_s, interval_s)

    def _decide_groups(self, stores: Stores, groups: Sequence[tuple[str, list[MigCard]]], found: Round) -> None:
        """Decide without evictions first; evict pods only for requests that still wait."""
        decided: dict[int, tuple[Group, Decision]] = {}
        waiting: dict[str, None] = {}
        for number, (name, mine) in enumerate(groups):
            group = self._build_group(stores.strategies[name], mine, found)
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
            self._store_decision(mine, decided[number][1], found, found.outcomes[name])

    def _build_group(self, strategy: MIGStrategy, cards: Sequence[MigCard], found: Round) -> Group:
        spec, settings = strategy.spec, self._settings
        memory, outcome, geometry = self._memories[strategy.metadata.name], found.outcomes, cards[0].geometry
        if not rebalance.known_profiles(geometry, spec.profileDistribution):
            outcome[strategy.metadata.name].strange.append(geometry.name)
        is_dynamic = spec.allowDynamicReconfig and settings.enable_auto_rebalancing
        mine = {seen.card.uuid for seen in cards}
        return Group(
            geometry,
            spec.profileDistribution,
            tuple(_mark_warm(seen, memory, spec.minUtilizationThreshold) for seen in cards),
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
    def _decide_group(number: int, group: Group, found: Round) -> Decision:
        theirs = {**found.drained_by, **found.served_by} if group.may_drain else found.served_by
        asks = [ask for ask in found.asks if theirs.get(ask.name, number) == number]
        decision = rebalance.decide_layouts(group, asks, found.gate)
        found.gate = decision.gate
        for ask in asks:
            if ask.profile in group.geometry.profiles and ask.name not in decision.waiting:
                found.served_by[ask.name] = number
        return decision

    def _store_decision(self, cards: Sequence[MigCard], decision: Decision, found: Round, outcome: Outcome) -> None:
        now = timestamp.format_time(self._wall())
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
                    log.info("mig_layout_requested", node=new.node, uuid=new.uuid, layout=layout.instances or "whole")
            elif seen.asked is not None:
                wanted[new.uuid] = drains.write_drain(seen.asked, seen.card, new, found.movable, now)
        outcome.waiting += tuple(
            f"{name}: {why}" for name, why in decision.waiting.items() if name not in found.served_by
        )
        for profile, count in decision.short.items():
            outcome.short[profile] = outcome.short.get(profile, 0) + count


def _read_held(stores: Stores) -> dict[str, census.Held]:
    """Return node -> the slices that its pods hold."""
    on: dict[str, list[core.Pod]] = {}
    for pod in stores.pods.values():
        if pod.spec.nodeName:
            on.setdefault(pod.spec.nodeName, []).append(pod)
    planned = demand.planned_uuids(stores.workloads.values()) | stores.claims.assigned_uuids()
    return {name: census.read_held(obj, on.get(name, ()), planned) for name, obj in stores.gpu_nodes.items()}


def _mark_warm(seen: MigCard, memory: _StrategyMemory, threshold: float) -> PartitionedGpu:
    """Mark spare slices that are used often enough to be kept."""
    warm = {
        place
        for each, place in zip(seen.device.mig.instances, _places(seen), strict=True)
        if memory.busy.busy_share(each.uuid) >= threshold and place in seen.card.spare
    }
    return replace(seen.card, warm=frozenset(warm))


def _group_by_geometry(cards: Mapping[str, Sequence[MigCard]]) -> list[tuple[str, list[MigCard]]]:
    """Yield (strategy, its GPUs of one geometry)."""
    return [
        (name, [seen for seen in mine if seen.geometry is geometry])
        for name, mine in cards.items()
        for geometry in {seen.geometry.name: seen.geometry for seen in mine}.values()
    ]


def _count_phases(cards: Mapping[str, Sequence[MigCard]]) -> dict[str, int]:
    """Return phase -> selected GPUs."""
    phases = (each.phase or ("Ready" if each.is_settled else "Pending") for mine in cards.values() for each in mine)
    return dict(Counter(phases))


def _places(seen: MigCard) -> list[mig.Placement]:
    """Return the placements of the existing slices, in order."""
    return [mig.Placement(seen.geometry.profiles[each.profile], each.start) for each in seen.device.mig.instances]


def _is_any_drained(stores: Stores) -> bool:
    return any(card.drain is not None for obj in stores.gpu_nodes.values() for card in obj.spec.cards)
