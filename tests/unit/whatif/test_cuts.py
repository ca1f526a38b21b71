"""What `kgwe explain` says of cards that are being cut while work waits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
from tests.support.fakes.mig_crowd import Crowd
from tests.support.fakes.mig_world import World

from kgwe.apps.whatif import cuts
from kgwe.kube.translate.nodes import FleetReader
from kgwe.model.units import amounts as resources
from kgwe.placement.fleet.constraints import Constraints
from kgwe.placement.fleet.node import Gpus, Request
from kgwe.placement.planning.ask import Ask

LONGEST = "a layout change that takes more than 60 s is rolled back"


def said(world: World, ask: Ask) -> list[str]:
    reader = FleetReader()
    for name, node in world.nodes.items():
        reader.set_node(name, node)
    for name, obj in world.gpu_nodes.items():
        reader.set_gpu_node(name, obj)
    for name, strategy in world.strategies.items():
        reader.set_strategy(name, strategy)
    return list(cuts.lines(reader, ask))


def ask(profile: str = "", **selector: str) -> Ask:
    gpus = Gpus(profile=profile, slices=1) if profile else Gpus(count=1)
    wanted = {f"{resources.MIG_PREFIX}{profile}" if profile else resources.GPU: 1}
    request = Request(gpus, constraints=Constraints(tuple(selector.items())))
    return Ask(owner="w", request=request, amounts=wanted, namespace="team", name="wide")


def test_nothing_is_said_where_nothing_is_cut() -> None:
    assert said(World(), ask("3g.40gb")) == []
    assert said(World(1, "a100"), ask()) == []


def test_a_slice_on_its_way_is_told_with_card_node_and_time() -> None:
    world = World(cards=1)
    (name,) = world.gpu_nodes
    world.strategy(shares={"7g.80gb": 1.0})
    world.round()
    change = "will have layout 7g.80gb@0, requested at 1970-01-01T00:16:41Z"
    expected = f"a slice 7g.80gb is being created: GPU 0 of node {name} {change}"
    assert said(world, ask("7g.80gb")) == [expected, LONGEST]
    assert said(world, ask("1g.10gb")) == [], "it is of no use to others"
    assert said(world, ask("7g.80gb", no="where")) == []
    world.agents()
    assert said(world, ask("7g.80gb")) == [], "it has come"


def test_whole_cards_that_are_held_back_say_so_and_how_far_they_are() -> None:
    world = World(1, "a100", cards=1)
    (name,) = world.gpu_nodes
    world.strategy(shares={"7g.80gb": 1.0})
    seen = msgspec.structs.replace(world.strategies["s"].status, observedGeneration=1)
    world.strategies["s"] = msgspec.structs.replace(world.strategies["s"], status=seen)
    (undecided, _) = said(world, ask())
    assert undecided.startswith(f"GPU 0 of node {name} is withheld: a MIGStrategy selects it")
    world.round()
    (device,) = world.gpu_nodes[name].status.gpus
    cutting: Any = msgspec.structs.replace(device.mig, phase="Cutting", message="enable MIG mode")
    world.set_status(name, gpus=(msgspec.structs.replace(device, mig=cutting),))
    (told, longest) = said(world, ask())
    assert told.endswith("will have layout 7g.80gb@0, requested at 1970-01-01T00:16:41Z (Cutting: enable MIG mode)")
    assert longest == LONGEST


def test_who_was_asked_to_leave_a_card_for_it_is_named() -> None:
    world = Crowd()
    world.workload("wide", "3g.40gb")
    world.round()
    (told, _) = said(world, ask("3g.40gb"))
    drain = "will be partitioned for it after the eviction of team/small, requested at 1970-"
    assert told.startswith(f"GPU 0 of node {world.name} {drain}")
    assert said(world, replace(ask("3g.40gb"), name="other")) == []
