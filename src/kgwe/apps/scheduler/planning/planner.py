"""Owners that wait for a place: what they ask for, why they still wait, and the delivery of each decision.

The planner's decisions are not visible in the API yet. A plan is reserved in the ledger the moment it is made. It is
confirmed when the API shows what executes it, and discarded when that could not be created. A new leader starts with an
empty planner: what its predecessor executed is in the API, the rest never happened.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import structlog

from kgwe import errors
from kgwe.apps.scheduler.planning.blocked_nodes import BlockedNodes
from kgwe.apps.scheduler.planning.cycle import PlanningCycle, error_refusal
from kgwe.apps.scheduler.planning.gather_window import GatherWindow
from kgwe.apps.scheduler.planning.interruptions import Interruptions
from kgwe.apps.scheduler.planning.label_notes import LabelNotes
from kgwe.apps.scheduler.planning.pass_runner import PassRunner
from kgwe.apps.scheduler.planning.plan_ledger import PlanLedger
from kgwe.apps.scheduler.planning.run_times import RunTimes
from kgwe.cluster.workload import scheduler_policy as policy
from kgwe.placement.planning.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from kgwe.apps.scheduler.budgets.gate import BudgetGate
    from kgwe.apps.scheduler.metrics import Metrics
    from kgwe.apps.scheduler.planning.cycle import Result
    from kgwe.apps.scheduler.planning_errors import PlanningErrors
    from kgwe.apps.scheduler.recording.recorder import Recorder
    from kgwe.cluster.state.cluster_state import ClusterState
    from kgwe.placement.live.holding import Holding
    from kgwe.placement.planning.ask import Ask
    from kgwe.placement.planning.custom_strategies import Choosers, Rng
    from kgwe.placement.queue.eta import Eta
    from kgwe.placement.queue.workloads import RunTime
    from kgwe.placement.refusal import Refusal

log = structlog.get_logger(__name__)


class Planner:
    """Places owners that wait, in planning passes, and delivers each decision to `on_decided`."""

    def __init__(
        self,
        state: ClusterState,
        choosers: Choosers,
        rng: Rng,
        metrics: Metrics,
        *,
        faults: PlanningErrors,
        on_decided: Callable[[str, Plan | Refusal], None],
        on_refused: Callable[[], None] = lambda: None,
        recorder: Recorder | None = None,
        window: GatherWindow | None = None,
        find_hint: Callable[[str], Mapping[str, float]] = lambda _owner: {},
        budgets: BudgetGate | None = None,
    ) -> None:
        """`on_decided`: called with each plan, and each refusal with a new reason; `on_refused`: after any refusal."""
        self.interruptions = Interruptions()
        self.last_pass_s = 0.0
        self._state = state
        self._metrics = metrics
        self._faults = faults
        self._on_decided = on_decided
        self._on_refused = on_refused
        self._waiting: dict[str, Ask] = {}  # owner -> what it asks for
        self._parked: set[str] = set()  # owners that wait, and are not in the queue: settings or budgets refuse them
        self._budgets = budgets
        self._unthrottled: dict[str, Ask] = {}  # owner -> its ask before a budget put it last
        self._refusals: dict[str, Refusal] = {}  # owner -> why the last pass did not place it
        self._estimates: dict[str, Eta] = {}  # owner -> when it is expected to start
        self._ledger = PlanLedger(state)
        self._blocked = BlockedNodes()
        self._run_times = RunTimes()
        self._cycle = PlanningCycle(
            state.fleet,
            choosers,
            rng,
            on_planned=metrics.observe_plan,
            recorder=recorder,
            run_times=self._run_times,
            find_hint=find_hint,
        )
        self._label_notes = LabelNotes(state)
        self._window = window or GatherWindow()
        self._passes = PassRunner(self._cycle, self, faults)

    def start(self) -> None:
        self._metrics.waiting.set_function(lambda: len(self._waiting))

    def close(self) -> None:
        self._passes.close()
        self._metrics.waiting.set_function(lambda: 0)
        for owner in self._ledger.owners():
            self.forget(owner)

    # --- what is known of an owner ----------------------------------------------------------------------

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def waiting_ask(self, owner: str) -> Ask | None:
        """What the owner asks for; None: it does not wait."""
        return self._waiting.get(owner)

    def refusal_of(self, owner: str) -> Refusal | None:
        """Why the last pass did not place the owner."""
        return self._refusals.get(owner)

    def refused_asks(self) -> Iterator[tuple[Ask, Refusal]]:
        """Everything that waits because a pass refused it."""
        for owner, refusal in self._refusals.items():
            if (ask := self._waiting.get(owner)) is not None:
                yield ask, refusal

    def estimate_of(self, owner: str) -> Eta | None:
        """When the owner is expected to start."""
        return self._estimates.get(owner)

    def has_plan(self, owner: str) -> bool:
        """Whether the owner has a plan that the API does not show yet."""
        return self._ledger.is_assumed(owner)

    def blocked_nodes(self, priority: int) -> NDArray[np.bool_] | None:
        """Nodes that a plain pod of this priority must not use; None: it may use all."""
        return self._blocked.mask_for(self._state.fleet, priority)

    # --- asking -----------------------------------------------------------------------------------------

    def request_place(self, ask: Ask) -> None:
        """Let the owner wait for a place. A second request replaces the first."""
        owner, config = ask.owner, self._state.config
        ask = policy.limit_ask(self.interruptions.prioritize(ask), config)
        refused = policy.check_allowed(ask, config)
        if refused is None and self._budgets is not None:
            ask, refused = self._review_budget(ask, self._budgets)
        if refused is not None:
            self._park(ask, refused)
        elif owner in self._parked or self._waiting.get(owner) != ask:
            self._parked.discard(owner)
            self._waiting[owner] = ask
            self._passes.change_queue(lambda cycle: cycle.put(ask))
            self._open_window(ask)
            self.plan_soon()
        if self._ledger.is_ready(owner):
            self.place_reserved(owner)

    def _review_budget(self, ask: Ask, budgets: BudgetGate) -> tuple[Ask, Refusal | None]:
        reviewed, refused = budgets.review(ask)
        if reviewed is ask:
            self._unthrottled.pop(ask.owner, None)
        else:
            self._unthrottled[ask.owner] = ask
        return reviewed, refused

    def _park(self, ask: Ask, refused: Refusal) -> None:
        """Let the owner wait outside of the queue: free capacity does not help it."""
        owner = ask.owner
        if owner not in self._parked:
            self._parked.add(owner)
            self._estimates.pop(owner, None)
            self._passes.change_queue(lambda cycle: cycle.remove(owner))
        self._waiting[owner] = ask
        self._refuse_owner(ask, refused)

    def review_budgets(self) -> None:
        """Budgets have changed: look again at everything that waits."""
        for owner, ask in list(self._waiting.items()):
            try:
                self.request_place(self._unthrottled.get(owner, ask))
            except Exception as exc:  # noqa: BLE001 - counted; the others are looked at
                self._faults.record("budget", owner, exc)

    def _open_window(self, ask: Ask) -> None:
        """Wait for more gangs when this one needs several leaves: where it goes matters to the others then."""
        if ask.gang is not None and not self._window.is_open and not self._state.fleet.gangs.fits_leaf(ask.gang):
            self._window.open()

    def forget(self, owner: str) -> None:
        """The owner needs no decision any more; what was assumed or reserved for it is free again."""
        self._stop_waiting(owner)
        self.interruptions.clear(owner)
        self._ledger.release_reservation(owner)
        self._ledger.discard_plan(owner)

    def discard_plan(self, owner: str) -> None:
        """Take back a plan that was not executed."""
        self._ledger.discard_plan(owner)

    def confirm_plan(self, owner: str) -> None:
        """The API shows the plan."""
        self._ledger.confirm_plan(owner)
        self._stop_waiting(owner)

    def count_running(
        self, owner: str, namespace: str, milli: int, since_s: float, declared_s: float | None = None
    ) -> None:
        """Count an owner that had its place before this planner existed; `since_s` is 0 if its start is unknown."""
        self._passes.change_queue(lambda cycle: cycle.add_running(owner, namespace, milli, since_s, declared_s))

    def set_run_times(self, found: Mapping[str, RunTime]) -> None:
        """Use the predicted run times of these owners, and no others, from the next pass on."""
        if changed := self._run_times.replace_predictions(found):
            self._passes.change_queue(lambda cycle: cycle.refresh_run_times(changed))
            self.plan_soon()

    def list_waiting(self) -> list[str]:
        """Return the owners that wait for a place."""
        return list(self._waiting)

    def plan_soon(self) -> None:
        """Something changed that could help: run a pass soon."""
        self._passes.run_soon()

    def _stop_waiting(self, owner: str) -> None:
        self._refusals.pop(owner, None)
        self._estimates.pop(owner, None)
        self._parked.discard(owner)
        self._unthrottled.pop(owner, None)
        if self._budgets is not None:
            self._budgets.forget(owner)
        if self._waiting.pop(owner, None) is not None:
            self._passes.change_queue(lambda cycle: cycle.remove(owner))

    # --- capacity reserved for one owner ----------------------------------------------------------------

    def reserve(self, owner: str, seats: Mapping[int, Holding], *, ready: bool) -> None:
        """Reserve these places for the owner; `ready`: they are free, and the owner gets them as soon as it asks."""
        self._ledger.reserve_seats(owner, seats, ready=ready)

    def release_reservation(self, owner: str) -> None:
        self._ledger.release_reservation(owner)

    def place_reserved(self, owner: str) -> None:
        """What is reserved for the owner is free: place it there now, before others can use it."""
        ask = self._waiting.get(owner)
        if ask is None:
            self._ledger.set_ready(owner)
            return
        self._ledger.withdraw_reservation(owner)
        try:
            answer = self._cycle.plan_now(ask, self._state.fleet)
        except Exception as exc:  # noqa: BLE001 - the next pass reports it to the owner
            self._faults.record("plan", owner, exc)
            self.plan_soon()
            return
        if isinstance(answer, Plan):
            self._execute_plan(answer, time.time())
        else:
            log.info("claim_not_enough", owner=owner, reason=answer.message)
            self.plan_soon()

    # --- as PassRunner calls ----------------------------------------------------------------------------

    def needs_pass(self) -> bool:
        return len(self._waiting) > len(self._parked)

    def postpone_s(self) -> float:
        return self._window.remaining_s()

    def prepare_pass(self) -> None:
        self._window.close()
        _ = self._state.fleet  # brought up to date before it is read
        self._cycle.sync_fleet(self._state.ledger, self._state.plain_pods.held)

    def requeue_all(self) -> None:
        config = self._state.config
        asks = [ask for owner, ask in self._waiting.items() if owner not in self._parked]
        self._cycle.rebuild_queue([ask for ask in asks if policy.check_allowed(ask, config) is None])

    def apply_result(self, result: Result, now_s: float, took_s: float) -> None:
        """Execute the decisions of a pass, owner by owner; an error concerns one owner only."""
        self.last_pass_s = took_s
        self._metrics.dispatch_seconds.observe(took_s)
        for _, plan in result.plans:
            self._execute_plan(plan, now_s)
        for ask, refusal in result.refusals:
            if self._waiting.get(ask.owner) == ask:
                try:
                    self._refuse_owner(ask, refusal)
                except Exception as exc:  # noqa: BLE001 - counted; the owner waits all the same
                    self._faults.record("report", ask.owner, exc)
        self._estimates |= result.estimates
        self._blocked.update(self._state.fleet, result.kept)

    # --- decisions --------------------------------------------------------------------------------------

    def _execute_plan(self, plan: Plan, now_s: float) -> None:
        ask = self._waiting.get(plan.ask.owner)
        if ask is None or (ask != plan.ask and not ask.divisible):
            return
        try:
            self._place_owner(ask, plan, now_s)
        except Exception as exc:  # noqa: BLE001 - counted, and reported to the owner, which waits for its next try
            self._faults.record("commit", ask.owner, exc)
            self._delay_owner(ask, exc, now_s)

    def _delay_owner(self, ask: Ask, error: Exception, now_s: float) -> None:
        """Executing the plan failed: the owner waits again, and is tried after a growing pause."""
        self._waiting[ask.owner] = ask
        self._refusals[ask.owner] = error_refusal("plan", error)
        self._passes.change_queue(lambda cycle: cycle.put_later(ask, now_s, str(error)))
        self._passes.wake_for_next()

    def _place_owner(self, ask: Ask, plan: Plan, now_s: float) -> None:
        """Reserve the seats and deliver the plan; when others took them meanwhile, the owner is planned again."""
        owner = ask.owner
        try:
            plan = self._ledger.assume_plan(plan, extend=ask.gang is not None)
        except errors.InvariantBroken as exc:
            log.info("plan_overtaken", owner=owner, reason=str(exc))
            self._passes.change_queue(lambda cycle: cycle.put(ask))
            self.plan_soon()
            return
        if self._budgets is not None and (refused := self._admit(ask, self._budgets)) is not None:
            self._ledger.undo_plan(plan)
            self._park(ask, refused)
            self.plan_soon()  # others may use its place
            return
        self._passes.change_queue(lambda cycle: cycle.record_start(plan.ask, now_s))
        self._passes.change_queue(lambda cycle: cycle.remove(owner))
        self.interruptions.clear(owner)
        self._metrics.count_placed(ask, plan, now_s)
        del self._waiting[owner]
        self._refusals.pop(owner, None)
        self._estimates.pop(owner, None)
        self._unthrottled.pop(owner, None)
        try:
            self._on_decided(owner, plan)
        except Exception:
            self._ledger.undo_plan(plan)  # nothing was written yet
            raise

    def _admit(self, ask: Ask, budgets: BudgetGate) -> Refusal | None:
        """Encumber its cost; an error of the budgets holds up nothing."""
        try:
            return budgets.admit(ask, self._run_times.find_predicted(ask.owner))
        except Exception as exc:  # noqa: BLE001 - counted; it starts without an encumbrance
            self._faults.record("budget", ask.owner, exc)
            return None

    def _refuse_owner(self, ask: Ask, refusal: Refusal) -> None:
        """Remember the refusal, and deliver it if its code is new: the numbers in its message change all the time."""
        owner = ask.owner
        before = self._refusals.get(owner)
        self._on_refused()
        refusal = self._label_notes.add_note(ask, self.interruptions.explain(owner, refusal))
        self._refusals[owner] = refusal
        self._metrics.count_refused(ask, refusal, is_first=before is None)
        is_other = before is None or before.code != refusal.code
        # What waiting cannot help changes with the nodes and the settings only.
        if is_other or (not refusal.possible and before is not None and before.message != refusal.message):
            self._on_decided(owner, refusal)
