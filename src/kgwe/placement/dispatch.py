"""Place waiting work, in order of rank, on the nodes that have room.

Higher priority goes first, then older. Work that finds no room is held with the reason and does not stop
smaller work behind it. Each placement is reserved in the ledger before the next is tried, so two pieces of
work are never given the same GPU. When one shape found no room no twin of it is tried in the same pass:
room only shrinks during a pass.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgwe.model import amounts, gpu
from kgwe.placement.constraints import any_term_matches
from kgwe.placement.strategies import Candidate

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

    from kgwe.placement.ask import Ask, NodeFacts
    from kgwe.placement.ledger import Ledger
    from kgwe.placement.strategies import Rng, Strategy

_GB_IN_MIB = 1e9 / 2**20
# Shapes whose matches are remembered; users write few, but nothing stops them from writing many.
_REMEMBERED = 1000


class Reason(enum.StrEnum):
    """Why work waits. The values are condition reasons: users and alerts match on them."""

    NO_GPU_NODES = "NoGPUNodes"
    NO_MATCHING_NODE = "NoMatchingNode"
    TOO_LARGE = "TooLarge"
    INSUFFICIENT_GPU = "InsufficientGPU"
    INSUFFICIENT_RESOURCES = "InsufficientResources"
    UNKNOWN_STRATEGY = "UnknownStrategy"
    STRATEGY_FAILED = "StrategyFailed"


@dataclass(frozen=True, slots=True)
class Placed:
    ask: Ask
    node: str


@dataclass(frozen=True, slots=True)
class Held:
    ask: Ask
    reason: Reason
    message: str


# Say nothing about room: a twin that names another strategy may well be placed.
_ABOUT_THE_STRATEGY = (Reason.UNKNOWN_STRATEGY, Reason.STRATEGY_FAILED)


class Dispatcher:
    """Keeps what does not change between passes: the strategies, and which nodes match which shape."""

    def __init__(self, strategies: Mapping[str, Strategy], rng: Rng) -> None:
        self._strategies = strategies
        self._rng = rng
        self._generation = -1
        self._matches: dict[Hashable, list[NodeFacts]] = {}
        self._mismatches: dict[Hashable, Counter[str]] = {}

    def dispatch(self, ledger: Ledger, asks: Iterable[Ask]) -> list[Placed | Held]:
        """Decide for every ask; what is placed is reserved in `ledger` when this returns."""
        decisions: list[Placed | Held] = []
        full: dict[Hashable, Held] = {}
        for ask in sorted(asks, key=lambda a: a.rank()):
            shape = ask.shape()
            if twin := full.get(shape):
                decisions.append(Held(ask, twin.reason, twin.message))
                continue
            decision = self._place(ledger, ask, shape)
            if isinstance(decision, Placed):
                ledger.reserve(ask.owner, decision.node, ask.amounts)
            elif decision.reason not in _ABOUT_THE_STRATEGY:
                full[shape] = decision
            decisions.append(decision)
        return decisions

    def _place(self, ledger: Ledger, ask: Ask, shape: Hashable) -> Placed | Held:
        strategy = self._strategies.get(ask.strategy)
        if strategy is None:
            known = ", ".join(sorted(self._strategies))
            return Held(ask, Reason.UNKNOWN_STRATEGY, f"no strategy named {ask.strategy!r}; known are {known}")
        candidates = [
            Candidate(facts.name, ledger.free(facts.name, ask.resource), facts.allocatable[ask.resource], facts.labels)
            for facts in self._matching(ledger, ask, shape)
            if ledger.lacking(facts, ask.amounts) is None
        ]
        if not candidates:
            return self._held(ledger, ask, shape)
        if ask.needs.prefers_nvlink:
            linked = [c for c in candidates if (facts := ledger.node(c.name)) and facts.fabric_gbps]
            candidates = linked or candidates
        return self._choose(strategy, candidates, ask)

    def _choose(self, strategy: Strategy, candidates: list[Candidate], ask: Ask) -> Placed | Held:
        """Strategies may be anybody's code: one that fails holds the work that named it and nothing else."""
        try:
            chosen = strategy.choose(candidates, ask, self._rng)
        except Exception as exc:  # noqa: BLE001 - see above
            return Held(ask, Reason.STRATEGY_FAILED, f"strategy {ask.strategy!r} failed: {exc!r}")
        if chosen not in candidates:
            return Held(ask, Reason.STRATEGY_FAILED, f"strategy {ask.strategy!r} chose {chosen!r}, not a candidate")
        return Placed(ask, chosen.name)

    def _matching(self, ledger: Ledger, ask: Ask, shape: Hashable) -> list[NodeFacts]:
        """The nodes that would fit if they were empty, by name; computed once per shape and fleet."""
        if self._generation != ledger.generation or len(self._matches) > _REMEMBERED:
            self._generation = ledger.generation
            self._matches.clear()
            self._mismatches.clear()
        known = self._matches.get(shape)
        if known is None:
            mismatches: Counter[str] = Counter()
            known = []
            for facts in ledger.nodes():
                why = mismatch(facts, ask)
                if why is None:
                    known.append(facts)
                else:
                    mismatches[why] += 1
            known.sort(key=lambda facts: facts.name)
            self._matches[shape] = known
            self._mismatches[shape] = mismatches
        return known

    def _held(self, ledger: Ledger, ask: Ask, shape: Hashable) -> Held:
        matching = self._matching(ledger, ask, shape)
        if matching:
            return _short_of_room(ledger, ask, matching)
        needed = f"needs {ask.count} {ask.resource} on one node"
        sizes = [facts.allocatable.get(ask.resource, 0) for facts in ledger.nodes()]
        largest = max(sizes, default=0)
        if largest == 0:
            return Held(ask, Reason.NO_GPU_NODES, f"{needed}; no node offers {ask.resource}")
        if largest < ask.count:
            return Held(ask, Reason.TOO_LARGE, f"{needed}; the largest of {len(sizes)} nodes has {largest}")
        reasons = "; ".join(f"{count} {why}" for why, count in self._mismatches[shape].most_common())
        return Held(ask, Reason.NO_MATCHING_NODE, f"{needed}; none of {len(sizes)} nodes matches: {reasons}")


