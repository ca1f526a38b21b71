"""What can be bought for an ask: the cheapest spot and on-demand nodes on which all of its pods fit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kgwe.placement.fleet.snapshot import Snapshot
from kgwe.placement.planning.planner import gang_request
from kgwe.placement.pod.fit import Fitter
from kgwe.placement.pod.fit_status import FitStatus
from kgwe.scaling.spot.choice import Market
from kgwe.scaling.spot.observed import ObservedOffer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kgwe.apps.autoscaler.pool_offers import PoolOffer
    from kgwe.placement.fleet.node import Request, SpotPolicy
    from kgwe.placement.planning.ask import Ask
    from kgwe.scaling.launch_memory import Offer

SPOT: Final = "spot"


def list_requests(ask: Ask) -> list[Request]:
    """Return the requests of the different pods of an ask."""
    return [role.request for role in gang_request(ask).roles] if ask.gang is not None else [ask.request]


def limit_ask(ask: Ask, policy: SpotPolicy) -> Ask:
    """Return the ask with what may be bought for it."""
    gang = ask.gang.with_requests(spot=policy) if ask.gang is not None else None
    return replace(ask, request=replace(ask.request, spot=policy), gang=gang)


class Markets:
    """The cheapest spot and on-demand nodes for each request."""

    def __init__(
        self,
        usable: Sequence[PoolOffer],
        offers: Sequence[PoolOffer],
        observed: Mapping[Offer, ObservedOffer],
        launch_s: float,
    ) -> None:
        self._offers = offers
        self._usable = {each.offer for each in usable}
        self._observed = observed
        self._launch_s = launch_s
        self._fitter = Fitter(Snapshot.from_nodes([each.template for each in offers])) if offers else None
        self._fits: dict[Request, tuple[PoolOffer, ...]] = {}

    def find(self, ask: Ask, *, is_refused: bool) -> Market:
        """Return what can be bought for an ask. A gang is bought from pools on which every one of its pods fits."""
        fitting = self.list_fitting(ask)
        spot = [each for each in fitting if each.offer.capacity_type == SPOT]
        usable = [each for each in spot if each.offer in self._usable]
        is_available = bool(usable) and not is_refused
        best = min(usable or spot, key=lambda each: (each.price_micro, str(each.offer)), default=None)
        observed = self._observed.get(best.offer) if best is not None else None
        nodes = sum(role.replicas for role in ask.gang.roles) if ask.gang is not None else ask.pods
        seen = observed or ObservedOffer()
        return Market(
            spot=None if best is None else float(best.price_micro),
            on_demand=min(
                (float(each.price_micro) for each in fitting if each.offer.capacity_type != SPOT), default=None
            ),
            is_available=is_available,
            rates=seen.estimate_rates(nodes),
            age_h=None if observed is None else observed.find_age_h(nodes, is_available=is_available),
            launch_s=self._launch_s,
        )

    def list_fitting(self, ask: Ask) -> list[PoolOffer]:
        """Return offers on whose nodes every pod of an ask fits."""
        lists = [self._list_for_pod(request) for request in dict.fromkeys(list_requests(ask))]
        return [each for each in lists[0] if all(each in other for other in lists[1:])]

    def is_usable(self, offer: Offer) -> bool:
        """Whether an offer may be tried now."""
        return offer in self._usable

    def find_lost_s(self, offer: Offer) -> float | None:
        """Return when nodes of an offer were taken back last."""
        return found.lost_s if (found := self._observed.get(offer)) is not None else None

    def _list_for_pod(self, request: Request) -> tuple[PoolOffer, ...]:
        if self._fitter is None:
            return ()
        found = self._fits.get(request)
        if found is None:
            codes = self._fitter.check_nodes(request)
            found = tuple(each for each, code in zip(self._offers, codes, strict=True) if code == FitStatus.FITS)
            self._fits[request] = found
        return found
