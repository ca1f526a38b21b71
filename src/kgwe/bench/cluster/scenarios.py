"""The scenarios of the cluster benchmarks and their sizes.

    fill        one-GPU pods, all at once, on empty nodes
    queued      the same through the fair queue: the pods have KGWE's scheduling gate
    gangs       gangs that fit one leaf each
    biggang     one gang over many leaves
    impossible  a gang of which only half fits: time to the refusal
    fragmented  gangs of two sizes on nodes that are partly in use, at random
    workloads   one-pod GPUWorkloads
    jobgangs    gangs that fit one leaf each, as GPUWorkloads whose pods are created by Indexed Jobs
    restart     the scheduler starts among thousands of running pods

Each scenario runs in three phases: a null scheduler that binds without checks, kube-scheduler alone, and KGWE. The
pods are the same, but only KGWE sees which of them form a gang. A fourth phase, for gangs, measures the cost of a
scheduling gate.
"""

from __future__ import annotations

import dataclasses
import enum
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kgwe import errors
from kgwe.bench.cluster.measure.timeline import work_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class Scenario(enum.StrEnum):
    FILL = "fill"
    QUEUED = "queued"
    GANGS = "gangs"
    BIGGANG = "biggang"
    IMPOSSIBLE = "impossible"
    FRAGMENTED = "fragmented"
    WORKLOADS = "workloads"
    JOBGANGS = "jobgangs"
    RESTART = "restart"


class Phase(enum.StrEnum):
    """The scheduler that a phase measures."""

    NULL = "null"  # binds without checks: the limit of the API server
    KUBE_SCHEDULER = "kube-scheduler"  # kube-scheduler alone: the baseline
    # kube-scheduler, with a loop that sets the node and removes the gate without checks: the limit with a gate.
    GATE = "gate"
    KGWE = "kgwe"  # KGWE, called by kube-scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size of a scenario."""

    nodes: int = 500
    # Single pods to submit; in `restart`, pods that already run.
    pods: int = 0
    gangs: int = 0
    # Pods per gang. In `fragmented` every second gang has half as many pods, with half as many GPUs.
    gang_size: int = 0
    # GPUs per pod.
    gpus: int = 1
    # Nodes per leaf; four leaves make a spine.
    leaf: int = 16
    # Fraction of all GPUs in use beforehand; in `impossible`, the number of free nodes instead.
    taken: float = 0.0
    free_nodes: int = 0

    def check(self) -> None:
        """Raise Permanent if a number is not valid."""
        for name in ("nodes", "gpus", "leaf"):
            if getattr(self, name) < 1:
                raise errors.Permanent(f"--{name} {getattr(self, name)}: must be at least 1")
        if self.pods < 0 or self.gangs < 0 or (self.gangs and self.gang_size < 1):
            raise errors.Permanent("--pods, --gangs and --gang-size must not be negative, and gangs need --gang-size")
        if not (self.pods or self.gangs):
            raise errors.Permanent("nothing to do: set --pods or --gangs")
        if not 0 <= self.taken < 1:
            raise errors.Permanent(f"--taken {self.taken}: must be a fraction of all GPUs, below 1")


SIZES: Final[Mapping[Scenario, Size]] = {
    Scenario.FILL: Size(pods=1000),
    Scenario.QUEUED: Size(pods=1000),
    Scenario.GANGS: Size(gangs=50, gang_size=8, gpus=8),
    Scenario.BIGGANG: Size(gangs=1, gang_size=256, gpus=8),
    Scenario.IMPOSSIBLE: Size(gangs=1, gang_size=20, gpus=8, free_nodes=10),
    Scenario.FRAGMENTED: Size(gangs=40, gang_size=12, gpus=8, taken=0.45),
    Scenario.WORKLOADS: Size(pods=1000),
    Scenario.JOBGANGS: Size(gangs=50, gang_size=8, gpus=8),
    Scenario.RESTART: Size(nodes=1000, pods=10_000, gangs=1, gang_size=8),
}


# Scenarios of single pods.
_ONE_BY_ONE: Final = frozenset({Scenario.FILL, Scenario.QUEUED, Scenario.WORKLOADS})


def size_of(scenario: Scenario, **given: Any) -> Size:
    """Return the size of a scenario, with the given values replaced."""
    return dataclasses.replace(SIZES[scenario], **{name: value for name, value in given.items() if value is not None})


