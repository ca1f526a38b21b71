"""Tells owners when their workloads start, end or lose their GPUs. Only workloads with the annotation are told of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe.cluster.registry.announcer import ClusterListener
from kgwe.kube.api.kgwe.gpuworkload_status import Phase
from kgwe.model.units import phrasing
from kgwe.notify.notification import OWNER_ANNOTATION, Notification, Severity, Subject

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.cluster.state.cluster_state import ClusterState
    from kgwe.cluster.workload.workload import Key, Workload

_ENDED: Final = {Phase.SUCCEEDED: ("Succeeded", Severity.INFO), Phase.FAILED: ("Failed", Severity.WARNING)}
_WAITING: Final = frozenset({Phase.PENDING, Phase.SCHEDULING})
_PREEMPTED: Final = "Preempted"


class OwnerNotices:
    """Follows the phases of workloads during one term."""

    def __init__(self, state: ClusterState, notify: Callable[[Notification], object], now: Callable[[], float]) -> None:
        self._state = state
        self._notify = notify
        self._now = now
        self._phases: dict[str, str] = {}
        self._unsubscribe: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Follow changes from now on. What happened before is not told."""
        self._phases = {each.meta.uid: each.status.phase for each in self._state.workloads.values()}
        listener = ClusterListener(workload_changed=self._on_workload, workload_removed=self._on_removed)
        self._unsubscribe = self._state.announcer.subscribe(listener)

    def stop(self) -> None:
        self._unsubscribe()

    def _on_removed(self, uid: str) -> None:
        self._phases.pop(uid, None)

    def _on_workload(self, key: Key) -> None:
        workload = self._state.workloads.get(key)
        if workload is None:
            return
        uid, phase = workload.meta.uid, workload.status.phase
        before = self._phases.get(uid, "")
        self._phases[uid] = phase
        owner = workload.meta.annotations.get(OWNER_ANNOTATION, "")
        if not owner or phase == before:
            return
        found = describe_change(workload, before)
        if found is not None:
            kind, severity, text = found
            self._notify(self._make_notification(workload, kind, severity, text, owner))

    def _make_notification(
        self, workload: Workload, kind: str, severity: Severity, text: str, owner: str
    ) -> Notification:
        meta, now_s = workload.meta, self._now()
        subject = Subject("GPUWorkload", meta.name, meta.namespace)
        title = f"{meta.namespace}/{meta.name}: {kind.lower()}"
        key = f"{kind}/{meta.namespace}/{meta.name}/{meta.uid}/{now_s:.0f}"
        return Notification(kind, severity, title, text, subject, key, now_s, owner=owner, is_for_owner=True)


def describe_change(workload: Workload, before: str) -> tuple[str, Severity, str] | None:
    """Return kind, severity and text of a change of phase; None if owners are not told of it."""
    status, name = workload.status, f"GPUWorkload {workload.meta.name}"
    if status.phase == Phase.RUNNING:
        where = status.nodes or status.node
        return "Started", Severity.INFO, f"{name} runs on {where}." if where else f"{name} runs."
    if status.phase in _ENDED:
        kind, severity = _ENDED[Phase(status.phase)]
        return kind, severity, phrasing.end_sentence(f"{name} has {kind.lower()}. {status.message}".strip())
    if before == Phase.RUNNING and status.phase in _WAITING and not workload.suspend:
        is_preempted = any(each.reason == _PREEMPTED for each in status.conditions)
        kind = _PREEMPTED if is_preempted else "Interrupted"
        return kind, Severity.WARNING, phrasing.end_sentence(f"{name} waits again. {status.message}".strip())
    return None
