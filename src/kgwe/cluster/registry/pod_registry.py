"""Follows the life of pods: indexes them, counts them in the ledger, and announces what that changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kgwe.cluster.workload import pod_changes, runs
from kgwe.kube.translate import podspec

if TYPE_CHECKING:
    from kgwe.cluster.registry.announcer import Announcer
    from kgwe.cluster.registry.fleet_state import FleetState
    from kgwe.cluster.registry.pod_booking import PodBooking
    from kgwe.cluster.registry.pod_index import PodIndex
    from kgwe.cluster.registry.run_registry import RunRegistry
    from kgwe.cluster.registry.run_table import RunTable
    from kgwe.cluster.workload.signatures import Signer
    from kgwe.kube.api import core
    from kgwe.kube.client.informer import Change


class GangLookup(Protocol):
    """What is known of externally created gangs."""

    def is_in_no_gang(self, uid: str) -> bool:
        """Whether the pod was read and belongs to no gang."""


class PodRegistry:
    """Handles changes of pods."""

    def __init__(
        self,
        *,
        fleet_state: FleetState,
        index: PodIndex,
        run_table: RunTable,
        run_registry: RunRegistry,
        booking: PodBooking,
        gangs: GangLookup,
        announcer: Announcer,
        signer: Signer | None,
    ) -> None:
        self._ledger = fleet_state.ledger
        self._index = index
        self._run_table = run_table
        self._run_registry = run_registry
        self._booking = booking
        self._gangs = gangs
        self._announcer = announcer
        self._signer = signer

    def on_pod(self, change: Change[core.Pod]) -> None:
        if change.old is not None and (change.new is None or change.new.metadata.uid != change.old.metadata.uid):
            self._remove_pod(change.old)
        if change.new is None:
            return
        pod = change.new if self._signer is None else self._signer.strip_unsigned(change.new)
        if podspec.is_terminal(pod):
            self._remove_pod(pod)
            return
        uid, maker = pod.metadata.uid, runs.maker_of(pod)
        former = self._index.maker_of(uid)
        # Its controller released it, because its labels no longer match, or another one adopted it.
        has_left = former not in ("", maker)
        successors = self._ledger.successors(uid) if has_left else []
        known = self._index.add(pod, maker)
        # Most changes of a bound pod are of its status alone, which matters to workloads and gangs only.
        is_booked = bool(pod.spec.nodeName) and pod_changes.is_booked_alike(known, pod)
        if self._concerns_gangs(pod, maker, is_booked=is_booked):
            self._announcer.external_pod_changed(uid, pod)
        if pod.spec.nodeName and not is_booked:
            self._booking.book(pod)
        if has_left:
            self._announce_left(self._run_table.owner_of_maker(former), successors)
        if owner := self._run_table.owner_of_maker(maker):
            self._announce_owned(owner, change.old, pod)

    def _concerns_gangs(self, pod: core.Pod, maker: str, *, is_booked: bool) -> bool:
        """Whether the pod belongs to no workload, and the change may matter to gangs."""
        if not self._run_table.is_external_maker(pod, maker):
            return False
        return not is_booked or not self._gangs.is_in_no_gang(pod.metadata.uid)

    def _announce_owned(self, owner: str, old: core.Pod | None, pod: core.Pod) -> None:
        """Announce what a change of a pod means to the workload that owns it."""
        if not pod.spec.nodeName:
            self._run_registry.announce_unseated(owner, pod)
        if pod_changes.is_relevant(old, pod):
            self._run_registry.touch(owner)
            if pod.metadata.deletionTimestamp is not None:
                self._run_registry.announce_all_unseated(owner)
                self._announcer.pod_ending(owner, pod)

    def _remove_pod(self, pod: core.Pod) -> None:
        uid = pod.metadata.uid
        maker = self._index.maker_of(uid)
        if not self._index.remove(uid):
            return
        successors = self._ledger.successors(uid)
        self._ledger.remove_pod(uid)
        self._announcer.external_pod_changed(uid, None)
        owner = self._run_table.owner_of_maker(maker)
        self._announce_left(owner, successors)
        if owner and pod_changes.left_unstarted(pod):
            self._announcer.pod_ending(owner, pod)

    def _announce_left(self, owner: str, successors: list[str]) -> None:
        """A pod left its run (empty: it had none): count the pods that were created for its seat, and announce it."""
        if not owner:
            return
        # Only these: to count every pod again would take a gang of n pods n² steps to end.
        by_uid = self._index.by_uid
        self._booking.book_all([by_uid[each] for each in successors if each in by_uid])
        self._run_registry.announce_all_unseated(owner)
        self._run_registry.touch(owner)
