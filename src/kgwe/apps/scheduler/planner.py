"""Who waits, who has been given a place, who may be tried again when.

The planner holds the decisions that are not yet visible in the API. A decision is assumed here the moment it is taken
(and reserved in the ledger), confirmed when what carries it out is seen, and forgotten when that could not be created
or the work is gone. A new leader starts with an empty planner: what its predecessor decided and carried out is in the
API, the rest never happened.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from kgwe import errors
from kgwe.placement import planning
from kgwe.placement.planning import Plan, Reason, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.apps.scheduler.metrics import Metrics
    from kgwe.apps.scheduler.state import ClusterState
    from kgwe.placement.planning import Ask
    from kgwe.placement.strategies import Choosers, Rng

# Bursts of events (a Job that ends, its pod, its node) become one pass.
_GATHER_S = 0.02


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
        self._state = state
        self._choosers = choosers
        self._rng = rng
        self._metrics = metrics
        self._on_decided = on_decided
        self._soon: asyncio.TimerHandle | None = None
        metrics.waiting.set_function(lambda: len(self.waiting))

    def want(self, ask: Ask) -> None:
        """Let the work wait for a place; asked again with other needs, the new ones count."""
        if self.waiting.get(ask.owner) != ask:
            self.waiting[ask.owner] = ask
            self.pass_soon()

    def forget(self, owner: str) -> None:
        """The work no longer needs a decision; what was assumed for it is given back."""
        self.waiting.pop(owner, None)
        self.held.pop(owner, None)
        self.forget_plan(owner)

    def forget_plan(self, owner: str) -> None:
        """Take back a decision that was not carried out."""
        gone = self.planned.pop(owner, None) is not None and owner not in self._state.runs
        if gone and self._state.ledger.release(owner):
            self.pass_soon()

    def confirm(self, owner: str) -> None:
        """The decision is now in the API."""
        self.planned.pop(owner, None)
        self.waiting.pop(owner, None)
        self.held.pop(owner, None)

    def pass_soon(self) -> None:
        if self._soon is None and self.waiting:
            self._soon = asyncio.get_running_loop().call_later(_GATHER_S, self._pass)

    def close(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
        self._metrics.waiting.set_function(lambda: 0)
        for owner in list(self.planned):
            self.forget(owner)

    def _pass(self) -> None:
        self._soon = None
        with self._metrics.dispatch_seconds.time():
            decisions = self._decide()
        for decision in decisions:
            owner = decision.ask.owner
            if isinstance(decision, Plan):
                self.planned[owner] = decision
                del self.waiting[owner]
                self.held.pop(owner, None)
                self._on_decided(owner)
            else:
                self._hold(owner, decision)

    def _decide(self) -> list[Plan | Refusal]:
        """Place what waits, in order of rank; each plan is reserved before the next is tried."""
        decisions: list[Plan | Refusal] = []
        full: dict[Ask, Refusal] = {}
        fleet = self._state.fleet
        for ask in sorted(self.waiting.values(), key=lambda each: each.rank()):
            shape = ask.shape()
            if twin := full.get(shape):
                decisions.append(Refusal(ask, twin.reason, twin.message, twin.possible, twin.certificate, twin.single))
                continue
            decision = planning.plan(fleet, ask, choosers=self._choosers, rng=self._rng)
            if isinstance(decision, Plan):
                try:
                    start = self._state.ledger.commit(
                        ask.owner, decision.wanted, decision.grants, extend=ask.gang is not None
                    )
                    decision = replace(decision, start=start)
                except errors.InvariantBroken as exc:
                    decision = Refusal(ask, Reason.HELD_FOR_OTHERS, str(exc))
            else:
                full[shape] = decision
            decisions.append(decision)
        return decisions

    def _hold(self, owner: str, decision: Refusal) -> None:
        """Remember why. Only a new reason is news: the numbers in the message move with every pod that ends."""
        before = self.held.get(owner)
        self.held[owner] = decision
        if before is None:
            self._metrics.failed.labels("no_suitable_node").inc()
        if before is None or before.reason != decision.reason:
            self._on_decided(owner)
