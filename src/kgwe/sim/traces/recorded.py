"""The jobs of decision records, as a workload for the simulator."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from kgwe.records import decisions
from kgwe.records.decisions import Decision, End
from kgwe.sim.traces.workload import CHECKPOINT_S, Job, Workload

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kgwe.placement.planning.ask import Ask
    from kgwe.records.decisions import Line


def read_workload(name: str, lines: Iterable[tuple[str, Line]]) -> Workload:
    """Return the placed jobs. A job without an end ran until the last line; of a job placed twice the first counts.

    Times of the scheduler's records count from the earliest job; those of a simulation are unchanged.
    """
    first: dict[str, Decision] = {}
    ends: dict[str, float] = {}
    last_s = 0.0
    for _, line in lines:
        last_s = max(last_s, line.at_s)
        if isinstance(line, Decision) and line.refused is None:
            first.setdefault(line.job, line)
        elif isinstance(line, End):
            ends[line.job] = line.at_s
    asks = {job: decisions.read_ask(line) for job, line in first.items()}
    since_s = {job: _since_s(ask, first[job].at_s) for job, ask in asks.items()}
    start_s = min((at_s for job, at_s in since_s.items() if first[job].simulated is None), default=0.0)
    return Workload.from_jobs(
        name,
        (
            _job(line, asks[job], since_s[job] - start_s, ends.get(job, last_s) - line.at_s)
            for job, line in first.items()
        ),
    )


def _since_s(ask: Ask, decided_s: float) -> float:
    asked_s = datetime.fromisoformat(ask.since).timestamp() if ask.since else decided_s
    return min(asked_s, decided_s)


def _job(line: Decision, ask: Ask, arrival_s: float, ran_s: float) -> Job:
    request = ask.gang.roles[0].request if ask.gang is not None else ask.request
    if ask.divisible and request.gpus.count:
        request = replace(request, gpus=replace(request.gpus, count=request.gpus.count // len(line.seats)))
    told = line.simulated
    return Job(
        name=line.job,
        arrival_s=arrival_s if told is None else told.arrival_s,
        duration_s=max(ran_s, 1.0),
        request=request,
        pods=len(line.seats),
        priority=ask.priority,
        user=ask.namespace,
        model="" if told is None else told.model,
        checkpoint_s=CHECKPOINT_S if told is None else told.checkpoint_s,
    )
