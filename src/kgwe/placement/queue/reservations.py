"""Reservations for workloads that do not fit, and which workloads may backfill them.

Without reservations, small workloads take every GPU that comes free and a large gang never starts. If none could go
ahead, GPUs would idle while it waits. So two workloads of a priority get a *reservation*: the oldest that does not fit
and the first by fair share. It names the nodes where the workload starts first
(`kgwe.placement.queue.earliest_start`), and when. Every workload eventually becomes the oldest, so none starves. Other
workloads are placed on reserved nodes only if

- their priority is higher, or
- they end in time with a probability of 95 % (*backfill*), or
- the waiting workload can still start on time beside them.

A backfilled workload that runs past its p95 breaks its promise. Namespaces that break promises too often may not
backfill for a while; the p95 itself allows for one in twenty.

Reservations are memory only, few, and sticky: they move when another place is earlier by more than moving loses.
Where the start is unknown or hours away, a reservation could stop all other workloads for as long, so it covers at
most half of the GPUs that the workload could use. One without a known start is made only after a long wait, for one
workload at a time, on the emptiest nodes, and lasts only while GPUs come free there; short workloads with a known run
time go ahead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kgwe.placement.live.scratch import NO_NODES
from kgwe.placement.queue.estimate_trust import EstimateTrust
from kgwe.placement.queue.reservation import BackfillRule, Reservation, ReservationSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kgwe.placement.fleet.snapshot import Grant
    from kgwe.placement.queue.earliest_start import EarliestStart, StartForecast
    from kgwe.placement.queue.queue import Level, Queue
    from kgwe.placement.queue.workloads import QueuedWorkload, RunningWorkloads

# A reservation moves when another place is earlier by this part of the remaining time, and by a minute.
_WORTH_MOVING: Final = 0.2
_LEAST_GAIN_S: Final = 60.0
# A forecast that is overdue or stale is renewed this many times as soon.
_SOONER: Final = 10
# For the oldest workload of a level and for the first by fair share.
_PER_LEVEL: Final = 2


@dataclass(slots=True)
class _Entry:
    reservation: Reservation
    workload: QueuedWorkload
    looked_s: float
    stale: bool = False
    #: without a known start: most GPUs that were free there, and since when no more have come free
    free: int = 0
    since_s: float = 0.0
    #: since when it has kept nodes without a known start
    blind_since_s: float = 0.0
    #: whether the workload should fit there now
    is_free: bool = False


class Reservations:
    """The reservations of one queue."""

    def __init__(
        self, forecast: StartForecast, running: RunningWorkloads, settings: ReservationSettings | None = None
    ) -> None:
        self.settings = settings or ReservationSettings()
        self.trust = EstimateTrust(self.settings.max_broken, self.settings.memory_s)
        self._forecast = forecast
        self._running = running
        self._entries: dict[str, _Entry] = {}
        # Workload that cannot have a reservation -> when to look again.
        self._denied: dict[str, float] = {}
        # Namespace -> when it may have a reservation without a known start again. By namespace: a workload that is
        # deleted and created again would otherwise reserve nodes without a pause.
        self._blind_allowed_s: dict[str, float] = {}
        # When the last reservation without a known start ended: in that cycle those that it blocked come first.
        self._blind_ended_s = -math.inf
        self._failures: list[tuple[QueuedWorkload, Exception]] = []
        self._queue: Queue | None = None
        #: rises whenever a reservation is made, moved or removed
        self.version = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def list_all(self) -> list[Reservation]:
        return [entry.reservation for entry in self._entries.values()]

    def get(self, key: str) -> Reservation | None:
        entry = self._entries.get(key)
        return entry.reservation if entry else None

    def sort_reserved_first(self, workloads: Iterable[QueuedWorkload]) -> list[QueuedWorkload]:
        """Sort workloads in queue order so that those with a reservation lead their level."""
        return sorted(workloads, key=lambda workload: (workload.level, workload.key not in self._entries))

    # --- life -------------------------------------------------------------------------------------------

    def start_cycle(self, queue: Queue, now_s: float, *, is_other: bool) -> None:
        """Drop reservations of workloads that no longer wait. `is_other`: nodes or settings changed."""
        self.trust.check_promises(self._running, now_s)
        self._queue = queue
        for key in [key for key in self._denied if key not in queue.entries]:
            del self._denied[key]
        for namespace in [each for each, until_s in self._blind_allowed_s.items() if until_s <= now_s]:
            del self._blind_allowed_s[namespace]
        for key, entry in list(self._entries.items()):
            queued = queue.entries.get(key)
            if queued is None or not _is_same_request(queued.workload, entry.workload):
                self._start_pause(entry, now_s)
                self.remove(key)
            else:
                entry.workload = queued.workload
                entry.stale |= is_other

    def remove(self, key: str) -> None:
        self._denied.pop(key, None)
        if self._entries.pop(key, None) is not None:
            self.version += 1

    def accepts(self, level: Level) -> bool:
        """Whether this level may have one more reservation, if need be instead of one of a lower level."""
        ranks = [entry.reservation.rank for entry in self._entries.values()]
        return ranks.count(level) < _PER_LEVEL and (len(ranks) < self.settings.max_reservations or max(ranks) > level)

    def make(self, workload: QueuedWorkload, now_s: float) -> Reservation | None:
        """Reserve nodes for the workload; None when no nodes qualify."""
        if now_s < self._denied.get(workload.key, now_s):
            return None
        start = self._find_start(workload, now_s)
        # It was refused, so a forecast that it fits now is wrong. A reservation would stay free without any use.
        if start is None or self._is_free(workload, start.nodes, start.start_s, now_s):
            self._denied[workload.key] = now_s + self.settings.refresh_s
            return None
        if len(self._entries) >= self.settings.max_reservations:
            self.remove(max(self._entries, key=lambda key: self._entries[key].reservation.rank))
        entry = self._entries[workload.key] = _Entry(
            _build_reservation(workload, start), workload, now_s, free=start.free, since_s=now_s, blind_since_s=now_s
        )
        self.version += 1
        return entry.reservation

    def list_free(self) -> list[QueuedWorkload]:
        """Workloads that should fit on their reserved nodes now: they start, or their reservations are dropped."""
        return [entry.workload for entry in self._entries.values() if entry.is_free]

    def drop_unused(self, key: str, now_s: float) -> None:
        """Drop the reservation of a workload that does not start there although it should fit."""
        self.remove(key)
        self._denied[key] = now_s + self.settings.refresh_s

    def _is_free(self, workload: QueuedWorkload, nodes: frozenset[str], start_s: float | None, now_s: float) -> bool:
        """Whether the workload should fit on these nodes now."""
        if start_s is None or start_s > now_s:
            return False
        elsewhere = self._forecast.all_nodes_except(nodes) | self._nodes_before(workload)
        return self._forecast.fits_now(workload.request, elsewhere)

    def next_refresh_s(self) -> float | None:
        """When the first forecast becomes too old."""
        return min((entry.looked_s + self.settings.refresh_s for entry in self._entries.values()), default=None)

    def refresh(self, now_s: float) -> list[QueuedWorkload]:
        """Renew old forecasts; returns the workloads whose reservation moved, changed its time or ended."""
        moved = []
        for entry in sorted(self._entries.values(), key=lambda entry: entry.reservation.rank):
            before = entry.reservation
            is_due = before.start_s is not None and before.start_s <= now_s
            patience_s = self.settings.refresh_s / (_SOONER if entry.stale or is_due else 1)
            if now_s - entry.looked_s >= patience_s:
                try:
                    self._refresh(entry, now_s)
                except Exception as exc:  # noqa: BLE001 - an error of one workload; the others are refreshed
                    self.remove(before.key)
                    self._failures.append((entry.workload, exc))
                    continue
                if before.key not in self._entries or _is_news(before, entry.reservation, now_s):
                    moved.append(entry.workload)
        return moved

    def take_failures(self) -> list[tuple[QueuedWorkload, Exception]]:
        """Return and clear the workloads whose reservations failed to refresh."""
        failures, self._failures = self._failures, []
        return failures

    def _refresh(self, entry: _Entry, now_s: float) -> None:
        """Keep the same nodes unless others are much sooner: a new time is cheaper to find than a new place."""
        workload, reservation, forecast, likely = (
            entry.workload,
            entry.reservation,
            self._forecast,
            self.settings.likely_quantile,
        )
        others = self._nodes_before(workload)
        elsewhere = forecast.all_nodes_except(reservation.nodes) | others
        here_s = forecast.find_start_time(workload.request, now_s, elsewhere, likely)
        is_too_much = here_s is not None and (
            self._exceeds_share(workload, reservation.nodes, here_s, now_s)
            or self._delays_others_by_own(workload, reservation.nodes, now_s)
        )
        if (
            here_s is None
            or is_too_much
            or (
                _may_be_worth_moving(here_s, now_s)
                and _is_worth_moving(here_s, forecast.find_start_time(workload.request, now_s, others, likely), now_s)
            )
        ):
            start = self._find_start(workload, now_s)
            if start is None or not self._is_draining(entry, start, now_s):
                self.remove(workload.key)
                return
            reservation = _build_reservation(workload, start)
        else:
            is_known = self._running.are_exact
            start_s = here_s if is_known else forecast.find_start_time(workload.request, now_s, elsewhere)
            reservation = replace(reservation, start_s=start_s)
            entry.free, entry.since_s, entry.blind_since_s = 0, now_s, now_s
        self.version += reservation != entry.reservation
        if reservation.nodes != entry.reservation.nodes:
            for other in self._entries.values():
                other.stale |= not other.reservation.nodes.isdisjoint(reservation.nodes)
        entry.reservation, entry.looked_s, entry.stale = reservation, now_s, False
        entry.is_free = self._is_free(workload, reservation.nodes, reservation.start_s, now_s)

    def _is_draining(self, entry: _Entry, start: EarliestStart, now_s: float) -> bool:
        """Whether GPUs still come free on the nodes of a reservation without a known start."""
        if start.start_s is not None:
            entry.free, entry.since_s, entry.blind_since_s = 0, now_s, now_s
        elif start.free > entry.free:
            entry.free, entry.since_s = start.free, now_s
        if now_s - entry.since_s < self.settings.blind_s:
            return True
        self._start_pause(entry, now_s)
        return False

    def _start_pause(self, entry: _Entry, now_s: float) -> None:
        """Deny the namespace reservations without a known start for as long as this one lasted."""
        if entry.reservation.start_s is None:
            self._blind_allowed_s[entry.workload.namespace] = now_s + (now_s - entry.blind_since_s)
            self._blind_ended_s = now_s

    def _exceeds_share(self, workload: QueuedWorkload, nodes: frozenset[str], start_s: float, now_s: float) -> bool:
        """Whether a distant start would reserve more than the allowed share of the usable GPUs."""
        if start_s - now_s <= self.settings.far_s:
            return False
        together = nodes | self._nodes_reserved_long(workload, now_s)
        return len(together) > 1 and self._forecast.gpu_share(together, workload.request) > self.settings.blind_share

    def _delays_others_by_own(self, workload: QueuedWorkload, nodes: frozenset[str], now_s: float) -> bool:
        """Whether others would wait for workloads of this namespace that have no known end."""
        return (
            self._queue is not None
            and bool(self._queue.find_namespaces() - {workload.namespace})
            and self._forecast.is_delayed_by_own(workload.namespace, nodes, now_s)
        )

    def _nodes_reserved_long(self, workload: QueuedWorkload, now_s: float) -> frozenset[str]:
        """Nodes reserved for workloads before this one whose start is unknown or distant."""
        far_s = now_s + self.settings.far_s
        return NO_NODES.union(
            *(
                reservation.nodes
                for reservation in self._reservations_before(workload)
                if reservation.start_s is None or reservation.start_s > far_s
            )
        )

    def _find_start(self, workload: QueuedWorkload, now_s: float) -> EarliestStart | None:
        """Find the nodes to reserve and the earliest start there."""
        others = self._nodes_before(workload)
        settings = self.settings
        kept_long = self._nodes_reserved_long(workload, now_s)
        share = settings.blind_share - (self._forecast.gpu_share(kept_long, workload.request) if kept_long else 0.0)
        start = self._forecast.find_start(workload.request, now_s, others, settings.likely_quantile, share)
        if start is None or (start.start_s is None and not self._may_be_blind(workload, now_s)):
            return None
        if self._delays_others_by_own(workload, start.nodes | start.others, now_s):
            return None
        if start.start_s is None:
            return start
        if self._exceeds_share(workload, start.nodes, start.start_s, now_s):
            return None
        elsewhere = self._forecast.all_nodes_except(start.nodes) | others
        return replace(start, start_s=self._forecast.find_start_time(workload.request, now_s, elsewhere))

    def _nodes_before(self, workload: QueuedWorkload) -> frozenset[str]:
        return NO_NODES.union(*(reservation.nodes for reservation in self._reservations_before(workload)))

    def _reservations_before(self, workload: QueuedWorkload) -> list[Reservation]:
        """Reservations of workloads before this one: of a higher level, or older within its own."""
        listed = list(self._entries)
        own = listed.index(workload.key) if workload.key in self._entries else len(listed)
        return [
            entry.reservation
            for number, entry in enumerate(self._entries.values())
            if entry.reservation.rank < workload.level or (entry.reservation.rank == workload.level and number < own)
        ]

    def _may_be_blind(self, workload: QueuedWorkload, now_s: float) -> bool:
        """Only one workload at a time may have a reservation without a known start."""
        if any(entry.reservation.start_s is None for key, entry in self._entries.items() if key != workload.key):
            return False
        if now_s <= self._blind_ended_s:
            return False
        return now_s >= max(
            workload.since_s + self.settings.blind_after_s, self._blind_allowed_s.get(workload.namespace, 0.0)
        )

    # --- others -----------------------------------------------------------------------------------------

    def find_conflicting(self, workload: QueuedWorkload, now_s: float) -> list[Reservation]:
        """Reservations whose nodes the workload may not use."""
        return [
            entry.reservation
            for entry in self._entries.values()
            if entry.reservation.rank <= workload.level
            and entry.reservation.key != workload.key
            and not self._is_gone_by(workload, entry.reservation, now_s)
        ]

    def _is_gone_by(self, workload: QueuedWorkload, reservation: Reservation, now_s: float) -> bool:
        promise_s = workload.promise_s
        if self.settings.rule is not BackfillRule.BACKFILL or promise_s is None:
            return False
        until_s = now_s + self.settings.short_s if reservation.start_s is None else reservation.start_s
        return now_s + promise_s <= until_s and self.trust.is_trusted(workload, now_s)

    def are_kept_with(self, reservations: Iterable[Reservation], grants: Sequence[Grant], now_s: float) -> bool:
        """Whether these reservations can start on time if the grants stay until after their start."""
        return self.settings.rule is BackfillRule.BACKFILL and all(
            reservation.start_s is not None
            and self._forecast.fits_beside(
                self._entries[reservation.key].workload.request,
                grants,
                now_s,
                reservation.start_s,
                self._nodes_before(self._entries[reservation.key].workload),
            )
            for reservation in reservations
        )

    def record_placement(self, workload: QueuedWorkload, nodes: Sequence[str], now_s: float) -> None:
        """Note a placed workload: it may have promised to end in time, or make forecasts stale."""
        self.remove(workload.key)
        for entry in self._entries.values():
            if entry.reservation.nodes.isdisjoint(nodes):
                continue
            if workload.promise_s is not None and self._is_gone_by(workload, entry.reservation, now_s):
                self.trust.record_promise(workload, now_s + workload.promise_s)
            else:
                entry.stale = True


def _is_same_request(one: QueuedWorkload, other: QueuedWorkload) -> bool:
    """Whether the two differ in their run times at most: these change with every prediction."""
    return replace(one, run_time=other.run_time, predicted_p95_s=other.predicted_p95_s) == other


def _build_reservation(workload: QueuedWorkload, start: EarliestStart) -> Reservation:
    return Reservation(
        workload.key,
        workload.level,
        start.nodes,
        start.start_s,
        start.level,
        start.domain,
        workload.namespace,
        workload.name or workload.key,
    )


def _is_news(one: Reservation, other: Reservation, now_s: float) -> bool:
    """Whether users should hear of the change."""
    if one.nodes != other.nodes or one.start_s is None or other.start_s is None:
        return one.nodes != other.nodes or one.start_s != other.start_s
    return abs(one.start_s - other.start_s) > max(_LEAST_GAIN_S, _WORTH_MOVING * (other.start_s - now_s))


def _may_be_worth_moving(here_s: float, now_s: float) -> bool:
    """Whether a start at once would be sooner by enough."""
    return _is_worth_moving(here_s, now_s, now_s)


def _is_worth_moving(here_s: float, there_s: float | None, now_s: float) -> bool:
    return there_s is not None and here_s - there_s > max(_LEAST_GAIN_S, _WORTH_MOVING * (here_s - now_s))
