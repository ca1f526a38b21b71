"""Simulated nodes whose pods have a known use: what each pod does, and what may be said about it.

Each seed has three nodes with random use profiles:

    whole    an idle pod, one that holds memory, a bursty and a busy one; four sharers of an idle and of an active GPU
    slices   a busy, a bursty and an idle slice of one GPU
    ranks    one pod with four GPUs and a gang of four pods; one GPU of each is idle
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from kgwe.forecast.waste.findings import Kind
from kgwe.forecast.waste.states import State
from kgwe.forecast.waste.verdicts import PodFacts
from kgwe.hardware.dcgm import metrics
from kgwe.local.fleet import gpunodes, models
from kgwe.local.fleet.device_assignment import Holder
from kgwe.local.fleet.meter import NodeMeter
from kgwe.model.simfleet import inventory, usage
from kgwe.model.usage.window import PodKey

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kgwe.local.fleet.device_assignment import Unit

#: Pods have run for this long when the simulation begins.
AGE_S: Final = 3600.0
_WHOLE_POOLS: Final = ("h100", "h100-spot", "a100", "a100-spot", "l40s", "l40s-spot", "v100")
_SLICE_POOL: Final = "a100-mig"
_NODES_PER_FLEET: Final = 64
_SHARERS: Final = 4
_RANKS: Final = 4
_CONTAINER: Final = "main"
# Seed of the order in which nodes are taken, so that few seeds have all models too.
_MIXING: Final = 7


@dataclass(frozen=True, slots=True)
class Expectation:
    """What is right to say about a pod."""

    pod: PodKey
    kind: str
    """The scenario, such as `idle`."""
    node: str
    state: State
    findings: frozenset[Kind | None]
    """Kinds of findings that are right; None: that there is none."""
    facts: PodFacts


@dataclass(frozen=True, slots=True)
class Scene:
    """The nodes of one seed."""

    meters: Mapping[str, NodeMeter]
    expectations: tuple[Expectation, ...]


class _Builder:
    """Fills one node with pods."""

    def __init__(self, node: inventory.FleetNode, gpus: int, start_s: float, rng: random.Random) -> None:
        obj = gpunodes.gpu_node(node, "uid", ())
        status = msgspec.structs.replace(obj.status, gpus=obj.status.gpus[:gpus])
        self.meter = NodeMeter(msgspec.structs.replace(obj, status=status), start_s)
        self.gpus = status.gpus
        self.expected: list[Expectation] = []
        self._holders: dict[Unit, Holder] = {}
        self._started_s = start_s - AGE_S
        self._rng = rng

    def hold(self, unit: Unit, pod: str, profile: str) -> None:
        """Give a device to a pod with a use profile."""
        owner = metrics.Owner("team", pod, _CONTAINER)
        self._holders[unit] = Holder(owner, usage.parse_profile(profile), self._started_s, self._rng.getrandbits(32))

    def expect(
        self, pod: str, kind: str, state: State, *findings: Kind | None, devices: int = 1, gang: str = ""
    ) -> None:
        """Say what is right about a pod."""
        key = PodKey("team", pod)
        facts = PodFacts(key, self._started_s, devices, gang)
        self.expected.append(Expectation(key, kind, self.meter.name, state, frozenset(findings or (None,)), facts))

    def add(self, unit: Unit, pod: str, kind: str, profile: str) -> None:
        """Add a pod on one device with the expectation of its kind."""
        state, findings = _EXPECTED[kind]
        self.hold(unit, pod, profile)
        self.expect(pod, kind, state, *findings)

    def finish(self) -> NodeMeter:
        self.meter.set_holders(self._holders)
        return self.meter


_EXPECTED: Final[Mapping[str, tuple[State, tuple[Kind | None, ...]]]] = {
    "idle": (State.IDLE, (Kind.IDLE,)),
    "idle-holding": (State.IDLE_HOLDING, (Kind.IDLE_HOLDING,)),
    "bursty": (State.BURSTY, (None, Kind.UNDERUSED)),
    "busy": (State.BUSY, (None,)),
    "mig-busy": (State.BUSY, (None,)),
    "mig-bursty": (State.BURSTY, (None, Kind.UNDERUSED)),
    "mig-idle": (State.IDLE, (Kind.IDLE,)),
    "sharers-active": (State.UNKNOWN, (None,)),
    "sharers-idle": (State.IDLE, (Kind.IDLE,)),
}


def build_scenes(seeds: Sequence[int], start_s: float) -> list[Scene]:
    """Return the scene of every seed. Every seed has its own nodes."""
    fleet = inventory.expand_fleet(models.load("mixed"), _NODES_PER_FLEET * max(1, -(-len(seeds) // 4)))
    whole = [node for node in fleet if node.pool.name in _WHOLE_POOLS]
    slices = [node for node in fleet if node.pool.name == _SLICE_POOL]
    random.Random(_MIXING).shuffle(whole)  # noqa: S311 -- reproducible, not secret
    scenes = []
    for number, seed in enumerate(seeds):
        rng = random.Random(seed)  # noqa: S311 -- reproducible, not secret
        first, second = whole[2 * number : 2 * number + 2]
        builders = (
            _fill_whole(_Builder(first, 6, start_s, rng), number, rng),
            _fill_slices(_Builder(slices[number % len(slices)], 1, start_s, rng), number, rng),
            _fill_ranks(_Builder(second, 2 * _RANKS, start_s, rng), number, rng),
        )
        meters = {each.meter.name: each.finish() for each in builders}
        scenes.append(Scene(meters, tuple(one for each in builders for one in each.expected)))
    return scenes


def _fill_whole(node: _Builder, number: int, rng: random.Random) -> _Builder:
    node.add((0, None), f"idle-{number}", "idle", _draw_idle(rng))
    node.add((1, None), f"holding-{number}", "idle-holding", f"idle(mem={rng.uniform(0.1, 0.95):.3f})")
    node.add((2, None), f"bursty-{number}", "bursty", _draw_bursty(rng))
    node.add((3, None), f"busy-{number}", "busy", _draw_busy(rng))
    for share in range(_SHARERS):
        node.add((4, -1 - share), f"quiet-share-{number}-{share}", "sharers-idle", "idle(mem=0.003)")
        works = share == number % _SHARERS
        profile = _draw_busy(rng) if works else "idle(mem=0.003)"
        node.add((5, -1 - share), f"share-{number}-{share}", "sharers-active", profile)
    return node


def _fill_slices(node: _Builder, number: int, rng: random.Random) -> _Builder:
    instances = [instance.instanceID for instance in node.gpus[0].mig.instances]
    rng.shuffle(instances)
    node.add((0, instances[0]), f"mig-busy-{number}", "mig-busy", _draw_busy(rng))
    node.add((0, instances[1]), f"mig-bursty-{number}", "mig-bursty", _draw_bursty(rng))
    node.add((0, instances[2]), f"mig-idle-{number}", "mig-idle", _draw_idle(rng))
    return node


def _fill_ranks(node: _Builder, number: int, rng: random.Random) -> _Builder:
    profile, idle = _draw_busy(rng), rng.randrange(_RANKS)
    for rank in range(_RANKS):
        node.hold((rank, None), f"ranks-{number}", "idle" if rank == idle else profile)
    node.expect(f"ranks-{number}", "one-idle-rank", State.BUSY, Kind.IMBALANCE, devices=_RANKS)
    gang, idle = f"team/gang-{number}", rng.randrange(_RANKS)
    for rank in range(_RANKS):
        name, is_idle = f"gang-{number}-{rank}", rank == idle
        node.hold((_RANKS + rank, None), name, "idle" if is_idle else profile)
        state, kind = (State.IDLE, Kind.IMBALANCE) if is_idle else (State.BUSY, None)
        node.expect(name, "gang-with-idle-rank", state, kind, gang=gang)
    return node


def _draw_idle(rng: random.Random) -> str:
    return f"idle(mem={rng.uniform(0, 0.012):.4f})"


def _draw_busy(rng: random.Random) -> str:
    util, memory, noise = rng.uniform(0.6, 0.98), rng.uniform(0.02, 0.95), rng.uniform(0, 0.08)
    return f"constant(util={util:.3f}, mem={memory:.3f}, noise={noise:.3f}, tensor={rng.uniform(0, 0.6):.3f})"


def _draw_bursty(rng: random.Random) -> str:
    """Return a profile with bursts of at least 25 s: shorter ones fall between scrapes."""
    util, base, memory = rng.uniform(0.4, 0.95), rng.uniform(0, 0.1), rng.uniform(0.02, 0.9)
    period, duty = rng.uniform(70, 280), rng.uniform(0.36, 0.6)
    return f"bursty(util={util:.3f}, base={base:.3f}, mem={memory:.3f}, period={period:.0f}s, duty={duty:.3f})"
