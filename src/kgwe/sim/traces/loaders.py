"""Loads traces as workloads, and the openb nodes as a fleet.

openb (Alibaba cluster-trace-gpu-v2023): pods with creation and deletion times in seconds, over five months on
a much larger cluster than they need. Durations are kept; arrivals are compressed until the pods use `load` times the
fleet's GPUs on average while they arrive.

Philly-like CSV, one job per row (columns in any order, others are ignored):

    job         name; a row without one is called by its number
    submit      arrival: seconds, or a time such as 2017-10-09 07:01:33
    duration_s  run time without slowdowns
    gpus        GPUs of the whole job
    pods        (optional) number of pods; by default one per 8 GPUs
    user, priority, model, checkpoint_s, cpu_per_gpu, memory_gib_per_gpu   (optional)
"""

from __future__ import annotations

import csv
import dataclasses
import datetime as dt
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe import errors
from kgwe.model.gpu.topology import Slot, Wiring
from kgwe.placement.fleet.constraints import ANYWHERE, Constraints, Operator, Requirement
from kgwe.placement.fleet.node import GPU_MILLI, Gpus, Node, Request, Shape
from kgwe.placement.packing.fleet import Demand, Pod
from kgwe.sim.traces.workload import CHECKPOINT_S, Job, Workload

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from kgwe.placement.packing.fleet import NodeSpec

_MODEL_LABEL: Final = "nvidia.com/gpu.product"
_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
_CARDS_PER_POD: Final = 8
# Jobs that arrive long before the others.
_EARLY: Final = 0.01
# Arrivals of a month within seconds count as simultaneous.
_TINIEST: Final = 1e-6
_HALVINGS: Final = 50


# --- openb ----------------------------------------------------------------------------------------------


def openb_nodes(specs: Iterable[NodeSpec]) -> list[Node]:
    """Return the nodes of an openb list; the topology of their GPUs is unknown."""
    shapes: dict[tuple[str, int], Shape] = {}
    nodes = []
    for spec in specs:
        wiring = Wiring(tuple(Slot(f"card-{card}") for card in range(spec.gpus)))
        shape = shapes.setdefault((spec.model, spec.gpus), Shape(wiring, spec.model))
        labels = {_MODEL_LABEL: spec.model}
        nodes.append(Node(spec.name, shape, spec.cpu_milli, spec.memory_mib * _MIB, labels=labels))
    return nodes


def read_openb(path: Path, *, cards: int, load: float, any_model: bool = False) -> Workload:
    """Return the pods of an openb list for a fleet of `cards` GPUs; `any_model` ignores their GPU models."""
    jobs = []
    for row in _rows(path, "an openb pod list"):
        try:
            start_s = float(row.get("scheduled_time") or row["creation_time"])
            duration_s = max(float(row["deletion_time"]) - start_s, 1.0)
            jobs.append(Job(row["name"], float(row["creation_time"]), duration_s, _openb_request(row)))
        except (KeyError, ValueError) as exc:
            raise errors.Permanent(
                f"cannot replay {path}: {exc!r}; it needs name, creation_time, deletion_time and the amounts"
            ) from exc
    if any_model:
        jobs = [_of_any_model(job) for job in jobs]
    return scale_arrivals(Workload.from_jobs(path.stem, jobs), cards=cards, load=load)


def _openb_request(row: dict[str, str]) -> Request:
    """Read a row like the FGD experiment: several GPUs are whole GPUs, a share is at most one."""
    cards = int(row["num_gpu"])
    demand = Demand(int(row["cpu_milli"]), int(row["gpu_milli"]), cards, (row.get("gpu_spec") or "") if cards else "")
    return request_of(Pod(demand, int(row["memory_mib"])))


def request_of(pod: Pod) -> Request:
    """Return the pod of an openb list as a request."""
    demand = pod.demand
    models = tuple(demand.gpu_spec.split("|")) if demand.gpu_spec else ()
    limits = Constraints(affinity=((Requirement(_MODEL_LABEL, Operator.IN, models),),)) if models else ANYWHERE
    gpus = Gpus(milli=demand.gpu_milli) if demand.is_share else Gpus(count=demand.num_gpu)
    return Request(gpus, demand.cpu_milli, pod.memory_mib * _MIB, constraints=limits)


