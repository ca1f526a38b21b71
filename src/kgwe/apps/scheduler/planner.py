"""Who waits, who has been given a node, who may be tried again when.

The planner holds the decisions that are not yet visible in the API. A decision is assumed here the moment
it is taken (and reserved in the ledger), confirmed when its Job is seen, and forgotten when the Job could
not be created or the workload is gone. A new leader starts with an empty planner: what its predecessor
decided and carried out is in the API, the rest never happened.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kgwe.placement.dispatch import Dispatcher, Held, Placed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kgwe.apps.scheduler.metrics import Metrics
    from kgwe.apps.scheduler.state import ClusterState
    from kgwe.placement.taints import Ask
    from kgwe.placement.strategies import Rng, Strategy

# Bursts of events (a Job that ends, its pod, its node) become one pass.
_GATHER_S = 0.02


class Planner:
    """Runs a placement pass soon after anything that could help."""

    def __init__(
        self,
        state: ClusterState,
        strategies: Mapping[str, Strategy],
        rng: Rng,
        metrics: Metrics,
        on_decided: Callable[[str], None],
    ) -> None:
        self.waiting: dict[str, Ask] = {}  # workload uid -> what it asks for
        self.held: dict[str, Held] = {}  # workload uid -> why the last pass did not place it
        self.planned: dict[str, Placed] = {}  # workload uid -> decision, until its Job is seen
        self._state = state
        self._dispatcher = Dispatcher(strategies, rng)
        self._metrics = metrics
        self._on_decided = on_decided
        self._soon: asyncio.TimerHandle | None = None
        metrics.waiting.set_function(lambda: len(self.waiting))

    def want(self, ask: Ask) -> None:
        """Let the work wait for a node; asked again with other needs, the new ones count."""
        if self.waiting.get(ask.owner) != ask:
            self.waiting[ask.owner] = ask
            self.pass_soon()

    def forget(self, uid: str) -> None:
        """The work no longer needs a decision; what was assumed for it is given back."""
        self.waiting.pop(uid, None)
        self.held.pop(uid, None)
        self.forget_plan(uid)

    def forget_plan(self, uid: str) -> None:
        """Take back a decision that was not carried out."""
        if self.planned.pop(uid, None) is not None and uid not in self._state.jobs and self._state.ledger.release(uid):
            self.pass_soon()

    def confirm(self, uid: str) -> None:
        """The Job is there: the decision is now in the API."""
        self.planned.pop(uid, None)
        self.waiting.pop(uid, None)
        self.held.pop(uid, None)

    def pass_soon(self) -> None:
        if self._soon is None and self.waiting:
            self._soon = asyncio.get_running_loop().call_later(_GATHER_S, self._pass)

    def close(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
        self._metrics.waiting.set_function(lambda: 0)
        for uid in list(self.planned):
            self.forget(uid)

    def _pass(self) -> None:
        self._soon = None
        with self._metrics.dispatch_seconds.time():
            decisions = self._dispatcher.dispatch(self._state.ledger, self.waiting.values())
        for decision in decisions:
            uid = decision.ask.owner
            if isinstance(decision, Placed):
                self.planned[uid] = decision
                del self.waiting[uid]
                self.held.pop(uid, None)
                self._on_decided(uid)
            else:
                self._hold(uid, decision)

    def _hold(self, uid: str, decision: Held) -> None:
        """Remember why. Only a new reason is news: the numbers in the message move with every pod that ends."""
        before = self.held.get(uid)
        self.held[uid] = decision
        if before is None:
            self._metrics.failed.labels("no_suitable_node").inc()
        if before is None or before.reason != decision.reason:
            self._on_decided(uid)
