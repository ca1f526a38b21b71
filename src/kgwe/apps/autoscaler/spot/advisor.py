"""Chooses spot, waiting or on-demand for everything that waits and may run on spot nodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kgwe.apps.autoscaler.spot import serving
from kgwe.apps.autoscaler.spot.markets import Markets, limit_ask, list_requests
from kgwe.cluster.workload import replica_uid
from kgwe.kube.api import timestamp
from kgwe.kube.translate import spot_terms
from kgwe.placement.fleet.node import SpotPolicy
from kgwe.scaling.spot.choice import Job, PlanBook, Verdict, choose_capacity
from kgwe.scaling.spot.deadline import Choice

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from kgwe.apps.autoscaler.pool_offers import PoolOffer
    from kgwe.cluster.offline import View
    from kgwe.kube.translate.spot_terms import SpotTerms
    from kgwe.placement.planning.ask import Ask
    from kgwe.scaling.launch_memory import Offer
    from kgwe.scaling.spot.observed import ObservedOffer

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
        return list_requests(ask)[0].spot is SpotPolicy.ALLOW and self.read_terms(ask) is not None

    def advise(
        self,
        asks: Sequence[Ask],
        usable: Sequence[PoolOffer],
        offers: Sequence[PoolOffer],
        *,
        refused: Collection[str] = (),
        coming: Collection[Ask] = (),
        placed: Collection[str] = (),
    ) -> Advised:
        """Choose for every ask.

        `usable`: offers that may be tried now. `refused`: owners that found no spot within the limits of pools.
        `coming`: asks whose nodes are in flight. `placed`: owners that wait, and for which the engine has a place.
        """
        found: list[Ask] = []
        verdicts: dict[str, Verdict] = {}
        services: dict[str, list[Ask]] = {}
        markets = Markets(usable, offers, self.observed, self.launch_s)
        for ask in asks:
            terms = self.read_terms(ask) if list_requests(ask)[0].spot is SpotPolicy.ALLOW else None
            if terms is None:
                found.append(ask)
                continue
            if ask.service:
                services.setdefault(ask.service, []).append(ask)
                continue
            job = _describe_job(ask, terms, self.now_s)
            market = markets.find(ask, is_refused=ask.owner in refused)
            verdict = choose_capacity(job, market, self.plans)
            if terms.problem:
                verdict = verdict._replace(message=f"{terms.problem}; {verdict.message}")
            verdicts[ask.owner] = verdict
            if verdict.choice is not Choice.WAIT:
                found.append(limit_ask(ask, _POLICIES[verdict.choice]))
        for service, waiting in services.items():
            away = [ask for ask in waiting if ask.owner in refused]
            coming_here = sum(ask.service == service for ask in coming)
            coming_here += sum(replica_uid.object_uid(owner) == service for owner in placed)
            chosen = serving.place_replicas(self.view, waiting, markets, coming_here, self.now_s, is_refused=bool(away))
            for ask, verdict, limited in chosen:
                verdicts[ask.owner] = verdict
                found += [limited] if limited is not None else []
        return Advised(tuple(found), verdicts)


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
