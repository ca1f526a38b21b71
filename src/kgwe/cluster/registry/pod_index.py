"""Pods that have not ended, by uid and by the object that created them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgwe.cluster.registry.pod_sightings import PodSightings
from kgwe.cluster.workload import runs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.cluster.workload.runs import Run
    from kgwe.kube.api import core


class PodIndex:
    """The pods as the API shows them."""

    def __init__(self) -> None:
        self.by_uid: dict[str, core.Pod] = {}
        self._by_maker: dict[str, dict[str, core.Pod]] = {}  # maker -> pod uid -> pod
        self._maker_of: dict[str, str] = {}  # pod uid -> maker, if it has one
        self.sightings = PodSightings()

    def add(self, pod: core.Pod, maker: str) -> core.Pod | None:
        """Add or replace the pod; returns it as it was known before."""
        uid = pod.metadata.uid
        known = self.by_uid.get(uid)
        self.by_uid[uid] = pod
        self.sightings.note_seen(uid)
        if known is not None and self.maker_of(uid) != maker:
            self._unfile(uid)
        if maker:
            self._by_maker.setdefault(maker, {})[uid] = pod
            self._maker_of[uid] = maker
        return known

    def remove(self, uid: str) -> bool:
        """Remove the pod; returns whether it was known."""
        if self.by_uid.pop(uid, None) is None:
            return False
        self.sightings.note_gone(uid)
        self._unfile(uid)
        return True

    def _unfile(self, uid: str) -> None:
        """Remove the pod from those of its maker.

        A controller releases a pod whose labels no longer match, and may adopt others: the maker is the one it was
        filed under, whatever the pod says now.
        """
        maker = self._maker_of.pop(uid, "")
        if maker:
            self._by_maker[maker].pop(uid, None)
            if not self._by_maker[maker]:
                del self._by_maker[maker]

    def maker_of(self, uid: str) -> str:
        """The maker that the pod had when it was last seen; empty: none."""
        return self._maker_of.get(uid, "")

    def of_maker(self, maker: str) -> Mapping[str, core.Pod]:
        """Pods that this object created, by uid."""
        return self._by_maker.get(maker, {})

    def of_run(self, run: Run) -> Mapping[str, core.Pod]:
        """Pods of a run, by uid."""
        return self._by_maker.get(runs.maker_key(run), {})