def mismatch(facts: NodeFacts, ask: Ask) -> str | None:
    """Why the node could not take this work even when empty, in a few words, or None if it could."""
    if not facts.ready:
        return "not ready or cordoned"
    if facts.name in ask.avoid:
        return "refused it lately"
    if facts.allocatable.get(ask.resource, 0) < ask.count:
        return f"have fewer {ask.resource}" if facts.allocatable.get(ask.resource, 0) else f"have no {ask.resource}"
    for resource, amount in ask.amounts.items():
        if facts.allocatable.get(resource, 0) < amount:
            return f"have less {resource} in all"
    return _kept_away(facts, ask) or _unmet_need(facts, ask)


def _kept_away(facts: NodeFacts, ask: Ask) -> str | None:
    """Taints, selector and affinity, as kube-scheduler reads them."""
    for taint in facts.taints:
        if taint.effect in ("NoSchedule", "NoExecute") and not any(t.tolerates(taint) for t in ask.tolerations):
            return f"have taint {taint.key}"
    for key, value in ask.node_selector.items():
        if facts.labels.get(key) != value:
            return f"lack label {key}={value}"
    if ask.affinity is not None and not any_term_matches(ask.affinity, facts.name, facts.labels):
        return "do not match its node affinity"
    return None


def _unmet_need(facts: NodeFacts, ask: Ask) -> str | None:
    """Required properties; what is not known of a node counts as not met."""
    needs = ask.needs
    if needs.min_memory_gb and (facts.gpu_memory_mib or 0) < needs.min_memory_gb * _GB_IN_MIB:
        return f"have GPUs with less than {needs.min_memory_gb} GB"
    if needs.gpu_model and not gpu.name_matches(needs.gpu_model, facts.gpu_model):
        return f"have other GPUs than {needs.gpu_model}"
    if needs.architecture and needs.architecture.lower() != (facts.architecture or "").lower():
        return f"have GPUs of another architecture than {needs.architecture}"
    if ask.count > 1 and needs.nvlink and not facts.fabric_gbps:
        return "have no NVLink between all GPUs"
    if ask.count > 1 and needs.min_bandwidth_gbps and (facts.fabric_gbps or 0) < needs.min_bandwidth_gbps:
        return f"have less than {needs.min_bandwidth_gbps:g} GB/s between GPUs"
    return None


def _short_of_room(ledger: Ledger, ask: Ask, matching: list[NodeFacts]) -> Held:
    needed = f"needs {ask.count} {ask.resource} on one node"
    free = {facts.name: ledger.free(facts.name, ask.resource) for facts in matching}
    best = max(free, key=lambda name: (free[name], name))
    if free[best] < ask.count:
        total = sum(amount for amount in free.values() if amount > 0)
        where = (
            f"{len(matching)} nodes could hold it, the freest ({best}) has {max(free[best], 0)}; {total} free in all"
        )
        return Held(ask, Reason.INSUFFICIENT_GPU, f"{needed}; {where}")
    lacking = Counter(
        ledger.lacking(facts, ask.amounts) or "" for facts in matching if free[facts.name] >= ask.count
    ).most_common()
    parts = ", ".join(f"{count} short of {_resource_word(resource)}" for resource, count in lacking)
    return Held(ask, Reason.INSUFFICIENT_RESOURCES, f"{needed}; nodes with enough GPUs: {parts}")


def _resource_word(resource: str) -> str:
    return {amounts.CPU: "CPU", amounts.PODS: "pod slots"}.get(resource, resource)