def _of_any_model(job: Job) -> Job:
    return dataclasses.replace(job, request=dataclasses.replace(job.request, constraints=ANYWHERE))


def scale_arrivals(workload: Workload, *, cards: int, load: float) -> Workload:
    """Return the jobs with arrivals scaled so that they use `load` times the GPUs on average while they arrive.

    The first percent, which arrives long before the rest, arrives at the beginning.
    """
    arrivals = np.array([job.arrival_s for job in workload.jobs])
    arrivals = np.maximum(arrivals - arrivals[int(_EARLY * len(arrivals))], 0.0)
    durations = np.array([job.duration_s for job in workload.jobs])
    used = np.array([job.milli for job in workload.jobs]) / GPU_MILLI
    if not load > 0 or not arrivals[-1]:
        raise errors.Permanent(
            "cannot scale arrivals: the load must be above 0, and jobs must arrive at different times"
        )

    def mean_cards(scale: float) -> float:
        at, end = arrivals * scale, arrivals[-1] * scale
        return float((used * np.minimum(durations, end - at)).sum() / end)

    low, high = _TINIEST, 1.0
    if mean_cards(low) < load * cards:
        raise errors.Permanent(
            f"{workload.name} asks for {used.sum():,.0f} cards in all and cannot fill {cards:,} to {load:.0%}:"
            " take fewer --nodes or a smaller --load"
        )
    while mean_cards(high) > load * cards:
        high *= 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_cards(middle) > load * cards else (low, middle)
    pressed = np.round(arrivals * high, 3).tolist()
    return Workload.from_jobs(
        workload.name,
        (dataclasses.replace(job, arrival_s=at) for job, at in zip(workload.jobs, pressed, strict=True)),
    )


# --- Philly-like ----------------------------------------------------------------------------------------


def read_philly(path: Path) -> Workload:
    """Read jobs from a CSV file with the columns above; the first arrives at 0."""
    jobs = []
    for number, row in enumerate(_rows(path, "a job list"), 1):
        try:
            jobs.append(_philly_job(row, number))
        except (KeyError, TypeError, ValueError, OverflowError, errors.Permanent) as exc:
            raise errors.Permanent(f"{path}, job {number}: {exc}; needs submit, duration_s and gpus") from exc
    first = min((job.arrival_s for job in jobs), default=0.0)
    return Workload.from_jobs(path.stem, (dataclasses.replace(job, arrival_s=job.arrival_s - first) for job in jobs))


def _philly_job(row: dict[str, str], number: int) -> Job:
    cards = int(row["gpus"])
    pods = int(row.get("pods") or max(1, -(-cards // _CARDS_PER_POD)))
    each = -(-cards // pods)
    return Job(
        name=row.get("job") or f"job-{number}",
        arrival_s=_seconds(row["submit"]),
        duration_s=float(row["duration_s"]),
        request=Request(
            Gpus(count=each),
            cpu_milli=round(float(row.get("cpu_per_gpu") or 4) * 1000 * max(each, 1)),
            memory_bytes=round(float(row.get("memory_gib_per_gpu") or 32) * _GIB * max(each, 1)),
        ),
        pods=pods,
        priority=int(row.get("priority") or 0),
        user=row.get("user") or "",
        model=row.get("model") or "",
        checkpoint_s=float(row.get("checkpoint_s") or CHECKPOINT_S),
    )


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        when = dt.datetime.fromisoformat(text)
        return (when if when.tzinfo else when.replace(tzinfo=dt.UTC)).timestamp()


def _rows(path: Path, what: str) -> Sequence[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except OSError as exc:
        raise errors.NotFound(f"cannot read {path}: {exc.strerror}") from exc
    except (UnicodeDecodeError, csv.Error) as exc:
        raise errors.Permanent(f"{path} is not {what}: {exc}") from exc
    if not rows:
        raise errors.Permanent(f"{path} is not {what}: it has no rows")
    return rows
