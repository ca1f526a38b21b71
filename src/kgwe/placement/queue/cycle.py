"""One scheduling cycle over the queue.

    outcomes = run_cycle(queue, planner, now_s, running, reservations)

1. End back-offs and give up workloads that timed out.
2. Activate request classes that freed capacity or changed nodes may help; refresh reservations. A workload that should
   fit on its reserved nodes by now has its turn; if it is refused all the same, its reservation is dropped.
3. Try active workloads in queue order, each request class once until something changes. Each plan is committed before
   the next is made. Refused classes become unschedulable.
4. As soon as a workload fits behind refused ones, make reservations for the oldest of a priority and for the first by
   fair share. While all are refused there is nothing to reserve.
5. Report who waits, and why.

An error in planning one workload is reported for that workload, which is retried with a back-off. The others are tried
as if it were not there.
"""

from __future__ import annotations

import enum
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from kgwe.placement.live.scratch import NO_NODES
from kgwe.placement.queue.fair_share import FairShareOrder, FairShares
from kgwe.placement.queue.followers import Followers
from kgwe.placement.queue.queue import GivenUp
from kgwe.placement.queue.reservation import BackfillRule
from kgwe.placement.refusal import Reason, Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.placement.fleet.node import Request
    from kgwe.placement.fleet.snapshot import Grant
    from kgwe.placement.gang.request import Following, GangRequest, Intent
    from kgwe.placement.queue.queue import Level, Queue
    from kgwe.placement.queue.reservation import Reservation
    from kgwe.placement.queue.reservations import Reservations
    from kgwe.placement.queue.unschedulable import Bucket, RequestClass
    from kgwe.placement.queue.workloads import QueuedWorkload, RunningWorkloads


class Plan(Protocol):
    """Nodes and grants for all pods of a workload."""

    @property
    def nodes(self) -> Sequence[str]: ...
    @property
    def grants(self) -> Sequence[Grant]: ...


P = TypeVar("P", bound=Plan)

# Plans per cycle that are checked against reservations, which costs as much as planning.
_MAX_CHECKS: Final = 8
# Workloads of a level that are considered for a reservation.
_MAX_HEADS: Final = 4


class Planner(Protocol[P]):
    """Plans and books placements for the cycle."""

    def plan(self, workload: QueuedWorkload, avoid: frozenset[str], following: Following) -> P | Refusal:
        """Plan the whole workload off the nodes of `avoid`, or refuse it. Books nothing.

        `following`: gangs that come later, for which the plan should leave as much room as it can.
        """

    def arrange_gangs(self, following: Following) -> Sequence[Intent | None]:
        """Where each gang that waits goes when all are planned together; None: as it would go by itself."""

    def commit(self, workload: QueuedWorkload, plan: P) -> None:
        """Book the plan: the next plan must see it."""

    def fits_on_any(self, request: Request | GangRequest, nodes: Sequence[str]) -> bool:
        """Whether a pod of the request fits on any of the nodes now (`kgwe.placement.live.scratch.fits_on_any`)."""


@dataclass(frozen=True, slots=True)
class Placed(Generic[P]):
    workload: QueuedWorkload
    plan: P


@dataclass(frozen=True, slots=True)
class Waiting:
    """The workload waits. Reported once, and again when its reservation changes."""

    workload: QueuedWorkload
    refusal: Refusal
    reservation: Reservation | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """Planning the workload raised an error. It waits for its next attempt."""

    workload: QueuedWorkload
    stage: str
    """plan: finding its place; hold: making a reservation for it."""
    error: Exception


Outcome = Placed[P] | Waiting | GivenUp | Failed


def run_cycle(
    queue: Queue, planner: Planner[P], now_s: float, running: RunningWorkloads, reservations: Reservations | None = None
) -> list[Outcome[P]]:
    """Place what can be placed. Without `holds`, workloads that fit start before older ones that do not."""
    return _Cycle(queue, planner, now_s, running, reservations).run()


class _Step(enum.Enum):
    """What became of a workload in its turn."""

    PLACED = enum.auto()
    UNSCHEDULABLE = enum.auto()
    SKIPPED = enum.auto()
    FAILED = enum.auto()


