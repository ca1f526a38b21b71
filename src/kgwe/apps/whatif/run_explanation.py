"""Explanations of workloads that have a place, or have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgwe.apps.whatif.explanation import Explanation, Placed, Seat
from kgwe.apps.whatif.parts import as_sentence, describe_seat, find_seat_problems, name_nodes, replace_fields
from kgwe.cluster.state import run_state
from kgwe.cluster.suspension import marks
from kgwe.kube.api.kgwe.gpuworkload_status import Phase
from kgwe.model.units.phrasing import format_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kgwe.cluster.offline import View
    from kgwe.cluster.workload.runs import Run
    from kgwe.cluster.workload.workload import Workload
    from kgwe.kube.api import core


def describe_end(workload: Workload) -> str:
    status = workload.status
    when = f" at {status.completion_time}" if status.completion_time else ""
    if status.phase == Phase.SUCCEEDED:
        return f"succeeded{when}; it holds no GPUs"
    return f"failed{when}: {status.message.rstrip('.')}. Edit its spec to try again"


def describe_suspended(workload: Workload, run: Run | None) -> str:
    """What a suspended workload does, and how it is resumed."""
    _, message = marks.describe_suspension(workload.kind.resource, workload.meta)
    return f"{message}. " + ("Its pods are stopping" if run is not None else "It holds no GPUs")


def status_placed(workload: Workload) -> Placed | None:
    found = workload.status.placed
    if found is None:
        return None
    details = found.details
    return Placed(
        tuple(Seat(node, gpus=gpus) for node, _, gpus in found.placements),
        details.domain,
        details.score,
        dict(details.parts),
        details.gb_per_s,
        tuple(details.reasons.splitlines()),
    )


def explain_running(view: View, workload: Workload, run: Run, base: Explanation) -> Explanation:
    pods = view.state.pods_of(run)
    details = run.details
    seats = tuple(_seats(view, run, pods.values()))
    found = Placed(seats)
    if details is not None:
        reasons = tuple(details.reasons.splitlines())
        found = Placed(seats, details.domain, details.score, dict(details.parts), details.gb_per_s, reasons)
    problems = [*base.problems, *find_seat_problems(view, seats)]
    problems += filter(None, [marks.describe_notice(workload.meta)])
    if run.suspended:
        resume = f"kubectl patch {run.resource.full_name} {run.meta.name} -n {run.meta.namespace}"
        problems.append(
            f"{run.resource.kind} {run.meta.name} is suspended and holds no GPUs. To resume:"
            f' {resume} --type merge -p \'{{"spec":{{"suspend":false}}}}\''
        )
    unplaced = run_state.find_unplaced(view.state, workload, run, pods)
    running = sum(pod.status.phase == "Running" for pod in pods.values())
    state = "Running" if run_state.is_running(workload, run, pods) else "Placed"
    where = name_nodes(seats)
    summary = f"{running} of {format_count(run.pods, 'pod')} running on {where}" if running else f"placed on {where}"
    if unplaced is not None:
        begun = f"{running} of {format_count(run.pods, 'pod')} running" if running else "not started"
        summary = f"{begun}. {_describe_unplaced(workload, unplaced, where)}"
    elif not problems:
        summary += "; no problems found"
    return replace_fields(base, state=state, summary=summary, placed=found, problems=tuple(problems))


def _describe_unplaced(workload: Workload, unplaced: run_state.Unplaced, where: str) -> str:
    """What keeps its pods from their places; the scheduler may have read more about it than is known here."""
    said = workload.status.message
    if unplaced.reason == run_state.PODS_NOT_CREATED and said.startswith(unplaced.message.partition(";")[0]):
        return as_sentence(said)
    return f"{as_sentence(unplaced.message)} Reserved: {where}."


def _seats(view: View, run: Run, pods: Iterable[core.Pod]) -> Iterator[Seat]:
    by_seat = {run.seat_of(pod): pod for pod in pods if pod.metadata.deletionTimestamp is None}
    for number, seat in enumerate(run.seats):
        pod = by_seat.get(number)
        phase = "" if pod is None else pod.status.phase
        if number in run.done:
            phase = "Succeeded"
        yield describe_seat(view, seat, pod.metadata.name if pod else "", phase)
