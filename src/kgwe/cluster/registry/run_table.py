"""Runs (Jobs and Deployments) of workloads, and which pods belong to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgwe.cluster.workload import metadata_keys, runs

if TYPE_CHECKING:
    from kgwe.cluster.workload.runs import Run
    from kgwe.cluster.workload.workload import Key
    from kgwe.kube.api import core


class RunTable:
    """Which run each workload has."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}  # workload uid -> its run
        self.orphans: dict[Key, Run] = {}  # deleted workload -> its run, which still exists
        self.owners: dict[str, str] = {}  # maker of pods -> uid of the workload that owns it

    def owner_of_maker(self, maker: str) -> str:
        """Uid of the workload whose run has this maker key; empty: none."""
        return self.owners.get(maker, "")

    def run_of(self, pod: core.Pod) -> Run | None:
        """The run that created the pod."""
        return self.runs.get(self.owners.get(runs.maker_of(pod), ""))

    def is_external(self, pod: core.Pod) -> bool:
        """Whether no workload owns the pod.

        A pod with the label of a workload is never external, even before its Job has been observed.
        """
        return self.is_external_maker(pod, runs.maker_of(pod))

    def is_external_maker(self, pod: core.Pod, maker: str) -> bool:
        """The same, for a caller that knows the maker of the pod."""
        return maker not in self.owners and metadata_keys.UID_LABEL not in pod.metadata.labels

    def forget_orphan(self, uid: str) -> None:
        """The run with this uid is gone."""
        for key in [key for key, run in self.orphans.items() if run.meta.uid == uid]:
            del self.orphans[key]
