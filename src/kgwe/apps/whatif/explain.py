"""Why a workload or pod is where it is, or why it waits: from the API and from planning it now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgwe import errors
from kgwe.apps.whatif.explanation import Explanation
from kgwe.apps.whatif.gang_explanation import explain_member
from kgwe.apps.whatif.parts import replace_fields, words_of, words_of_advice
from kgwe.apps.whatif.pod_explanation import explain_bound
from kgwe.apps.whatif.run_explanation import describe_end, describe_suspended, explain_running, status_placed
from kgwe.apps.whatif.waiting_explanation import describe_ask, explain_waiting
from kgwe.cluster.offline import is_gpu_pod
from kgwe.cluster.workload import metadata_keys, scheduler_policy
from kgwe.cluster.workload.workload import Workload

if TYPE_CHECKING:
    from kgwe.cluster.offline import View
    from kgwe.cluster.workload.runs import Run
    from kgwe.kube.api import core


def explain(view: View, subject: Workload | core.Pod) -> Explanation:
    return _workload(view, subject) if isinstance(subject, Workload) else _pod(view, subject)


def _workload(view: View, workload: Workload) -> Explanation:
    found = _workload_or_replica(view, workload)
    replicas = [w for w in view.state.workloads.values() if w.object_uid == workload.object_uid and not w.suspend]
    if len(replicas) <= 1 or workload not in replicas:
        return found
    placed = sum(w.meta.uid in view.state.runs for w in replicas)
    have = f"{placed} of {len(replicas)} replicas have a place"
    return replace_fields(found, summary=f"{have}; replica {workload.replica}: {found.summary}")


def _workload_or_replica(view: View, workload: Workload) -> Explanation:
    meta, uid = workload.meta, workload.meta.uid
    run = view.state.runs.get(uid)
    base = Explanation(
        kind=f"GPUWorkload.{workload.kind.resource.group}",
        namespace=meta.namespace,
        name=meta.name,
        state=workload.status.phase or "Waiting",
        summary="",
        said=(*words_of(workload.status.conditions), *words_of_advice(workload)),
        problems=(*view.config_problems(), *filter(None, [scheduler_policy.priority_note(workload)])),
        warnings=view.warnings,
    )
    try:
        base = replace_fields(base, asked=describe_ask(view, view.ask_of(workload)))
    except errors.Permanent as exc:
        base = replace_fields(base, problems=(*base.problems, str(exc)))
    if meta.deletionTimestamp is not None:
        return replace_fields(base, state="Deleting", summary="being deleted")
    if run is not None and run.ended is None and not workload.suspend and not _waits_in_queue(workload, run):
        return explain_running(view, workload, run, base)
    if workload.finished:
        return replace_fields(base, summary=describe_end(workload), placed=status_placed(workload))
    if workload.suspend:
        return replace_fields(base, state="Suspended", summary=describe_suspended(workload, run))
    if run is not None and run.suspended:
        return replace_fields(base, state="Waiting", summary=f"{workload.status.message}. It holds no GPUs")
    estimate = workload.status.estimate
    return explain_waiting(view, uid, replace_fields(base, state="Waiting", estimated_start=estimate))


def _waits_in_queue(workload: Workload, run: Run) -> bool:
    """Whether Kueue has not admitted its Job, or KGWE has no plan for the admitted Job yet."""
    return bool(workload.queue) and (run.suspended or not run.seats)


def _pod(view: View, pod: core.Pod) -> Explanation:
    meta = pod.metadata
    base = Explanation(
        kind="Pod",
        namespace=meta.namespace,
        name=meta.name,
        state=pod.status.phase or "Pending",
        summary="",
        said=tuple(words_of(each for each in pod.status.conditions if each.type == "PodScheduled")),
        problems=view.config_problems(),
        warnings=view.warnings,
    )
    seat = view.state.seat_of(pod)
    # A pod of a workload may have no seat yet; its label names the workload.
    workload = view.state.find_workload(seat[0] if seat is not None else meta.labels.get(metadata_keys.UID_LABEL, ""))
    if workload is not None and workload.meta.namespace == meta.namespace:
        return _of_workload(view, pod, workload, base)
    owner = view.gangs.owner_of(pod.metadata.uid)
    if owner:
        return explain_member(view, pod, owner, base)
    if not is_gpu_pod(pod):
        where = f" (on {pod.spec.nodeName})" if pod.spec.nodeName else ""
        return replace_fields(base, state="NotForKGWE", summary=f"requests no GPUs, so KGWE does not place it{where}")
    if pod.spec.nodeName:
        return explain_bound(view, pod, base)
    return explain_waiting(view, meta.uid, replace_fields(base, state="Waiting"))


def _of_workload(view: View, pod: core.Pod, workload: Workload, base: Explanation) -> Explanation:
    """A pod of a workload: the explanation of the workload, and where this pod is."""
    whole = _workload(view, workload)
    here = f"on {pod.spec.nodeName}" if pod.spec.nodeName else "not bound yet"
    summary = f"{here}; belongs to GPUWorkload {workload.meta.key}: {whole.summary}"
    return replace_fields(
        whole,
        kind=base.kind,
        namespace=base.namespace,
        name=base.name,
        state=base.state,
        summary=summary,
        said=base.said,
    )
