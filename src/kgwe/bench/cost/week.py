"""A simulated week on an elastic cluster, by a simulator that shares no code with replays: the known truth of savings.

Pods wait for nodes that boot; a node that stays empty is returned. The same pods can be run with or without sharing,
packing and spot. Amounts of a GPU are in 112ths: twice seven compute slices by eight memory slices.
"""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from kgwe.costing.money import DAY_S, HOUR_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WHOLE: Final = 112
WEEK_S: Final = 7 * DAY_S
START_S: Final = 1_795_392_000
GPUS: Final = 8
#: name -> (112ths of a GPU, weight of how often)
PARTS: Final = {"1g.10gb": (15, 4), "3g.40gb": (52, 2), "share": (28, 6)}
_GPU_COUNTS: Final = ((1, 10), (2, 4), (4, 2), (8, 1))


@dataclass(frozen=True, slots=True)
class Job:
    """A pod that is submitted once and runs for a time."""

    name: str
    submit_s: int
    run_s: int
    gpus: int
    part: str
    """Empty for whole GPUs."""
    is_spot: bool


@dataclass(frozen=True, slots=True)
class World:
    """How a week is run."""

    shares: bool
    packs: bool
    spot: bool
    boot_s: tuple[int, int] = (150, 270)
    idle_s: int = 600
    seed: int = 0
    """Of the boot times."""


class Seat(NamedTuple):
    """Where a pod ran, and when."""

    job: Job
    node: str
    gpus: tuple[int, ...]
    start_s: int
    end_s: int


class Life(NamedTuple):
    """A node while it was paid for."""

    node: str
    is_spot: bool
    start_s: int
    end_s: int
    kinds: tuple[str, ...]
    """What each GPU was divided for at last; empty: not at all."""


@dataclass(slots=True)
class _Node:
    name: str
    is_spot: bool
    launched_s: int
    ready_s: int
    free: list[int] = field(default_factory=lambda: [WHOLE] * GPUS)
    kinds: list[str] = field(default_factory=lambda: [""] * GPUS)
    pods: int = 0
    epoch: int = 0
    """Rises when it gets a pod: an old order to return it has no effect."""

    def choose(self, job: Job, *, shares: bool) -> tuple[int, ...] | None:
        whole = [number for number in range(GPUS) if self.free[number] == WHOLE]
        if not job.part or not shares:
            count = job.gpus if not job.part else 1
            return tuple(whole[:count]) if len(whole) >= count else None
        size = PARTS[job.part][0]
        mixed = [n for n in range(GPUS) if self.kinds[n] == job.part and self.free[n] >= size and self.free[n] < WHOLE]
        found = [*sorted(mixed, key=lambda n: self.free[n]), *whole]
        return (found[0],) if found else None


def make_jobs(count: int, seed: int) -> list[Job]:
    """Return pods of a week with busy days and quiet nights."""
    rng = random.Random(seed)  # noqa: S311 -- reproducible
    jobs: list[Job] = []
    while len(jobs) < count:
        at_s = rng.randrange(WEEK_S - 6 * HOUR_S)
        hour = at_s % DAY_S / HOUR_S
        if rng.random() > (1.0 if 8 <= hour < 20 else 0.35):  # noqa: PLR2004 -- working hours
            continue
        run_s = int(min(max(rng.lognormvariate(8.4, 1.1), 120), 30 * HOUR_S))
        is_part = rng.random() < 0.6  # noqa: PLR2004
        part = rng.choices(list(PARTS), [weight for _, weight in PARTS.values()])[0] if is_part else ""
        gpus = 0 if is_part else rng.choices(*zip(*_GPU_COUNTS, strict=True))[0]
        jobs.append(Job(f"job-{len(jobs)}", START_S + at_s, run_s, gpus, part, rng.random() < 0.4))  # noqa: PLR2004
    return sorted(jobs, key=lambda each: each.submit_s)