class _Cycle(Generic[P]):
    def __init__(
        self,
        queue: Queue,
        planner: Planner[P],
        now_s: float,
        running: RunningWorkloads,
        reservations: Reservations | None,
    ) -> None:
        self._queue = queue
        self._planner = planner
        self._now_s = now_s
        self._running = running
        self._reservations = reservations
        self._rule = BackfillRule.GREEDY if reservations is None else reservations.settings.rule
        self._shares = FairShares(running.sum_by_namespace(), queue.weights)
        self._outcomes: list[Outcome[P]] = []
        self._commits = 0
        self._skipped = 0
        self._checks = 0
        self._refreshed = False
        # Request class -> number of commits before its plan was made, the workload it was made for, and the plan.
        self._plans: dict[RequestClass, tuple[int, str, P]] = {}
        # (request class, nodes to avoid) that was refused -> number of commits before.
        self._refused: dict[tuple[RequestClass, frozenset[str]], int] = {}
        # Request classes that fit only on nodes reserved for others.
        self._blocked: dict[RequestClass, Refusal] = {}
        # Level -> version of the pool when reservations for it were last looked for.
        self._searched: dict[Level, int] = {}
        self._followers = Followers(queue, planner.arrange_gangs)
        # Workloads whose reservations changed.
        self._to_report: dict[str, QueuedWorkload] = {}

    def run(self) -> list[Outcome[P]]:
        queue, reservations = self._queue, self._reservations
        self._outcomes.extend(queue.advance(self._now_s))
        is_other = queue.pool.activate_helped(self._fits_on_any)
        if reservations is not None:
            reservations.start_cycle(queue, self._now_s, is_other=is_other)
            if len(reservations) and queue.pool.blocked:
                self._refresh(reservations)
                for workload in reservations.list_free():
                    queue.pool.activate(queue.entries[workload.key].request_class)
            queue.pool.activate_blocked(reservations.version)
        self._run_levels()
        if reservations is not None:
            self._drop_unused(reservations)
        # Nodes reserved for a workload that has started now are available to others.
        if reservations is not None and queue.pool.activate_blocked(reservations.version):
            self._run_levels()
        queue.set_review(reservations.next_refresh_s() if reservations is not None and queue.pool.blocked else None)
        self._report()
        return self._outcomes

    def _run_levels(self) -> None:
        parking = self._queue.pool
        if not parking.active:
            return
        self._blocked.clear()
        for level, buckets in self._queue.active_by_level():
            if not self._run_level(level, buckets):
                break
        version = self._reservations.version if self._reservations is not None else 0
        for request_class, refusal in self._blocked.items():
            if request_class.buckets and request_class.refusal is None:
                parking.mark_unschedulable(request_class, refusal, behind=version)

    def _drop_unused(self, reservations: Reservations) -> None:
        """Drop reservations whose workloads were refused although they should fit there: the forecast is wrong."""
        for workload in reservations.list_free():
            if self._queue.entries[workload.key].request_class.refusal is not None:
                reservations.drop_unused(workload.key, self._now_s)
                self._to_report[workload.key] = workload

    # --- turns ------------------------------------------------------------------------------------------

    def _run_level(self, level: Level, buckets: list[Bucket]) -> bool:
        """Try the workloads of a level; returns whether lower levels are tried too."""
        rounds = FairShareOrder(level, buckets, self._shares)
        while (turn := rounds.peek()) is not None:
            key, bucket = turn
            entry = self._queue.entries[key]
            if entry.bucket is not bucket:
                rounds.mark_removed()  # its reservation failed in the turn of another workload
                continue
            workload = entry.workload
            if self._rule is BackfillRule.BLOCK and self._is_blocked(workload):
                return False
            step = self._try_workload(workload, bucket.request_class)
            if step is _Step.SKIPPED:
                rounds.mark_skipped()
                if self._reached_depth():
                    return False
            elif step is _Step.PLACED:
                rounds.mark_placed()
            elif step is _Step.FAILED:
                rounds.mark_removed()
        return True

    def _try_workload(self, workload: QueuedWorkload, request_class: RequestClass) -> _Step:
        """Place the workload if it may be placed now. After an error it is retried with a back-off."""
        try:
            plan = self._plan(workload, request_class)
            if plan is None:
                return _Step.UNSCHEDULABLE
            if self._rule in (BackfillRule.HOLD, BackfillRule.BACKFILL):
                plan = self._plan_beside_reservations(workload, request_class, plan)
                if plan is None:
                    return _Step.SKIPPED
            self._commit(workload, plan)
        except Exception as exc:  # noqa: BLE001 - the other workloads are tried all the same
            self._plans.pop(request_class, None)
            self._fail(workload, "plan", exc)
            return _Step.FAILED
        return _Step.PLACED

    def _fail(self, workload: QueuedWorkload, stage: str, error: Exception) -> None:
        if self._reservations is not None:
            self._reservations.remove(workload.key)
        self._to_report.pop(workload.key, None)
        # Spread by key: workloads that fail together are not all retried together.
        jitter = zlib.crc32(workload.key.encode()) / 2**32
        self._queue.retry(workload, self._now_s, jitter, f"{type(error).__name__}: {error}")
        self._outcomes.append(Failed(workload, stage, error))

    def _fits_on_any(self, request: Request | GangRequest, nodes: Sequence[str]) -> bool:
        try:
            return self._planner.fits_on_any(request, nodes)
        except Exception:  # noqa: BLE001 - its turn, which comes next, reports the error
            return True

    def _is_blocked(self, workload: QueuedWorkload) -> bool:
        """Whether a workload before it waits already."""
        levels = self._queue.unschedulable_levels()
        heads = self._queue.find_heads(workload.level, self._shares)
        return (bool(levels) and levels[0] < workload.level) or any(
            self._is_before(head.workload, workload) for head in heads
        )

    def _is_before(self, one: QueuedWorkload, other: QueuedWorkload) -> bool:
        """Compare by level, then by age or by fair share: the first by either may not be overtaken."""
        if one.level != other.level:
            return one.level < other.level
        ages = (one.since_s, one.key), (other.since_s, other.key)
        shares = self._shares.get(one.namespace), self._shares.get(other.namespace)
        return ages[0] < ages[1] or (one.level[1] and (shares[0], ages[0]) < (shares[1], ages[1]))

    def _reached_depth(self) -> bool:
        self._skipped += 1
        return self._reservations is not None and self._skipped >= self._reservations.settings.depth

    # --- plans ------------------------------------------------------------------------------------------

    def _plan(self, workload: QueuedWorkload, request_class: RequestClass) -> P | None:
        """Return a plan for the workload, or one that was made for another of its class; None: it does not fit."""
        known = self._plans.get(request_class)
        if known is not None and known[0] == self._commits:
            return known[2]
        answer = self._planner.plan(workload, NO_NODES, self._followers.find_following(workload))
        if isinstance(answer, Refusal):
            self._queue.pool.mark_unschedulable(request_class, answer)
            return None
        self._plans[request_class] = self._commits, workload.key, answer
        return answer

    def _commit(self, workload: QueuedWorkload, plan: P) -> None:
        self._planner.commit(workload, plan)
        self._queue.remove(workload.key)
        self._queue.record_start(workload)
        self._commits += 1
        if self._reservations is not None and len(self._reservations):
            self._reservations.record_placement(workload, plan.nodes, self._now_s)
        self._outcomes.append(Placed(workload, plan))

    def _plan_beside_reservations(self, workload: QueuedWorkload, request_class: RequestClass, plan: P) -> P | None:
        """The plan, or another one, made for this very workload, that does not delay other reservations.

        Workloads of a class share a plan until one of them may start: a plan names its workload.
        """
        found = self._plan_around_reservations(workload, request_class, plan)
        if found is not plan or self._plans[request_class][1] == workload.key:
            return found
        del self._plans[request_class]
        own = self._plan(workload, request_class)
        return None if own is None else self._plan_around_reservations(workload, request_class, own)

    def _plan_around_reservations(self, workload: QueuedWorkload, request_class: RequestClass, plan: P) -> P | None:
        """The plan, or another one, that does not delay other reservations."""
        reservations = self._reservations
        if reservations is None or not (self._queue.pool.unschedulable or len(reservations)):
            return plan
        self._make_reservations(workload)
        against = reservations.find_conflicting(workload, self._now_s)
        touched = [reservation for reservation in against if not reservation.nodes.isdisjoint(plan.nodes)]
        if not touched:
            return plan
        avoid = NO_NODES.union(*(reservation.nodes for reservation in against))
        if self._refused.get((request_class, avoid)) != self._commits:
            answer = self._planner.plan(workload, avoid, self._followers.find_following(workload))
            if not isinstance(answer, Refusal):
                return answer
            if self._keeps_reservations(reservations, touched, plan):
                return plan
            self._refused[request_class, avoid] = self._commits
            reserved = _Reserved(tuple(touched))
            message = reserved.describe(workload.namespace)
            self._blocked[request_class] = Refusal(Reason.HELD_FOR_OTHERS, message, detail=reserved)
        return None

    def _keeps_reservations(self, reservations: Reservations, touched: Sequence[Reservation], plan: P) -> bool:
        """Whether the reservations can start on time beside the plan. Checked seldom: as costly as planning."""
        self._checks += 1
        if self._checks > _MAX_CHECKS:
            return False
        for reservation in touched:
            try:
                if not reservations.are_kept_with((reservation,), plan.grants, self._now_s):
                    return False
            except Exception as exc:  # noqa: BLE001 - an error of the waiting workload, not of the one whose turn it is
                self._fail(self._queue.entries[reservation.key].workload, "hold", exc)
                return False
        return True

    def _make_reservations(self, workload: QueuedWorkload) -> None:
        """Make the reservations of workloads before this one."""
        reservations = self._reservations
        if reservations is None:
            return
        self._refresh(reservations)
        for level in self._queue.unschedulable_levels():
            if level > workload.level:
                break
            if reservations.accepts(level) and self._searched.get(level) != self._queue.pool.version:
                self._make_reservations_at(level, workload, reservations)

    def _refresh(self, reservations: Reservations) -> None:
        if not self._refreshed:
            self._refreshed = True
            self._to_report.update((each.key, each) for each in reservations.refresh(self._now_s))
            for workload, error in reservations.take_failures():
                self._fail(workload, "hold", error)

    def _make_reservations_at(self, level: Level, workload: QueuedWorkload, reservations: Reservations) -> None:
        """Make reservations for the first workloads of a level that come before this one."""
        rejected = {reservation.key for reservation in reservations.list_all()}
        for _ in range(_MAX_HEADS):
            heads = self._queue.find_heads(level, self._shares, rejected)
            if not heads or not reservations.accepts(level):
                # No more to make until the pool changes.
                self._searched[level] = self._queue.pool.version
                return
            if not any(self._is_before(head.workload, workload) for head in heads):
                return
            for head in heads:
                rejected.add(head.workload.key)
                if reservations.accepts(level):
                    self._make_reservation(head.workload, reservations)
        self._searched[level] = self._queue.pool.version

    def _make_reservation(self, workload: QueuedWorkload, reservations: Reservations) -> None:
        try:
            if reservations.make(workload, self._now_s) is not None:
                self._to_report[workload.key] = workload
        except Exception as exc:  # noqa: BLE001 - an error of the waiting workload, not of the one whose turn it is
            self._fail(workload, "hold", exc)

    # --- reports ----------------------------------------------------------------------------------------

    def _report(self) -> None:
        queue, reservations = self._queue, self._reservations
        self._to_report.update((entry.workload.key, entry.workload) for entry in queue.list_unreported())
        for key, workload in self._to_report.items():
            entry_now = queue.entries.get(key)
            refusal = entry_now.request_class.refusal if entry_now else None
            if refusal is not None:
                if isinstance(refusal.detail, _Reserved):
                    refusal = replace(refusal, message=refusal.detail.describe(workload.namespace))
                self._outcomes.append(Waiting(workload, refusal, reservations.get(key) if reservations else None))
                queue.mark_reported(key)


@dataclass(frozen=True, slots=True)
class _Reserved:
    """The reservations that a workload would need the nodes of."""

    reservations: tuple[Reservation, ...]

    def describe(self, namespace: str) -> str:
        """The message for workloads of a namespace."""
        nodes = len(NO_NODES.union(*(reservation.nodes for reservation in self.reservations)))
        names = ", ".join(dict.fromkeys(reservation.title(namespace) for reservation in self.reservations))
        only = "node with room is" if nodes == 1 else f"{nodes} nodes with room are"
        return f"The only {only} reserved for {names}; waiting for its turn."
