"""What the cluster benchmarks ask for, and at what size.

    fill        one-GPU pods, all at once, into empty nodes
    queued      the same through the fair queue: the pods are created behind KGWE's gate
    gangs       gangs that fit one leaf each
    biggang     one gang over many leaves
    impossible  a gang of which only half fits: who says so, and how soon
    fragmented  gangs of two sizes into nodes that are taken in part, at random
    workloads   one-pod GPUWorkloads
    restart     the scheduler starts beside thousands of running pods

Each is run in three ways, the phases: by a binder that does not think, by kube-scheduler alone, by KGWE. The pods are
the same; only KGWE is told which of them belong together. A fourth one, for gangs, tells what a gate costs by itself.
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
    RESTART = "restart"


class Phase(enum.StrEnum):
    """Who is measured."""

    NULL = "null"  # a loop that binds without thinking: what the API server can take
    KUBE_SCHEDULER = "kube-scheduler"  # kube-scheduler alone: the baseline
    # That, and a loop that takes a gate away and puts a node in without thinking: the most that a gate leaves possible.
    GATE = "gate"
    KGWE = "kgwe"  # KGWE, and kube-scheduler asking it


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much of everything."""

    nodes: int = 500
    # Pods that come one by one; in `restart`, those that run already.
    pods: int = 0
    gangs: int = 0
    # Pods of a gang; in `fragmented` every other gang is half as large, of pods half as large.
    gang_size: int = 0
    # Of each pod.
    gpus: int = 1
    # Nodes per leaf; four leaves make a spine.
    leaf: int = 16
    # Share of all GPUs that is taken beforehand; in `impossible`, how many nodes are left free instead.
    taken: float = 0.0
    free_nodes: int = 0

    def check(self) -> None:
        """Permanent when a number makes no sense."""
        for name in ("nodes", "gpus", "leaf"):
            if getattr(self, name) < 1:
                raise errors.Permanent(f"--{name} {getattr(self, name)}: must be at least 1")
        if self.pods < 0 or self.gangs < 0 or (self.gangs and self.gang_size < 1):
            raise errors.Permanent("--pods, --gangs and --gang-size: must not be negative, and a gang has pods")
        if not (self.pods or self.gangs):
            raise errors.Permanent("nothing to do: give --pods or --gangs")
        if not 0 <= self.taken < 1:
            raise errors.Permanent(f"--taken {self.taken}: a share of all GPUs, below 1")


SIZES: Final[Mapping[Scenario, Size]] = {
    Scenario.FILL: Size(pods=1000),
    Scenario.QUEUED: Size(pods=1000),
    Scenario.GANGS: Size(gangs=50, gang_size=8, gpus=8),
    Scenario.BIGGANG: Size(gangs=1, gang_size=256, gpus=8),
    Scenario.IMPOSSIBLE: Size(gangs=1, gang_size=20, gpus=8, free_nodes=10),
    Scenario.FRAGMENTED: Size(gangs=40, gang_size=12, gpus=8, taken=0.45),
    Scenario.WORKLOADS: Size(pods=1000),
    Scenario.RESTART: Size(nodes=1000, pods=10_000, gangs=1, gang_size=8),
}


# Scenarios of pods that come one by one.
_ONE_BY_ONE: Final = frozenset({Scenario.FILL, Scenario.QUEUED, Scenario.WORKLOADS})


def size_of(scenario: Scenario, **given: Any) -> Size:
    """The scenario's own size, but for what was given."""
    return dataclasses.replace(SIZES[scenario], **{name: value for name, value in given.items() if value is not None})


# --- the work -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gang:
    name: str
    pods: int
    # Level it must be inside of, and level it would rather be.
    required: str = ""
    preferred: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """One object to submit."""

    name: str
    gpus: int
    gang: Gang | None = None


def pieces(scenario: Scenario, size: Size) -> list[Piece]:
    """Everything to submit, in this order."""
    if scenario in _ONE_BY_ONE:
        return [Piece(work_name(index), size.gpus) for index in range(size.pods)]
    return list(_members([_gang(scenario, size, number) for number in range(size.gangs)]))


def warm_up(scenario: Scenario, count: int) -> list[Piece]:
    """Small pieces of the same sort, which fit wherever there is any room."""
    if scenario in _ONE_BY_ONE:
        return [Piece(work_name(index), 1) for index in range(count)]
    gangs = [
        (Gang(f"warm-up-{number:04d}", min(4, count - first)), 1) for number, first in enumerate(range(0, count, 4))
    ]
    return list(_members(gangs))


_WISHES: Final[Mapping[Scenario, Mapping[str, str]]] = {
    Scenario.GANGS: {"required": "leaf"},
    Scenario.BIGGANG: {"preferred": "leaf"},
    Scenario.FRAGMENTED: {"preferred": "leaf"},
}


def _gang(scenario: Scenario, size: Size, number: int) -> tuple[Gang, int]:
    """A gang and the GPUs of each of its pods."""
    half = 2 if scenario is Scenario.FRAGMENTED and number % 2 else 1
    pods = max(1, size.gang_size // half)
    return Gang(f"gang-{number:04d}", pods, **_WISHES.get(scenario, {})), max(1, size.gpus // half)


def _members(gangs: Sequence[tuple[Gang, int]]) -> Iterator[Piece]:
    index = 0
    for gang, gpus in gangs:
        for _ in range(gang.pods):
            yield Piece(work_name(index), gpus, gang)
            index += 1


def fits_all(scenario: Scenario) -> bool:
    """Whether everything is expected to be bound."""
    return scenario not in {Scenario.IMPOSSIBLE, Scenario.FRAGMENTED}


# --- what is there already ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Standing:
    """A pod that runs before the clock does."""

    node: str
    gpus: int


def standing(scenario: Scenario, size: Size, gpus: Mapping[str, int], seed: int) -> list[Standing]:
    """Pods to put on nodes (name -> GPUs it offers) beforehand."""
    rng = random.Random(seed)  # noqa: S311 -- the same every time
    if scenario is Scenario.RESTART:
        return _spread(size.pods, gpus)
    if scenario is Scenario.IMPOSSIBLE:
        names = sorted(gpus)
        taken = rng.sample(names, max(0, len(names) - size.free_nodes))
        return [Standing(name, gpus[name]) for name in sorted(taken)]
    return _at_random(round(size.taken * sum(gpus.values())), gpus, rng)


def _spread(pods: int, gpus: Mapping[str, int]) -> list[Standing]:
    """The same on every node: one-GPU pods until one GPU is left, then pods without."""
    names = sorted(gpus)
    placed = []
    for number in range(pods):
        turn, node = divmod(number, len(names))
        placed.append(Standing(names[node], 1 if turn < gpus[names[node]] - 1 else 0))
    return placed


def _at_random(wanted: int, gpus: Mapping[str, int], rng: random.Random) -> list[Standing]:
    """Nodes at random, every other one of them taken whole and the rest by half, until so many GPUs are taken."""
    placed, left = [], wanted
    for number, name in enumerate(rng.sample(sorted(gpus), len(gpus))):
        if left <= 0:
            break
        count = min(left, gpus[name] if number % 2 else gpus[name] // 2)
        if count:
            placed.append(Standing(name, count))
            left -= count
    return placed