class _Run:
    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(world.seed)  # noqa: S311 -- reproducible
        self._nodes: dict[str, _Node] = {}
        self._numbers = itertools.count()
        self._events: list[tuple[int, int, int, object]] = []
        self.seats: list[Seat] = []
        self.lives: list[Life] = []

    def run(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._add(job.submit_s, 2, job)
        while self._events:
            at_s, kind, _, what = heapq.heappop(self._events)
            if at_s >= START_S + WEEK_S:
                break
            if isinstance(what, Job):
                self._submit(at_s, what)
            elif kind == 0 and isinstance(what, Seat):
                self._end(at_s, what)
            elif isinstance(what, tuple):
                self._return(at_s, *what)
        for node in self._nodes.values():
            self._bury(node, START_S + WEEK_S)

    def _add(self, at_s: int, kind: int, what: object) -> None:
        heapq.heappush(self._events, (at_s, kind, next(self._numbers), what))

    def _submit(self, at_s: int, job: Job) -> None:
        is_spot = job.is_spot and self._world.spot
        order = sorted(
            (each for each in self._nodes.values() if each.is_spot == is_spot),
            key=lambda each: (sum(each.free) if self._world.packs else -sum(each.free), each.launched_s, each.name),
        )
        for node in order:
            gpus = node.choose(job, shares=self._world.shares)
            if gpus is not None:
                self._start(max(at_s, node.ready_s), node, gpus, job)
                return
        node = _Node(f"node-{next(self._numbers)}", is_spot, at_s, at_s + self._rng.randint(*self._world.boot_s))
        self._nodes[node.name] = node
        gpus = node.choose(job, shares=self._world.shares)
        assert gpus is not None  # noqa: S101 -- a pod fits on an empty node
        self._start(node.ready_s, node, gpus, job)

    def _start(self, at_s: int, node: _Node, gpus: tuple[int, ...], job: Job) -> None:
        seat = Seat(job, node.name, gpus, at_s, at_s + job.run_s)
        is_part = bool(job.part) and self._world.shares
        for number in gpus:
            node.free[number] -= PARTS[job.part][0] if is_part else WHOLE
            node.kinds[number] = job.part if is_part else ""
        node.pods += 1
        node.epoch += 1
        self.seats.append(seat)
        self._add(seat.end_s, 0, seat)

    def _end(self, at_s: int, seat: Seat) -> None:
        node = self._nodes[seat.node]
        for number in seat.gpus:
            node.free[number] += PARTS[seat.job.part][0] if seat.job.part and self._world.shares else WHOLE
        node.pods -= 1
        if not node.pods:
            self._add(at_s + self._world.idle_s, 1, (node.name, node.epoch))

    def _return(self, at_s: int, name: str, epoch: int) -> None:
        node = self._nodes.get(name)
        if node is not None and not node.pods and node.epoch == epoch:
            del self._nodes[name]
            self._bury(node, at_s)

    def _bury(self, node: _Node, at_s: int) -> None:
        self.lives.append(Life(node.name, node.is_spot, node.launched_s, at_s, tuple(node.kinds)))


def run_week(jobs: Sequence[Job], world: World) -> tuple[list[Seat], list[Life]]:
    """Return where the pods of a week ran, and the nodes that were paid for."""
    run = _Run(world)
    run.run(jobs)
    return run.seats, run.lives


def sum_cost(lives: Sequence[Life], on_demand: int, spot: int) -> int:
    """Return what nodes cost, in micro-dollars, by two rates per hour."""
    return sum((each.end_s - each.start_s) * (spot if each.is_spot else on_demand) for each in lives) // HOUR_S


def list_by_node(seats: Sequence[Seat]) -> Iterator[tuple[str, list[Seat]]]:
    """Yield the pods of each node."""
    ordered = sorted(seats, key=lambda each: each.node)
    for name, group in itertools.groupby(ordered, key=lambda each: each.node):
        yield name, list(group)
