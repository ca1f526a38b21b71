"""A planning pass: pure deciders over a copy of the fleet, so that it may run in a thread while the loop answers.

Nothing here touches the live ledger. What a pass decides is committed there afterwards, by whoever ran it; where the
live fleet has moved on meanwhile that commit is refused, and the work is tried again.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np

from kgwe import errors
from kgwe.apps.scheduler.records import Draws
from kgwe.placement import planning, shadow
from kgwe.placement.backfill import Holds
from kgwe.placement.eta import Estimator
from kgwe.placement.outlook import Outlook
from kgwe.placement.parking import ConfigChanged, No, RoomFreed
from kgwe.placement.planning import Plan, Reason, Refusal
from kgwe.placement.queue import Queue
from kgwe.placement.queue_pass import Held, Placed, run_pass
from kgwe.placement.work import Occupant, Roster, RunTime, Work, milli_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kgwe.apps.scheduler.records import Recorder
    from kgwe.placement.eta import Eta
    from kgwe.placement.fit import Fitter
    from kgwe.placement.gang_request import GangRequest
    from kgwe.placement.ledger import Ledger
    from kgwe.placement.live import Fleet
    from kgwe.placement.node import Request
    from kgwe.placement.planning import Ask
    from kgwe.placement.shadow import Shadow
    from kgwe.placement.snapshot import Grant
    from kgwe.placement.strategies import Choosers, Rng

# Run times declared by users: one in twenty takes up to twice as long.
_LATE = 2.0
# Waiting works whose start is estimated, and the least time between two estimates.
_ESTIMATED = 200
_ESTIMATE_EVERY_S = 10.0
# Single pods and gangs up to this size are planned faster than a thread is woken.
_LIGHT_PODS = 32


def seconds(timestamp: str) -> float:
    """As the API writes times; 0 when it says nothing."""
    return datetime.fromisoformat(timestamp).timestamp() if timestamp else 0.0


def run_time(expected_s: float | None) -> RunTime | None:
    return RunTime(expected_s, expected_s * _LATE) if expected_s else None


def work_of(ask: Ask, fitter: Fitter) -> Work:
    """The ask as the queue orders it."""
    whole = planning.divided(fitter, ask)
    request: Request | GangRequest = whole.request
    if whole.pods > 1 or whole.gang is not None:
        # One that makes no sense is refused, with the reason, when its turn to be planned comes.
        with contextlib.suppress(errors.Permanent):
            request = planning.gang_request(whole)
    return Work(
        key=ask.owner,
        request=request,
        namespace=ask.namespace,
        priority=ask.priority,
        since_s=seconds(ask.since),
        run_time=run_time(ask.expected_s),
        first_claim=ask.first_claim,
        shape=ask.shape(),
    )


@dataclass(frozen=True)
class Result:
    """What a pass found out."""

    plans: Sequence[tuple[Work, Plan]]
    refusals: Sequence[Refusal]
    estimates: Mapping[str, Eta]
    #: nodes kept for work of that priority
    kept: Sequence[tuple[int, frozenset[str]]]


class Passes:
    """The queue and what its passes need; used by one thread at a time."""

    def __init__(self, fleet: Fleet, choosers: Choosers, rng: Rng) -> None:
        self._fleet = fleet
        self._choosers = choosers
        self._rng = rng
        self.queue = Queue()
        self._grants: dict[str, Sequence[Grant]] = {}
        self.roster = Roster(lambda key: self._grants.get(key, ()))
        self._copies()
        self._asks: dict[str, Ask] = {}
        self._generation = fleet.generation
        self._seen = fleet.snapshot.version
        self._estimated_s = 0.0
        #: hears strategy and time of every plan
        self.on_planned: Callable[[str, float], None] = lambda _strategy, _took_s: None
        self.recorder: Recorder | None = None

    def _copies(self) -> None:
        """What plans are made on; made anew when the weights of scores change."""
        self._weights = self._fleet.weights, self._fleet.domain_weights
        self._copy = shadow.Shadow(self._fleet, *self._weights)
        self._veiled: Shadow | None = None
        self._holds = Holds(Outlook(self._copy, self.roster), self.roster)
        self._estimator = Estimator(self._copy, self.roster)

    # --- on the loop, between passes --------------------------------------------------------------------

    def put(self, ask: Ask) -> None:
        self._asks[ask.owner] = ask
        self.queue.put(work_of(ask, self._fleet.fitter))

    def drop(self, owner: str) -> None:
        self._asks.pop(owner, None)
        self.queue.drop(owner)
        self._estimator.forget(owner)

    def started(self, ask: Ask, now_s: float) -> None:
        """It has its place; it counts against its namespace until `sync` finds that it holds nothing."""
        request = ask.request if ask.gang is None else ask.gang
        pods = ask.pods if ask.gang is None else 1
        self.roster.put(Occupant(ask.owner, ask.namespace, milli_of(request) * pods, now_s, run_time(ask.expected_s)))
        self._estimator.started(ask.owner, now_s)

    def sync(self, ledger: Ledger) -> None:
        """Catch up with the live fleet and its books."""
        fleet = self._fleet
        if fleet.generation != self._generation:
            self._generation = fleet.generation
            if self._weights != (fleet.weights, fleet.domain_weights):
                self._copies()
            self.queue.wake(ConfigChanged())
            for ask in [ask for ask in self._asks.values() if ask.divisible]:
                self.queue.put(work_of(ask, fleet.fitter))
        else:
            for number in fleet.snapshot.newer_than(self._seen).tolist():
                self.queue.wake(RoomFreed(fleet.snapshot.nodes[number].name))
        self._seen = fleet.snapshot.version
        for key in [key for key in self.roster if not ledger.has_seats(key)]:
            self.roster.drop(key)
        self._grants = {occupant.key: ledger.grants(occupant.key) for occupant in self.roster.known()[0]}
        self._copy.sync()

    def plan_now(self, ask: Ask, place: planning.Place) -> Plan | Refusal:
        """Out of turn."""
        return planning.plan(place, ask, choosers=self._choosers, rng=self._rng, explain=False)

    @property
    def is_light(self) -> bool:
        """Whether a pass is over sooner than a thread is started for it."""
        return all(_pods(shape.request) <= _LIGHT_PODS for shape in self.queue.parking.awake) and not len(self._holds)

    # --- anywhere ---------------------------------------------------------------------------------------

    def run(self, now_s: float) -> Result:
        outcomes = run_pass(self.queue, self, now_s, self.roster, self._holds)
        plans: list[tuple[Work, Plan]] = []
        refusals: list[Refusal] = []
        for outcome in outcomes:
            if isinstance(outcome, Placed):
                plans.append((outcome.work, outcome.plan))
            elif isinstance(outcome, Held):
                hold = self._holds.get(outcome.work.key)
                kept = f"; {hold.words(now_s)}" if hold else ""
                refusals.append(self._explained(outcome.work, outcome.no, kept))
            else:
                ask = self._asks[outcome.work.key]
                refusals.append(Refusal(ask, Reason(outcome.verdict), outcome.words, possible=False))
        kept_nodes = [(-hold.rank[0], hold.nodes) for hold in self._holds.all()]
        return Result(plans, refusals, self._estimates(now_s), kept_nodes)

    def _explained(self, work: Work, no: No, kept: str) -> Refusal:
        """Certificates take longer than plans: made only for who is told."""
        ask = self._asks[work.key]
        known = no.why if isinstance(no.why, Refusal) else None
        if known is None:
            return Refusal(ask, Reason.HELD_FOR_OTHERS, no.words + kept, no.possible)
        if known.certificate is None and known.single is None:
            again = planning.plan(self._copy, ask, choosers=self._choosers, rng=self._rng)
            # It may fit by now, or on nodes kept for others: then the short answer stands.
            known = again if isinstance(again, Refusal) else known
        return replace(known, ask=ask, message=known.message + kept)

    def _estimates(self, now_s: float) -> Mapping[str, Eta]:
        if not len(self.queue) or not len(self.roster) or now_s < self._estimated_s + _ESTIMATE_EVERY_S:
            return {}
        self._estimated_s = now_s
        order = self._holds.first(itertools.islice(self.queue.order(self.roster.held), _ESTIMATED))
        return self._estimator.estimate(order, now_s)

    # --- as run_pass plans and books --------------------------------------------------------------------

    def plan(self, work: Work, avoid: frozenset[str]) -> Plan | No:
        place: Shadow = self._copy
        if avoid:
            if self._veiled is None:
                self._veiled = shadow.Shadow(self._copy, *self._weights)
            place = self._veiled
            place.sync(avoid)
        ask = self._asks[work.key]
        started = time.perf_counter()
        draws = Draws(self._rng)
        answer = planning.plan(place, ask, choosers=self._choosers, rng=draws, explain=False)
        self.on_planned(ask.strategy or "score", time.perf_counter() - started)
        if self.recorder is not None:
            self.recorder.plan(self._copy, ask, answer, avoid=avoid, draws=draws.said)
        return answer if isinstance(answer, Plan) else No(answer.message, answer.possible, answer)

    def commit(self, work: Work, plan: Plan) -> None:  # noqa: ARG002 - the Protocol's shape
        self._copy.snapshot.commit_all(plan.grants)

    def takes(self, request: Request | GangRequest, nodes: Sequence[str]) -> bool:
        index = self._copy.snapshot.index
        numbers = np.array([index[name] for name in nodes if name in index], np.intp)
        return shadow.takes(self._copy.fitter, request, numbers)


def _pods(request: Request | GangRequest) -> int:
    return getattr(request, "replicas", 1)
