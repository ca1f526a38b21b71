"""`/allocation/compute` as OpenCost answers it, so that its dashboards and tools read KGWE's costs.

A KGWE cost is of GPUs together with the CPUs and memory that the split method counts. All of it is `gpuCost`; `cpuCost`
and `ramCost` are 0, and `totalCost` is the sum.
"""

from __future__ import annotations

import enum
import time
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from kgwe.costing import money
from kgwe.costing.books import Dimension
from kgwe.costing.segments import PPM
from kgwe.httpapi import problems
from kgwe.httpapi.routes import Route
from kgwe.httpapi.windows import Window, parse_step, parse_window
from kgwe.kube.api import timestamp

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.costing.books import Sums
    from kgwe.httpapi.authentication import User
    from kgwe.httpapi.cost_reader import CostReader, VisibleCosts

_MOST_STEPS: Final = 400
_CLUSTER: Final = "cluster"
#: name of the line of what no pod held
IDLE: Final = "__idle__"
#: name of the line of pods without the label
UNALLOCATED: Final = "__unallocated__"


class Aggregate(enum.StrEnum):
    """What a line is about, in OpenCost's words."""

    CLUSTER = "cluster"
    NAMESPACE = "namespace"
    CONTROLLER = "controller"
    POD = "pod"
    NODE = "node"
    TEAM = "label:team"
    PROJECT = "label:project"
    COST_CENTER = "label:cost-center"
    EXPERIMENT = "label:experiment-id"
    USER = "label:user"


_DIMENSIONS: Final = {
    Aggregate.CLUSTER: Dimension.NAMESPACE,
    Aggregate.NAMESPACE: Dimension.NAMESPACE,
    Aggregate.CONTROLLER: Dimension.WORKLOAD,
    Aggregate.POD: Dimension.POD,
    Aggregate.NODE: Dimension.NODE,
    Aggregate.TEAM: Dimension.TEAM,
    Aggregate.PROJECT: Dimension.PROJECT,
    Aggregate.COST_CENTER: Dimension.COST_CENTER,
    Aggregate.EXPERIMENT: Dimension.EXPERIMENT,
    Aggregate.USER: Dimension.USER,
}


class AllocationQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of `/allocation/compute`."""

    window: Annotated[str, msgspec.Meta(max_length=64, description="A length, a name, or two times.")]
    aggregate: Annotated[Aggregate, msgspec.Meta(description="What each line is about.")] = Aggregate.NAMESPACE
    step: Annotated[str, msgspec.Meta(max_length=8, description="Length of a set; the whole window without it.")] = ""
    accumulate: Annotated[bool, msgspec.Meta(description="One set for the whole window.")] = False
    include_idle: Annotated[bool, msgspec.Meta(description="Also what no pod held, for users who may read all.")] = (
        False
    )


class AllocationWindow(msgspec.Struct, frozen=True):
    start: str
    end: str


class AllocationLine(msgspec.Struct, frozen=True, rename="camel"):
    """One allocation."""

    name: str
    properties: dict[str, str]
    window: AllocationWindow
    start: str
    end: str
    minutes: float
    gpu_count: float
    gpu_hours: float
    gpu_cost: float
    total_cost: float
    cpu_cost: float = 0.0
    ram_cost: float = 0.0
    pv_cost: float = 0.0
    network_cost: float = 0.0
    load_balancer_cost: float = 0.0
    shared_cost: float = 0.0
    external_cost: float = 0.0
    total_efficiency: float = 0.0


class AllocationReply(msgspec.Struct, frozen=True):
    """Sets of allocations, one for each step."""

    code: int
    status: str
    data: list[dict[str, AllocationLine]]


class OpenCostRoutes:
    """Answers as OpenCost does."""

    def __init__(self, reader: CostReader, *, clock: Callable[[], float] = time.time) -> None:
        self._reader = reader
        self._clock = clock

    def list_routes(self) -> list[Route]:
        """Return the routes."""
        summary = "Allocations in the format of OpenCost"
        paths = ("/allocation/compute", "/allocation")
        return [Route(path, summary, AllocationQuery, AllocationReply, self.compute, "opencost") for path in paths]

    async def compute(self, user: User, query: AllocationQuery) -> AllocationReply:
        """Return the allocations of each step."""
        window = parse_window(query.window, int(self._clock()))
        length_s = window.end_s - window.start_s
        step_s = length_s if query.accumulate else parse_step(query.step, window)
        if -(-length_s // step_s) > _MOST_STEPS:
            raise problems.bad_request(f"step: a window has at most {_MOST_STEPS} steps")
        sets = []
        for start_s in range(window.start_s, window.end_s, step_s):
            part = Window(start_s, min(start_s + step_s, window.end_s))
            found = await self._reader.read(user, part, _DIMENSIONS[query.aggregate])
            sets.append(_make_set(found, query, part))
        return AllocationReply(200, "success", sets)


def _make_set(found: VisibleCosts, query: AllocationQuery, window: Window) -> dict[str, AllocationLine]:
    lines: dict[str, AllocationLine] = {}
    sums: dict[str, Sums] = {}
    for name, each in found.lines.items():
        # An annotation can name a team like a line of its own: that hides no cost.
        is_named = bool(name) and name not in {IDLE, UNALLOCATED}
        key = _CLUSTER if query.aggregate is Aggregate.CLUSTER else name if is_named else UNALLOCATED
        if key in sums:
            sums[key].merge(each)
        else:
            sums[key] = each
    for name, each in sorted(sums.items()):
        lines[name] = _make_line(name, each.ticks, each.ppm_s, query.aggregate, window)
    if query.include_idle and found.books is not None:
        spare = found.books.unallocated + found.books.reserved_idle
        lines[IDLE] = _make_line(IDLE, spare, 0, query.aggregate, window)
    return lines


def _make_line(name: str, ticks: int, ppm_s: int, aggregate: Aggregate, window: Window) -> AllocationLine:
    seconds = window.end_s - window.start_s
    start, end = timestamp.format_time(window.start_s), timestamp.format_time(window.end_s)
    cost = ticks / money.TICKS / money.MICROS
    properties = {"cluster": _CLUSTER}
    if aggregate is not Aggregate.CLUSTER and name not in {IDLE, UNALLOCATED}:
        kind, _, label = aggregate.value.partition(":")
        properties[label or kind] = name
    return AllocationLine(
        name=name,
        properties=properties,
        window=AllocationWindow(start, end),
        start=start,
        end=end,
        minutes=seconds / 60,
        gpu_count=ppm_s / PPM / seconds,
        gpu_hours=ppm_s / PPM / money.HOUR_S,
        gpu_cost=cost,
        total_cost=cost,
    )
