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
        self.sightings = PodSightings()

    def add(self, pod: core.Pod, maker: str) -> core.Pod | None:
        """Add or replace the pod; returns it as it was known before."""
        uid = pod.metadata.uid
        known = self.by_uid.get(uid)
        self.by_uid[uid] = pod
        self.sightings.note_seen(uid)
        if maker:
            self._by_maker.setdefault(maker, {})[uid] = pod
        return known

    def remove(self, pod: core.Pod, maker: str) -> bool:
        """Remove the pod; returns whether it was known."""
        uid = pod.metadata.uid
        if self.by_uid.pop(uid, None) is None:
            return False
        self.sightings.note_gone(uid)
        if maker in self._by_maker:
            self._by_maker[maker].pop(uid, None)
            if not self._by_maker[maker]:
                del self._by_maker[maker]
        return True

    def of_maker(self, maker: str) -> Mapping[str, core.Pod]:
        """Pods that this object created, by uid."""
        return self._by_maker.get(maker, {})

    def of_run(self, run: Run) -> Mapping[str, core.Pod]:
        """Pods of a run, by uid."""
        return self._by_maker.get(runs.maker_key(run), {})
