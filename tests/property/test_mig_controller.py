"""Controller, agents, scheduler and pods at random: nobody loses a slice, cards stay legal, and it comes to rest."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.support.fakes.mig_world import World

from kgwe.apps.mig.drains import ANNOTATION
from kgwe.kube.api.kgwe.gpunode import HeldDevices
from kgwe.kube.translate import mig_layouts
from kgwe.local.fleet import mig_layout as cutting
from kgwe.model.gpu import mig

if TYPE_CHECKING:
    from kgwe.kube.api import core

A100 = mig.GEOMETRIES["A100-80GB"]
PROFILES = ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")


class Life(World):
    """A world in which pods are bound to slices that are offered, run and end."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__(2, cards=3, max_concurrent_nodes=dice.choice((1, 4)), cooldown_seconds=dice.choice((0.0, 5.0)))
        self.dice = dice
        self.has: dict[str, tuple[str, str]] = {}  # pod -> (node, UUID of its slice)
        self.count = 0
        self.consenting = dice.choice((0.0, 0.5, 1.0))

    def come(self) -> None:
        self.make(self.dice.choice(PROFILES), consents=self.dice.random() < self.consenting)

    def make(self, profile: str, *, consents: bool) -> None:
        self.count += 1
        self.pod(f"p{self.count}", profile, annotations={ANNOTATION: "consent"} if consents else None)

    def leave(self) -> None:
        """Those who were evicted end, and are made anew by their owners."""
        for name, pod in sorted(self.pods.items()):
            if pod.metadata.deletionTimestamp is not None:
                del self.pods[name], self.has[name]
                self.make(_profile(pod), consents=True)

    def end(self) -> None:
        if self.pods:
            name = self.dice.choice(sorted(self.pods))
            del self.pods[name]
            self.has.pop(name, None)

    def bind(self) -> None:
        """As a scheduler and a kubelet do: any slice that is offered and nobody has."""
        taken = {uuid for _, uuid in self.has.values()}
        for name, pod in sorted(self.pods.items()):
            wanted = _profile(pod)
            free = [] if name in self.has else self._free(wanted, taken)
            if free:
                self.has[name] = node, uuid = self.dice.choice(free)
                taken.add(uuid)
                self.pod(name, wanted, node=node, annotations=pod.metadata.annotations)

    def _free(self, profile: str, taken: set[str]) -> list[tuple[str, str]]:
        return [
            (node, each.uuid)
            for node, obj in self.gpu_nodes.items()
            for device in obj.status.gpus
            for each in device.mig.instances
            if each.profile == profile
            and each.uuid not in taken
            and mig_layouts.is_offered(device, each, mig_layouts.read_layouts(obj).get(device.uuid))
        ]

    def agents(self, *held: str) -> None:
        """Agents that are told by their kubelets, some of them a round late with the report."""
        taken = {uuid for _, uuid in self.has.values()} | set(held)
        for name, obj in list(self.gpu_nodes.items()):
            status = asyncio.run(cutting.apply_layout(obj, frozenset(taken)))
            where = {
                each.uuid: f"{device.index}@{each.start}" for device in status.gpus for each in device.mig.instances
            }
            said = tuple(
                HeldDevices(f"team/{pod}", pod, "", (where[uuid],))
                for pod, (node, uuid) in sorted(self.has.items())
                if node == name and uuid in where
            )
            report: dict[str, Any] = {"held": said} if self.dice.random() < 0.8 else {}
            self._put(msgspec.structs.replace(obj, status=msgspec.structs.replace(status, **report)))

    def check(self) -> None:
        there = {
            each.uuid for obj in self.gpu_nodes.values() for device in obj.status.gpus for each in device.mig.instances
        }
        assert {uuid for _, uuid in self.has.values()} <= there, "a pod lost its slice"
        assert all(self.pods[name].metadata.annotations for name in self.evicted if name in self.pods), (
            "without consent"
        )
        for obj in self.gpu_nodes.values():
            for device in obj.status.gpus:
                names = [f"{each.profile}@{each.start}" for each in device.mig.instances]
                assert mig.find_problems(A100, [mig.parse_placement(A100, name) for name in names]) == []
            for card in obj.spec.cards:
                layout = [mig.parse_placement(A100, text) for text in card.mig.instances]
                assert mig.find_problems(A100, layout) == []


def _profile(pod: core.Pod) -> str:
    return next(iter(pod.spec.containers[0].resources.limits)).removeprefix("nvidia.com/mig-")


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 32))])
def test_nobody_loses_a_slice_and_it_comes_to_rest(seed: int) -> None:
    dice = random.Random(seed)
    world = Life(dice)
    world.strategy(
        shares=dice.choice(({"1g.10gb": 1.0}, {"3g.40gb": 0.5, "1g.10gb": 0.25})),
        allowDynamicReconfig=dice.random() < 0.8,
        rebalanceInterval="20s",
    )
    for _ in range(60):
        doing = world.come, world.come, world.end, world.bind, world.bind, world.round, world.agents, world.leave
        dice.choice(doing)()
        world.check()
    # Nobody comes or goes any more: binding, cutting and deciding end.
    calm = 0
    for _ in range(40):
        world.now += 5
        before = dict(world.has), [world.cuts(number) for number in range(2)], [world.wishes(n) for n in range(2)]
        world.round()
        world.leave()
        world.agents()
        world.bind()
        world.check()
        still = before == (dict(world.has), [world.cuts(n) for n in range(2)], [world.wishes(n) for n in range(2)])
        calm = calm + 1 if still else 0
        if calm >= 8:
            return
    raise AssertionError(f"no rest after all: {world.ready()}")
