"""Fills a fleet with a policy of the simulator, by the protocol of the packing experiment."""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table
from rich.text import Text

from kgwe.placement.packing.fleet import PODS_PER_NODE, Fleet
from kgwe.sim.fleet.fleet import World
from kgwe.sim.packing.replay import Recording
from kgwe.sim.traces.loaders import openb_nodes, request_of
from kgwe.sim.traces.workload import Job, Workload
from kgwe.visible_text import escape_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.sim.policies.registry import PolicyFactory
    from kgwe.sim.traces.openb import Experiment


@dataclass(frozen=True, slots=True)
class Filled:
    """The result of one policy: GPU capacity in use when 100 % and 130 % had arrived, in percent."""

    policy: str
    alloc_100: float
    alloc_130: float
    #: pods that fit on no node
    refused: float
    #: CPU time of one decision
    decision_ms: float


def fill(experiment: Experiment, make: PolicyFactory, *, seed: int) -> Filled:
    """Place each arrival with the policy; a pod that fits on no node is dropped, and no pod leaves."""
    nodes = [dataclasses.replace(node, pods=PODS_PER_NODE) for node in openb_nodes(experiment.nodes)]
    world = World.from_nodes(nodes)
    requests = {pod: request_of(pod) for pod in experiment.arrivals}
    jobs = [Job(f"{number:06}", float(number), 1.0, requests[pod]) for number, pod in enumerate(experiment.arrivals)]
    policy = make(world, Workload.from_jobs("fill", jobs), np.random.default_rng(seed))
    arrived = used = refused = 0
    rows: list[tuple[int, int]] = []
    started = time.process_time()
    for job in jobs:
        arrived += job.milli
        grants = policy.place(job)
        if grants is None:
            refused += 1
        else:
            world.snapshot.commit_all(grants)
            used += job.milli
        rows.append((arrived, used))
    took_s = time.process_time() - started
    columns = np.array(rows, dtype=np.int64).T
    recording = Recording(Fleet(experiment.nodes), columns[0], columns[1], np.zeros(len(rows)), refused)
    return Filled(
        "", recording.allocation_at(100), recording.allocation_at(130), refused, 1000 * took_s / max(len(jobs), 1)
    )


def mean(policy: str, runs: Sequence[Filled]) -> Filled:
    """Return the mean over seeds, with the policy's name."""
    names = [each.name for each in dataclasses.fields(Filled) if each.name != "policy"]
    return Filled(policy, **{name: statistics.fmean(getattr(run, name) for run in runs) for name in names})


def to_json(trace: str, seeds: Sequence[int], means: Sequence[Filled]) -> str:
    policies = {
        each.policy: {name: round(value, 3) for name, value in dataclasses.asdict(each).items() if name != "policy"}
        for each in means
    }
    return json.dumps({"trace": trace, "seeds": list(seeds), "policies": policies}, indent=2)


def to_table(trace: str, seeds: Sequence[int], means: Sequence[Filled]) -> Table:
    table = Table(title=Text(f"Filling {escape_line(trace)}, seeds {seeds[0]} to {seeds[-1]}"), title_justify="left")
    table.add_column("policy")
    for heading in ("GPUs used at 100 % arrived", "at 130 %", "pods refused", "CPU per decision"):
        table.add_column(heading, justify="right")
    for each in means:
        table.add_row(
            each.policy,
            f"{each.alloc_100:.2f} %",
            f"{each.alloc_130:.2f} %",
            f"{each.refused:,.0f}",
            f"{each.decision_ms:.2f} ms",
        )
    return table
