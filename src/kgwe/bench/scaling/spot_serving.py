"""Inference services replayed on recorded spot availability of several zones: how often they have enough replicas, and
what they cost beside the same replicas on demand.

A zone of a trace is available or not. While it is, replicas start there; when it ends, all of them are lost without a
notice. A replica serves after its start-up time, on spot and on demand alike, and is paid for from its launch.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from kgwe.scaling.spot.serving import Domains, Service, ServingPlan, plan_serving

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from kgwe.bench.scaling.data import SpotTrace

ON_DEMAND: Final = "on demand"
#: Zones are avoided for so long after they were lost.
_AVOID_H: Final = 4.0
_LEAST_ZONES: Final = 3
_NAME_PARTS: Final = 5
_WANTED: Final = 4
EXTRAS: Final = (0, 1, 2, 3)
#: The traces have steps of ten minutes.
_START_MIN: Final = 10.0


class Prices(NamedTuple):
    """Per replica and hour."""

    on_demand: float
    spot: float


@dataclass(frozen=True, slots=True)
class Region:
    """Zones of one GPU type, recorded at the same time."""

    zones: tuple[str, ...]
    available: NDArray[np.bool_]
    """Step, zone."""
    step_h: float


@dataclass(slots=True)
class _Replay:
    """Replicas of one service: since which step each runs, by zone."""

    region: Region
    start_steps: int
    replicas: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    lost_at: dict[str, int] = field(default_factory=dict)

    def lose(self, step: int) -> None:
        """End the replicas of zones that are away."""
        for number, zone in enumerate(self.region.zones):
            if not self.region.available[step, number]:
                if self.replicas[zone]:
                    self.lost_at[zone] = step
                self.replicas[zone].clear()

    def count_ready(self, step: int) -> int:
        return sum(step - since >= self.start_steps for each in self.replicas.values() for since in each)

    def describe(self, step: int, wanted: int, extra: int) -> tuple[Service, Domains]:
        """Return what the policy knows: what runs, which zones are open, and which were lost lately."""
        spot = {zone: len(each) for zone, each in self.replicas.items() if zone != ON_DEMAND and each}
        service = Service(
            wanted=wanted, extra=extra, spot=spot, on_demand=len(self.replicas[ON_DEMAND]), ready=self.count_ready(step)
        )
        usable = tuple(zone for number, zone in enumerate(self.region.zones) if self.region.available[step, number])
        recent = round(_AVOID_H / self.region.step_h)
        avoided = frozenset(zone for zone, at in self.lost_at.items() if step - at < recent)
        return service, Domains(usable=usable, avoided=avoided)

    def apply(self, plan: ServingPlan, step: int) -> None:
        for zone in plan.spot:
            self.replicas[zone].append(step)
        self.replicas[ON_DEMAND] += [step] * plan.on_demand
        for _ in range(plan.to_spot):
            self.replicas[ON_DEMAND].pop(0)


if TYPE_CHECKING:
    ServingRule = Callable[[Service, Domains], ServingPlan]


def run_on_one_zone(zone: str) -> ServingRule:
    """Spot of one zone, and nothing else."""

    def rule(service: Service, domains: Domains) -> ServingPlan:
        missing = service.wanted - sum(service.spot.values())
        return ServingPlan((zone,) * missing if zone in domains.usable else ())

    return rule


def run_on_demand(service: Service, _domains: Domains) -> ServingPlan:
    return ServingPlan(on_demand=service.wanted - service.on_demand)


def replay_service(
    region: Region, rule: ServingRule, *, wanted: int, extra: int, start_h: float, prices: Prices
) -> dict[str, float]:
    """Return availability, mean replicas that serve, and cost as a share of the wanted replicas on demand."""
    replay = _Replay(region, max(round(start_h / region.step_h), 1))
    steps = len(region.available)
    enough, served, cost = 0, 0, 0.0
    # The first start-up is not counted: no policy can avoid it.
    for step in range(steps):
        replay.lose(step)
        replay.apply(rule(*replay.describe(step, wanted, extra)), step)
        if step < replay.start_steps:
            continue
        ready = replay.count_ready(step)
        enough += ready >= wanted
        served += min(ready, wanted)
        on_demand = len(replay.replicas[ON_DEMAND])
        spot = sum(map(len, replay.replicas.values())) - on_demand
        cost += (on_demand * prices.on_demand + spot * prices.spot) * region.step_h
    counted = steps - replay.start_steps
    whole = counted * region.step_h * wanted * prices.on_demand
    return {
        "availability": round(enough / counted, 5),
        "replicas_served": round(served / counted / wanted, 5),
        "cost_ratio": round(cost / whole, 4),
    }


def group_regions(traces: Sequence[SpotTrace]) -> dict[str, Region]:
    """Return zones of one GPU type that were recorded together, where there are at least three."""
    groups: dict[str, list[tuple[str, SpotTrace]]] = {}
    for each in traces:
        # availability_1-node_aws-02-15-2023_us-east-1c_v100_1
        parts = each.name.split("_", 4)
        if len(parts) == _NAME_PARTS:
            groups.setdefault(f"{parts[2]}_{parts[4]}", []).append((parts[3], each))
    found = {}
    for name, members in groups.items():
        if len(members) < _LEAST_ZONES or len({each.step_h for _, each in members}) > 1:
            continue
        steps = min(len(each.nodes) for _, each in members)
        available = np.stack([each.nodes[:steps] > 0 for _, each in members], axis=1)
        found[name] = Region(tuple(zone for zone, _ in members), available, members[0][1].step_h)
    return found


def measure_serving(traces: Sequence[SpotTrace], prices: Prices) -> dict[str, Any]:
    """Return availability and cost per region and policy. The policies on one zone are averaged over the zones."""
    result: dict[str, Any] = {}
    for name, region in group_regions(traces).items():

        def replay(rule: ServingRule, extra: int, region: Region = region) -> dict[str, float]:
            return replay_service(region, rule, wanted=_WANTED, extra=extra, start_h=_START_MIN / 60, prices=prices)

        alone = [replay(run_on_one_zone(zone), 0) for zone in region.zones]
        found = {f"kgwe_extra_{extra}": replay(plan_serving, extra) for extra in EXTRAS}
        found["on_demand"] = replay(run_on_demand, 0)
        found["one_zone_mean"] = {key: round(float(np.mean([each[key] for each in alone])), 5) for key in alone[0]}
        found["one_zone_best"] = max(alone, key=lambda each: each["availability"])
        days = round(len(region.available) * region.step_h / 24, 1)
        result[name] = {"zones": len(region.zones), "days": days, "wanted": _WANTED, **found}
    return result


def list_shares(measured: dict[str, Any], key: str) -> list[float]:
    """Return a measure of the policy by number of extra replicas."""
    return [measured[f"kgwe_extra_{extra}"][key] for extra in EXTRAS]
