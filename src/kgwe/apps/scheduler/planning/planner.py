"""Who waits, who has been given a place, who may be tried again when.

The planner holds the decisions that are not yet visible in the API. A decision is assumed here the moment it is taken
(and reserved in the ledger), confirmed when what carries it out is seen, and forgotten when that could not be created
or the work is gone. A new leader starts with an empty planner: what its predecessor decided and carried out is in the
API, the rest never happened.

Passes run on a copy of the fleet, large ones in a thread: kube-scheduler's calls are answered meanwhile. What happens
during a pass is kept for the next one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import structlog

from kgwe import errors
from kgwe.apps.scheduler.planning.cycle import PlanningCycle, broken
from kgwe.apps.scheduler.planning.errors import PlanningErrors
from kgwe.cluster.workload import scheduler_policy as policy
from kgwe.kube.api import timestamp
from kgwe.placement.planning.plan import Plan
from kgwe.placement.refusal import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from kgwe.apps.scheduler.metrics import Metrics
    from kgwe.apps.scheduler.planning.cycle import Result
    from kgwe.apps.scheduler.recording.recorder import Recorder
    from kgwe.cluster.state.cluster_state import ClusterState
    from kgwe.placement.live.fleet import Holding
    from kgwe.placement.planning.ask import Ask
    from kgwe.placement.planning.custom_strategies import Choosers, Rng
    from kgwe.placement.queue.eta import Eta
    from kgwe.placement.refusal import Refusal

log = structlog.get_logger(__name__)

# Bursts of events (a Job that ends, its pod, its node) become one pass.
_GATHER_S = 0.02
# With a pass in a thread, the loop must get its turn well within the time an answer may take.
_SWITCH_S = 0.0005


class Planner:
    """Runs a planning pass soon after anything that could help."""

    def __init__(
        self,
        state: ClusterState,
        choosers: Choosers,
        rng: Rng,
        metrics: Metrics,
        on_decided: Callable[[str], None],
    ) -> None:
        self.waiting: dict[str, Ask] = {}  # owner -> what it asks for
        self.held: dict[str, Refusal] = {}  # owner -> why the last pass did not place it
        self.planned: dict[str, Plan] = {}  # owner -> decision, until it is seen in the API
        self.estimates: dict[str, Eta] = {}  # owner -> when it is thought to start
        self.remarks: dict[str, tuple[Reason, str]] = {}  # owner that had a place -> why it lost it
        self.on_refused: Callable[[], None] = lambda: None
        self._claims: dict[str, bool] = {}  # owner -> whether the room that is kept for it is free
        self._state = state
        self._metrics = metrics
        self._on_decided = on_decided
        self._passes = PlanningCycle(state.fleet, choosers, rng)
        self._passes.on_planned = lambda strategy, took_s: metrics.decision_seconds.labels(strategy).observe(took_s)
        self._later: list[Callable[[], None]] = []  # what to tell the queue once the pass under way is over
        self._soon: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._thread: concurrent.futures.ThreadPoolExecutor | None = None
        self._running: asyncio.Task[None] | None = None
        self._kept: list[tuple[int, NDArray[np.bool_]]] = []
        self._kept_of = -1
        self.pass_s = 0.0  # how long the last pass took
        self.faults = PlanningErrors(metrics)
        metrics.waiting.set_function(lambda: len(self.waiting))

    def record(self, recorder: Recorder | None) -> None:
        """Have every plan and refusal written down."""
        self._passes.recorder = recorder

    def want(self, ask: Ask) -> None:
        """Let the work wait for a place; asked again with other needs, the new ones count."""
        if ask.owner in self.remarks and self.remarks[ask.owner][0] is Reason.RECOVERING:
            ask = replace(ask, first_claim=True)
        config = self._state.config
        ask = policy.limited(ask, config)
        if (refused := policy.refused(ask, config)) is not None:
            self._no_longer_waits(ask.owner)
            self.waiting[ask.owner] = ask
            self._hold(ask, refused)
        elif self.waiting.get(ask.owner) != ask:
            self.waiting[ask.owner] = ask
            self._tell(lambda: self._passes.put(ask))
            self.pass_soon()
        if self._claims.get(ask.owner):
            self.serve(ask.owner)

    def forget(self, owner: str) -> None:
        """The work no longer needs a decision; what was assumed for it is given back."""
        self._no_longer_waits(owner)
        self.remarks.pop(owner, None)
        self.unclaim(owner)
        self.forget_plan(owner)

    def forget_plan(self, owner: str) -> None:
        """Take back a decision that was not carried out."""
        gone = self.planned.pop(owner, None) is not None and owner not in self._state.runs
        if gone:
            self._state.ledger.release_seats(owner)

    def confirm(self, owner: str) -> None:
        """The decision is now in the API."""
        self.planned.pop(owner, None)
        self._no_longer_waits(owner)

    def occupies(self, owner: str, namespace: str, milli: int, since_s: float) -> None:
        """Count work that has had its place since before this planner was there."""
        self._tell(lambda: self._passes.occupies(owner, namespace, milli, since_s))

    def _no_longer_waits(self, owner: str) -> None:
        self.held.pop(owner, None)
        self.estimates.pop(owner, None)
        if self.waiting.pop(owner, None) is not None:
            self._tell(lambda: self._passes.drop(owner))

    def _tell(self, news: Callable[[], None]) -> None:
        if self._running is None:
            news()
        else:
            self._later.append(news)

    # --- room that is kept for one ----------------------------------------------------------------------

    def claim(self, owner: str, seats: Mapping[int, Holding], *, ready: bool) -> None:
        """Keep this room for the owner; `ready`: it is free, and the owner gets it as soon as it asks."""
        self._claims[owner] = ready
        self._state.ledger.reserve_seats(claim_key(owner), seats)

    def unclaim(self, owner: str) -> None:
        if self._claims.pop(owner, None) is not None:
            self._state.ledger.release_seats(claim_key(owner))

    def serve(self, owner: str) -> None:
        """What is kept for the owner is free: it gets its place now, before anybody else can take it."""
        ask = self.waiting.get(owner)
        if ask is None:
            self._claims[owner] = True
            return
        self._claims.pop(owner, None)
        self._state.ledger.withdraw_seats(claim_key(owner))
        try:
            answer = self._passes.plan_now(ask, self._state.fleet)
        except Exception as exc:  # noqa: BLE001 - its turn in the next pass tells it
            self.faults.record("plan", owner, exc)
            self.pass_soon()
            return
        if isinstance(answer, Plan):
            self._carry_out(answer, time.time())
        else:
            log.info("claim_not_enough", owner=owner, reason=answer.message)
            self.pass_soon()

    def pass_soon(self) -> None:
        if self._soon is None and self.waiting and not self.faults.is_pausing:
            self._soon = asyncio.get_running_loop().call_later(_GATHER_S, self._pass)

    def close(self) -> None:
        for timer in (self._soon, self._timer):
            if timer is not None:
                timer.cancel()
        if self._running is not None:
            self._running.cancel()
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
        self._metrics.waiting.set_function(lambda: 0)
        for owner in [*self.planned, *self._claims]:
            self.forget(owner)

    # --- passes -----------------------------------------------------------------------------------------

    def _pass(self) -> None:
        self._soon = None
        if self._running is not None:
            return  # its end starts the next one
        now_s = time.time()
        started = time.perf_counter()
        try:
            self._sync()
            if self._passes.is_light:
                self._pass_done(self._passes.run(now_s), now_s, time.perf_counter() - started)
            else:
                self._running = asyncio.create_task(self._aside(now_s))
        except Exception as exc:  # noqa: BLE001 - reported; everything that waits is planned again
            self._pass_failed(exc)

    def _sync(self) -> None:
        _ = self._state.fleet  # nodes that changed are put together before anything is read
        self._passes.sync(self._state.ledger, self._state.plain_pods.held)

    async def _aside(self, now_s: float) -> None:
        """One pass in the thread; then what came in between, and another pass if anything did."""
        if self._thread is None:
            sys.setswitchinterval(_SWITCH_S)
            self._thread = concurrent.futures.ThreadPoolExecutor(1, "planning")
        started = time.perf_counter()
        try:
            result = await asyncio.get_running_loop().run_in_executor(self._thread, self._passes.run, now_s)
            had_news = self._catch_up()
            self._pass_done(result, now_s, time.perf_counter() - started)
        except Exception as exc:  # noqa: BLE001 - reported; everything that waits is planned again
            self._pass_failed(exc)
            self._catch_up()
            return
        if had_news:
            self.pass_soon()

    def _catch_up(self) -> bool:
        """The pass is over: tell the queue what came in between. Returns whether anything did."""
        self._running = None
        later, self._later = self._later, []
        for news in later:
            try:
                news()
            except Exception as exc:  # noqa: BLE001 - the remaining listeners still run
                self.faults.record("queue", "", exc)
        return bool(later)

    def _pass_done(self, result: Result, now_s: float, took_s: float) -> None:
        self.pass_s = took_s
        self._metrics.dispatch_seconds.observe(took_s)
        for fault in result.faults:
            self.faults.record(fault.stage, fault.owner, fault.error)
        self._apply(result, now_s)
        self.faults.pass_succeeded()

    def _pass_failed(self, error: Exception) -> None:
        """Not one work but the pass itself failed: everything that waits goes back to the queue, for another pass."""
        pause_s = self.faults.pass_failed(error)
        try:
            self._passes.start_again([ask for ask in self.waiting.values() if not self._is_refused(ask)])
        except Exception as exc:  # noqa: BLE001 - the next pass fails too then, and tries this again
            self.faults.record("pass", "", exc)
        self._wake_at(time.time() + pause_s)

    def _is_refused(self, ask: Ask) -> bool:
        return policy.refused(ask, self._state.config) is not None

    def _apply(self, result: Result, now_s: float) -> None:
        """Carry out what a pass decided, work by work: an error in one leaves the others alone."""
        for _, plan in result.plans:
            self._carry_out(plan, now_s)
        for ask, refusal in result.refusals:
            if self.waiting.get(ask.owner) == ask:
                try:
                    self._hold(ask, refusal)
                except Exception as exc:  # noqa: BLE001 - counted; it waits all the same
                    self.faults.record("report", ask.owner, exc)
        self.estimates |= result.estimates
        self._keep(result)
        self._wake_at(self._passes.queue.next_due_s())

    def _carry_out(self, plan: Plan, now_s: float) -> None:
        owner = plan.ask.owner
        ask = self.waiting.get(owner)
        try:
            self._commit(owner, plan, now_s)
        except Exception as exc:  # noqa: BLE001 - counted, and told to the work, which waits for its next try
            self.faults.record("commit", owner, exc)
            if ask is not None:
                self._wait_longer(ask, exc, now_s)

    def _wait_longer(self, ask: Ask, error: Exception, now_s: float) -> None:
        self.waiting[ask.owner] = ask
        self.held[ask.owner] = broken("plan", error)
        self._tell(lambda: self._passes.put_later(ask, now_s, str(error)))
        if self._running is None:
            self._wake_at(self._passes.queue.next_due_s())

    def _commit(self, owner: str, plan: Plan, now_s: float) -> None:
        """Reserve it for real; what the live fleet has given away meanwhile is planned again."""
        ask = self.waiting.get(owner)
        if ask is None or (ask != plan.ask and not ask.divisible):
            return
        try:
            nodes = [seat.node for seat in plan.seats]
            start = self._state.ledger.commit_plan(
                owner, plan.amounts_by_seat, plan.grants, nodes, extend=ask.gang is not None
            )
        except errors.InvariantBroken as exc:
            log.info("plan_overtaken", owner=owner, reason=str(exc))
            self._tell(lambda: self._passes.put(ask))
            self.pass_soon()
            return
        self._tell(lambda: self._passes.started(plan.ask, now_s))
        self._tell(lambda: self._passes.drop(owner))
        self.remarks.pop(owner, None)
        self.planned[owner] = replace(plan, start=start)
        self._metrics.attempts.inc()
        self._metrics.successes.inc()
        self._metrics.decisions.labels(ask.strategy or "score", "placed").inc()
        if plan.preferred_met:
            self._metrics.optimal.inc()
        if ask.since:
            self._metrics.latency.observe(max(now_s - timestamp.epoch_seconds(ask.since), 0.0))
        del self.waiting[owner]
        self.held.pop(owner, None)
        self.estimates.pop(owner, None)
        try:
            self._on_decided(owner)
        except Exception:
            # Nothing was written yet: what was reserved a moment ago is free again.
            self.planned.pop(owner, None)
            for number in range(start, start + len(plan.seats)):
                self._state.ledger.release_seat(owner, number)
            raise

    def _hold(self, ask: Ask, refusal: Refusal) -> None:
        """Remember why. Only a new code is news: the numbers in the message move with every pod that ends."""
        owner = ask.owner
        before = self.held.get(owner)
        self.on_refused()
        if owner in self.remarks:
            reason, words = self.remarks[owner]
            refusal = replace(refusal, code=reason, message=f"{words}; {refusal.message}")
        self.held[owner] = refusal
        if before is None:
            self._metrics.failed.labels("no_suitable_node").inc()
        self._metrics.attempts.inc()
        self._metrics.failures.labels(refusal.code).inc()
        self._metrics.decisions.labels(ask.strategy or "score", "refused").inc()
        if before is None or before.code != refusal.code:
            self._on_decided(owner)

    def _wake_at(self, when_s: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if when_s is not None:
            delay_s = max(when_s - time.time(), 0.0)
            self._timer = asyncio.get_running_loop().call_later(delay_s + _GATHER_S, self.pass_soon)

    # --- what is kept for others ------------------------------------------------------------------------

    def _keep(self, result: Result) -> None:
        index = self._state.fleet.snapshot.index
        self._kept = []
        self._kept_of = self._state.fleet.generation
        for priority, names in result.kept:
            mask = np.zeros(len(index), np.bool_)
            mask[[index[name] for name in names if name in index]] = True
            self._kept.append((priority, mask))

    def blocked(self, priority: int) -> NDArray[np.bool_] | None:
        """Nodes that a plain pod of this priority has to leave alone; None: none."""
        if not self._kept or self._kept_of != self._state.fleet.generation:
            return None
        masks = [mask for kept_for, mask in self._kept if kept_for >= priority]
        return np.logical_or.reduce(masks) if masks else None


def claim_key(owner: str) -> str:
    """Whom room is reserved for in the ledger while it is kept for an owner."""
    return f"claim:{owner}"
