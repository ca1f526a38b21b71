"""The explanation for a user who may read one namespace: from status, conditions and Events, without planning.

Planning needs all nodes and pods. Without them the explanation repeats what the scheduler wrote about the workload, and
names what could not be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from kgwe import errors
from kgwe.apps.whatif import gang_explanation, parts, run_explanation, words
from kgwe.apps.whatif.explanation import Explanation, Happened, Placed, Seat
from kgwe.cluster.offline import is_gpu_pod
from kgwe.cluster.workload import metadata_keys
from kgwe.cluster.workload.conditions import DEGRADED
from kgwe.cluster.workload.workload import Workload
from kgwe.kube.api import resources

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kgwe.cluster.offline import View
    from kgwe.kube.api import core
    from kgwe.kube.api.meta import Condition
    from kgwe.kube.client.client import KubeClient

#: shown below every such explanation
UNSEEN: Final = (
    "nodes, pods of other namespaces and the queue: you may not list them, so this shows what the schedulers wrote."
    " With the ClusterRole kgwe-advisor (deploy/advisor.yaml) explain plans on the whole cluster; kgwe-cluster-viewer"
    " (deploy/roles.yaml) shows GPUs, network and settings"
)
_LATEST: Final = 8


class _Series(msgspec.Struct, frozen=True, rename="camel"):
    count: int = 0
    last_observed_time: str = ""


class _Event(msgspec.Struct, frozen=True, rename="camel"):
    """Of the core group, which the role `view` reads; Events written as events.k8s.io show there too."""

    type: str = ""
    reason: str = ""
    message: str = ""
    count: int = 0
    last_timestamp: str | None = None
    event_time: str | None = None
    series: _Series | None = None


class _Events(msgspec.Struct, frozen=True):
    items: tuple[_Event, ...] = ()


async def events(client: KubeClient, subject: Workload | core.Pod) -> tuple[tuple[Happened, ...], str]:
    """The latest Events of the subject, oldest first; and why they could not be read, if so."""
    meta = subject.meta if isinstance(subject, Workload) else subject.metadata
    params = {"fieldSelector": f"involvedObject.uid={meta.uid}"}
    try:
        body = await client.request("GET", f"/api/v1/namespaces/{meta.namespace}/events", params=params)
    except errors.Permanent as exc:
        return (), f"Events: {exc}"
    found = sorted(map(_read_event, msgspec.json.decode(body, type=_Events).items), key=lambda each: each.last)
    return tuple(found[-_LATEST:]), ""


def _read_event(event: _Event) -> Happened:
    series = event.series or _Series()
    last = series.last_observed_time or event.last_timestamp or event.event_time or ""
    return Happened(event.type, event.reason, event.message, max(series.count, event.count, 1), last)


def explain_limited(view: View, subject: Workload | core.Pod, happened: Sequence[Happened]) -> Explanation:
    """The explanation without nodes; `view` was read from one namespace."""
    told = _workload(view, subject) if isinstance(subject, Workload) else _pod(view, subject)
    problems = (*told.problems, *view.config_problems())
    return msgspec.structs.replace(told, events=tuple(happened), problems=problems, warnings=(UNSEEN, *view.warnings))


def _workload(view: View, workload: Workload) -> Explanation:
    meta, status = workload.meta, workload.status
    run = view.state.runs.get(meta.uid)
    pods = list(view.state.pods_of(run).values()) if run is not None else []
    base = Explanation(
        kind=f"GPUWorkload.{workload.kind.resource.group}",
        namespace=meta.namespace,
        name=meta.name,
        state="Suspended" if workload.suspend and not workload.finished else status.phase or "Waiting",
        summary=_summary(workload, sum(pod.status.phase == "Running" for pod in pods), run.pods if run else 0),
        asked=_describe_ask(view, workload),
        placed=run_explanation.status_placed(workload) or _read_place(workload),
        estimated_start=status.estimate,
        said=tuple(parts.words_of(status.conditions)),
        problems=tuple(_troubles(status.conditions)),
    )
    if meta.deletionTimestamp is not None:
        return msgspec.structs.replace(base, state="Deleting", summary="being deleted")
    return base


def _summary(workload: Workload, running: int, pods: int) -> str:
    status = workload.status
    if workload.finished:
        return run_explanation.describe_end(workload)
    if workload.suspend:
        stopping = f"{running} of {pods} pods are stopping: suspended"
        return stopping if pods else run_explanation.describe_suspended(workload, None)
    if status.node:
        where = status.nodes or status.node
        return f"{running} of {pods} pods running on {where}" if running else f"placed on {where}"
    if status.phase:
        return f"waiting. {status.message}"
    return "no status yet: it was created a moment ago, or no scheduler runs"


def _describe_ask(view: View, workload: Workload) -> tuple[str, ...]:
    try:
        return words.describe_ask(view.ask_of(workload))
    except errors.Permanent as exc:
        return (str(exc),)


def _read_place(workload: Workload) -> Placed | None:
    """The status of the gpu.warp.dev kind has only the node."""
    return Placed((Seat(workload.status.node),)) if workload.status.node else None


def _troubles(conditions: Iterable[Condition]) -> Iterable[str]:
    return (each.message for each in conditions if each.type == DEGRADED and each.status == "True")


def _pod(view: View, pod: core.Pod) -> Explanation:
    meta = pod.metadata
    scheduled = [each for each in pod.status.conditions if each.type == "PodScheduled"]
    base = Explanation(
        kind="Pod",
        namespace=meta.namespace,
        name=meta.name,
        state=pod.status.phase or "Pending",
        summary=_pod_summary(pod, scheduled),
        said=tuple(parts.words_of(scheduled)),
        gang=gang_explanation.gang_of(view, view.gangs.owner_of(meta.uid)),
    )
    workload = view.state.find_workload(meta.labels.get(metadata_keys.UID_LABEL, ""))
    if workload is None:
        return base
    whole = _workload(view, workload)
    summary = f"{base.summary}; belongs to {resources.GPU_WORKLOAD.kind} {workload.meta.key}: {whole.summary}"
    return msgspec.structs.replace(
        whole, kind=base.kind, name=base.name, state=base.state, said=base.said, summary=summary
    )


def _pod_summary(pod: core.Pod, scheduled: Sequence[Condition]) -> str:
    if pod.spec.nodeName:
        return f"on {pod.spec.nodeName}"
    if not is_gpu_pod(pod):
        return "requests no GPUs, so KGWE does not place it"
    said = next((each.message for each in scheduled if each.message), "")
    return f"waiting. {said}" if said else "waiting. kube-scheduler has not tried to schedule it yet."
