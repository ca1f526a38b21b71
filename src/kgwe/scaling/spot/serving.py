"""Inference on spot nodes: replicas spread over failure domains, some more than needed, and on-demand as a fallback.

A domain is a zone and instance type, whose spot nodes are taken back together. The ideas are those of SpotHedge
(SkyServe, EuroSys'25): spread, over-provision with cheap nodes, keep away from domains that were lost lately, and fall
back to on-demand only while spot is short. Unlike there, the number of replicas is fixed: a replica that finds no spot
runs on demand, and goes back to spot when the service can spare it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """An inference service as it is now."""

    wanted: int
    """Replicas that it needs."""
    extra: int
    """Replicas that it has beside them, on spot, to cover losses."""
    spot: Mapping[str, int]
    """Domain -> replicas on its spot nodes, ready or starting."""
    on_demand: int = 0
    """Replicas on other nodes, ready or starting."""
    ready: int = 0
    """Replicas that serve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Domains:
    """Where spot can be bought, the preferred domain first."""

    usable: tuple[str, ...]
    """The provider has not refused them lately."""
    avoided: frozenset[str] = frozenset()
    """Nodes were taken back there lately."""


@dataclass(frozen=True, slots=True)
class ServingPlan:
    """What to start, and what may go."""

    spot: tuple[str, ...] = ()
    """A domain per replica that is started on spot."""
    on_demand: int = 0
    """Replicas that are started on demand."""
    waiting: int = 0
    """Extra replicas that wait for spot."""
    to_spot: int = 0
    """Replicas on demand that may stop now, to start again on spot."""


def plan_serving(service: Service, domains: Domains) -> ServingPlan:
    """Return what to start for the replicas that are missing, and what may go back to spot."""
    held = dict(service.spot)
    running = sum(held.values()) + service.on_demand
    missing = max(service.wanted + service.extra - running, 0)
    calm = tuple(each for each in domains.usable if each not in domains.avoided)
    chosen = tuple(_spread(calm or domains.usable, held, missing))
    fallback = min(max(service.wanted - running - len(chosen), 0), missing)
    # One at a time, only what the service can spare while it starts again, and only to where nothing was lost lately.
    to_spot = int(bool(calm) and not missing and service.on_demand > 0 and service.ready > service.wanted)
    return ServingPlan(chosen, fallback, missing - len(chosen) - fallback, to_spot)


def _spread(usable: tuple[str, ...], held: dict[str, int], count: int) -> list[str]:
    """Return a domain per replica: always the one with the fewest."""
    chosen: list[str] = []
    for _ in range(count if usable else 0):
        best = min(usable, key=lambda each: held.get(each, 0))
        held[best] = held.get(best, 0) + 1
        chosen.append(best)
    return chosen