# --- pods -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gang:
    name: str
    pods: int
    # The required and the preferred topology level.
    required: str = ""
    preferred: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """One object to submit."""

    name: str
    gpus: int
    gang: Gang | None = None
    # Pods that it runs.
    pods: int = 1


def list_objects(scenario: Scenario, size: Size) -> list[Piece]:
    """Return all objects to submit, in order."""
    if scenario in _ONE_BY_ONE:
        return [Piece(work_name(index), size.gpus) for index in range(size.pods)]
    if scenario is Scenario.JOBGANGS:
        return [Piece(work_name(index), size.gpus, pods=size.gang_size) for index in range(size.gangs)]
    return list(_list_members([_build_gang(scenario, size, number) for number in range(size.gangs)]))


def warm_up(scenario: Scenario, count: int) -> list[Piece]:
    """Return small objects of the same kind, which fit on any node with free GPUs."""
    if scenario in _ONE_BY_ONE:
        return [Piece(work_name(index), 1) for index in range(count)]
    if scenario is Scenario.JOBGANGS:
        return [Piece(work_name(index), 1, pods=4) for index in range(count // 4)]
    gangs = [
        (Gang(f"warm-up-{number:04d}", min(4, count - first)), 1) for number, first in enumerate(range(0, count, 4))
    ]
    return list(_list_members(gangs))


def split_pods(pieces: Sequence[Piece]) -> list[Piece]:
    """Return one piece for each pod."""
    sizes = [piece.gpus for piece in pieces for _ in range(piece.pods)]
    return (
        [Piece(work_name(index), gpus) for index, gpus in enumerate(sizes)] if len(sizes) > len(pieces) else [*pieces]
    )


_WISHES: Final[Mapping[Scenario, Mapping[str, str]]] = {
    Scenario.GANGS: {"required": "leaf"},
    Scenario.BIGGANG: {"preferred": "leaf"},
    Scenario.FRAGMENTED: {"preferred": "leaf"},
}


def _build_gang(scenario: Scenario, size: Size, number: int) -> tuple[Gang, int]:
    """Return the members of a gang, each with its GPUs."""
    half = 2 if scenario is Scenario.FRAGMENTED and number % 2 else 1
    pods = max(1, size.gang_size // half)
    return Gang(f"gang-{number:04d}", pods, **_WISHES.get(scenario, {})), max(1, size.gpus // half)


def _list_members(gangs: Sequence[tuple[Gang, int]]) -> Iterator[Piece]:
    index = 0
    for gang, gpus in gangs:
        for _ in range(gang.pods):
            yield Piece(work_name(index), gpus, gang)
            index += 1


def fits_all(scenario: Scenario) -> bool:
    """Return whether all pods are expected to be bound."""
    return scenario not in {Scenario.IMPOSSIBLE, Scenario.FRAGMENTED}


# --- pods created beforehand -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Standing:
    """A pod that runs before the timed part."""

    node: str
    gpus: int


def list_running_pods(scenario: Scenario, size: Size, gpus: Mapping[str, int], seed: int) -> list[Standing]:
    """Return the pods to create beforehand on nodes (name -> GPUs it offers)."""
    rng = random.Random(seed)  # noqa: S311 -- the same every time
    if scenario is Scenario.RESTART:
        return _spread(size.pods, gpus)
    if scenario is Scenario.IMPOSSIBLE:
        names = sorted(gpus)
        taken = rng.sample(names, max(0, len(names) - size.free_nodes))
        return [Standing(name, gpus[name]) for name in sorted(taken)]
    return _fill_at_random(round(size.taken * sum(gpus.values())), gpus, rng)


def _spread(pods: int, gpus: Mapping[str, int]) -> list[Standing]:
    """Return the same pods for each node: one-GPU pods until one GPU is free, then pods without GPUs."""
    names = sorted(gpus)
    placed = []
    for number in range(pods):
        turn, node = divmod(number, len(names))
        placed.append(Standing(names[node], 1 if turn < gpus[names[node]] - 1 else 0))
    return placed


def _fill_at_random(wanted: int, gpus: Mapping[str, int], rng: random.Random) -> list[Standing]:
    """Return pods on random nodes, alternately of a whole node and half a node, until the given number of GPUs is in
    use.
    """
    placed, left = [], wanted
    for number, name in enumerate(rng.sample(sorted(gpus), len(gpus))):
        if left <= 0:
            break
        count = min(left, gpus[name] if number % 2 else gpus[name] // 2)
        if count:
            placed.append(Standing(name, count))
            left -= count
    return placed
