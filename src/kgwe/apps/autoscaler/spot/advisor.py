"""Chooses spot, waiting or on-demand for everything that waits and may run on spot nodes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from kgwe.kube.api import timestamp
from kgwe.kube.translate import spot_terms
from kgwe.placement.fleet.node import SpotPolicy
from kgwe.placement.fleet.snapshot import Snapshot
from kgwe.placement.planning.planner import gang_request
from kgwe.placement.pod.fit import Fitter
from kgwe.placement.pod.fit_status import FitStatus
from kgwe.scaling.spot.choice import Job, Market, PlanBook, Verdict, choose_capacity
from kgwe.scaling.spot.deadline import Choice
from kgwe.scaling.spot.observed import ObservedOffer

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from kgwe.apps.autoscaler.pool_offers import PoolOffer
    from kgwe.cluster.offline import View
    from kgwe.kube.translate.spot_terms import SpotTerms
    from kgwe.placement.fleet.node import Request
    from kgwe.placement.planning.ask import Ask
    from kgwe.scaling.launch_memory import Offer

SPOT: Final = "spot"
WORDS: Final = {Choice.SPOT: "spot", Choice.WAIT: "wait", Choice.ON_DEMAND: "on-demand"}
#: What a verdict asks of the nodes that are bought.
_POLICIES: Final = {Choice.SPOT: SpotPolicy.REQUIRE, Choice.ON_DEMAND: SpotPolicy.AVOID}
#: Until a pool has shown how long its nodes take.
_LAUNCH_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Advised:
    """What waits, with the capacity that may be bought for it."""

    asks: tuple[Ask, ...]
    """What is bought for now. Their requests say which capacity."""
    verdicts: Mapping[str, Verdict]
    """Owner -> its choice."""

    @property
    def waiting(self) -> dict[str, Verdict]:
        return {owner: each for owner, each in self.verdicts.items() if each.choice is Choice.WAIT}


@dataclass(slots=True)
class SpotAdvisor:
    """Advises one policy in one round."""

    view: View
    observed: Mapping[Offer, ObservedOffer]
    now_s: float
    plans: PlanBook = field(default_factory=PlanBook)
    launch_s: float = _LAUNCH_S
    problems: dict[str, str] = field(default_factory=dict)
    """Owner -> terms that could not be read."""

    def read_terms(self, ask: Ask) -> SpotTerms | None:
        """Return what the owner of an ask says about spot; None: nothing."""
        state = self.view.state
        workload = state.find_workload(ask.owner)
        if workload is not None:
            found = workload.spot_terms
        else:
            group = self.view.gangs.group(ask.owner)
            uid = next(iter(group.members), "") if group is not None else ask.owner
            pod = state.pods.get(uid)
            found = spot_terms.from_annotations(pod.metadata.annotations) if pod is not None else None
        if found is not None and found.problem:
            self.problems[ask.owner] = found.problem
        return found

    def is_advised(self, ask: Ask) -> bool:
        """Whether there is a choice for this ask: it may run on spot, and it says something about it."""
        return _list_requests(ask)[0].spot is SpotPolicy.ALLOW and self.read_terms(ask) is not None

    def advise(
        self, asks: Sequence[Ask], usable: Sequence[PoolOffer], offers: Sequence[PoolOffer], refused: Collection[str]
    ) -> Advised:
        """Choose for every ask.

        `usable`: offers that may be tried now. `refused`: owners that found no spot within the limits of pools.
        """
        found, verdicts = [], {}
        markets = _Markets(usable, offers, self.observed, self.launch_s)
        for ask in asks:
            terms = self.read_terms(ask) if _list_requests(ask)[0].spot is SpotPolicy.ALLOW else None
            if terms is None:
                found.append(ask)
                continue
            job = _describe_job(ask, terms, self.now_s)
            market = markets.find(ask, is_refused=ask.owner in refused)
            verdict = choose_capacity(job, market, self.plans)
            if terms.problem:
                verdict = verdict._replace(message=f"{terms.problem}; {verdict.message}")
            verdicts[ask.owner] = verdict
            if verdict.choice is not Choice.WAIT:
                found.append(_limit_ask(ask, _POLICIES[verdict.choice]))
        return Advised(tuple(found), verdicts)


def _list_requests(ask: Ask) -> list[Request]:
    return [role.request for role in gang_request(ask).roles] if ask.gang is not None else [ask.request]


def _limit_ask(ask: Ask, policy: SpotPolicy) -> Ask:
    gang = ask.gang.with_requests(spot=policy) if ask.gang is not None else None
    return replace(ask, request=replace(ask.request, spot=policy), gang=gang)


def _describe_job(ask: Ask, terms: SpotTerms, now_s: float) -> Job:
    run_s = terms.run_s if terms.run_s is not None else ask.expected_s
    pods = sum(role.replicas for role in ask.gang.roles) if ask.gang is not None else ask.pods
    return Job(
        nodes=pods,
        work_s=None if run_s is None else run_s * (1.0 - terms.progress),
        left_s=None if terms.deadline_s is None else terms.deadline_s - now_s,
        waited_s=max(now_s - timestamp.epoch_seconds(ask.since), 0.0) if ask.since else 0.0,
        max_wait_s=terms.max_wait_s,
        restart_s=terms.restart_s,
        checkpoint_s=terms.checkpoint_s,
    )


class _Markets:
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
        lists = [self._list_fitting(request) for request in dict.fromkeys(_list_requests(ask))]
        fitting = [each for each in lists[0] if all(each in other for other in lists[1:])]
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

    def _list_fitting(self, request: Request) -> tuple[PoolOffer, ...]:
        if self._fitter is None:
            return ()
        found = self._fits.get(request)
        if found is None:
            codes = self._fitter.check_nodes(request)
            found = tuple(each for each, code in zip(self._offers, codes, strict=True) if code == FitStatus.FITS)
            self._fits[request] = found
        return found
