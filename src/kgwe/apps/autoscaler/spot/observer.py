"""Observes the spot nodes of one policy: how many are held, how many were taken back, and when there were none.

What was observed is in the status of the policy, so it outlives the process. It is written when something happened, and
else rarely: an API write per round would cost more than a quarter of an hour of observation is worth.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kgwe.apps.autoscaler import marks
from kgwe.cloud.provider import InstanceState
from kgwe.kube.api import timestamp
from kgwe.kube.api.kgwe.autoscalingpolicy import Interruption, ObservedRuns, ObservedSpot
from kgwe.scaling.launch_memory import Offer
from kgwe.scaling.lifecycle import EXISTING
from kgwe.scaling.spot.observed import SIZES, ObservedOffer, Runs
from kgwe.scaling.spot.run_rates import PIECES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from kgwe.apps.autoscaler.census import Census
    from kgwe.kube.api import core
    from kgwe.kube.api.kgwe.autoscalingpolicy import AutoscalingPolicyStatus
    from kgwe.scaling.launch_memory import LaunchMemory

SPOT: Final = "spot"
_HOUR_S: Final = 3600.0
_DAY_S: Final = 86_400.0
#: A longer time between two rounds was not observed.
_LONGEST_GAP_S: Final = 600.0
#: How often observations without an event are written.
_WRITE_S: Final = 900.0
_MOST_OFFERS: Final = 64
_MOST_INTERRUPTIONS: Final = 64
_MOST_LOST: Final = 4096
_CAPACITY_LABEL: Final = "gpu-autoscaler.io/capacity-type"
_TYPE_LABEL: Final = "node.kubernetes.io/instance-type"
_ZONE_LABEL: Final = "topology.kubernetes.io/zone"


@dataclass(slots=True)
class SpotObserver:
    """What a process knows of the spot nodes of one policy."""

    offers: dict[Offer, ObservedOffer] = field(default_factory=dict)
    interruptions: tuple[Interruption, ...] = ()
    _held: dict[str, Offer] = field(default_factory=dict)
    """Instances seen in the last round."""
    _lost: dict[str, None] = field(default_factory=dict)
    """Instances that were counted as taken back, the last ones."""
    _last_s: float | None = None
    _written_s: float = 0.0
    _written: tuple[ObservedSpot, ...] = ()

    @classmethod
    def restore(cls, status: AutoscalingPolicyStatus) -> SpotObserver:
        """Return what the status of a policy says."""
        found = cls(interruptions=status.interruptions, _written=status.observedSpot)
        for each in status.observedSpot:
            found.offers[Offer(each.pool, each.instanceType, each.zone, SPOT)] = _restore_offer(each)
        return found

    # --- observing --------------------------------------------------------------------------------------

    def observe(
        self,
        census: Census,
        memory: LaunchMemory,
        now_s: float,
        *,
        generation: int,
        returned: Collection[str] = frozenset(),
    ) -> int:
        """Add what a round sees. Returns how many nodes were taken back since the last one.

        `returned`: instances that KGWE gave back.
        """
        present = {
            each.key: each.offer
            for each in census.nodes
            if each.offer.capacity_type == SPOT
            and each.instance is not None
            and each.instance.state is not InstanceState.STOPPED
            and each.stage in EXISTING
        }
        gone = {key: offer for key, offer in self._held.items() if key not in present and key not in returned}
        gone |= _list_lost(census.lost)
        fresh = {key: offer for key, offer in gone.items() if key not in self._lost}
        self._lost.update(dict.fromkeys(fresh))
        for old in list(self._lost)[:-_MOST_LOST]:
            del self._lost[old]
        lost = Counter(fresh.values())
        held = Counter(self._held.values()) | lost
        gap_s = 0.0 if self._last_s is None else now_s - self._last_s
        # A clock that was set, or a process that was away, has observed nothing.
        hours = gap_s / _HOUR_S if 0.0 < gap_s <= _LONGEST_GAP_S else 0.0
        for offer in {*held, *self.offers, *present.values()}:
            observed = self.offers.setdefault(offer, ObservedOffer())
            observed.observe_held(held[offer], lost[offer], hours)
            observed.lost_s = now_s if lost[offer] else observed.lost_s
            block = memory.find_block(offer, now_s, generation)
            if block is not None and block.kind == "no-capacity":
                observed.observe_refused(hours)
        for offer in {offer for key, offer in present.items() if key not in self._held}:
            self.offers[offer].observe_sold()
        self._note_interruptions(lost, now_s)
        self._held, self._last_s = present, now_s
        if lost:
            self._written_s = 0.0
        return lost.total()

    def _note_interruptions(self, lost: Counter[Offer], now_s: float) -> None:
        fresh: Counter[str] = Counter()
        for offer, count in lost.items():
            fresh[offer.pool] += count
        now = timestamp.format_time(now_s)
        kept = (
            each
            for each in self.interruptions
            if now_s - _DAY_S < timestamp.epoch_seconds(each.time) <= now_s + _LONGEST_GAP_S
        )
        new = (Interruption(now, pool, count) for pool, count in sorted(fresh.items()) if count)
        self.interruptions = (*new, *kept)[:_MOST_INTERRUPTIONS]

    def count_interruptions(self) -> int:
        """Return how many spot nodes were taken back in the last 24 hours."""
        return sum(each.nodes for each in self.interruptions)

    # --- writing ----------------------------------------------------------------------------------------

    def export(self, pools: frozenset[str], now_s: float) -> tuple[ObservedSpot, ...]:
        """Return what the status says: what is written already, unless something happened or it is old."""
        if 0.0 <= now_s - self._written_s < _WRITE_S:
            return self._written
        known = sorted(
            (offer, observed) for offer, observed in self.offers.items() if offer.pool in pools and observed.is_known
        )
        self._written = tuple(_export_offer(offer, observed) for offer, observed in known[:_MOST_OFFERS])
        self._written_s = now_s
        return self._written


def _list_lost(nodes: Iterable[core.Node]) -> dict[str, Offer]:
    """Return spot nodes whose instance is gone and that KGWE did not remove: also those that went unseen."""
    found = {}
    for node in nodes:
        labels = node.metadata.labels
        if labels.get(_CAPACITY_LABEL) != SPOT or marks.REMOVAL in node.metadata.annotations:
            continue
        pool = labels.get(marks.POOL_LABEL, "")
        offer = Offer(pool, labels.get(_TYPE_LABEL, ""), labels.get(_ZONE_LABEL, ""), SPOT)
        found[node.spec.providerID or node.metadata.uid] = offer
    return found


def _export_offer(offer: Offer, observed: ObservedOffer) -> ObservedSpot:
    runs = [(0, observed.away), *observed.gangs.items()]
    return ObservedSpot(
        offer.pool,
        offer.instance_type,
        offer.zone,
        None if observed.lost_s is None else timestamp.format_time(observed.lost_s),
        tuple(
            ObservedRuns(
                nodes,
                tuple(round(one, 3) for one in each.hours),
                tuple(round(one, 3) for one in each.ends),
                round(each.age_h, 3),
            )
            for nodes, each in runs
            if any(each.hours)
        ),
    )


def _restore_offer(said: ObservedSpot) -> ObservedOffer:
    found = ObservedOffer(lost_s=timestamp.epoch_seconds(said.lostAt) if said.lostAt else None)
    for each in said.runs:
        if len(each.hours) != PIECES or len(each.ends) != PIECES:
            continue
        runs = Runs(list(each.hours), list(each.ends), each.ageHours)
        if each.nodes == 0:
            found.away = runs
        elif each.nodes in SIZES:
            found.gangs[each.nodes] = runs
    return found
