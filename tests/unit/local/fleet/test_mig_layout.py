"""Simulated nodes are cut by the agent's own code, and offer what there is."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.support.builders.gpu_pods import NODES, pod

from kgwe.kube.api import core, resources
from kgwe.kube.api.kgwe import gpunode
from kgwe.local.fleet import device_assignment, gpunodes, mig_layout
from kgwe.model.units import amounts


def described(pool: str = "a100-mig", **wishes: gpunode.MIGLayout) -> gpunode.GPUNode:
    """The node, with a layout asked of cards `c0`, `c1` …"""
    obj = gpunodes.gpu_node(NODES[pool], "uid")
    asked = tuple(
        gpunode.CardSpec(obj.status.gpus[int(name.removeprefix("c"))].uuid, layout) for name, layout in wishes.items()
    )
    return msgspec.structs.replace(obj, spec=msgspec.structs.replace(obj.spec, cards=asked))


def layout(*names: str) -> gpunode.MIGLayout:
    return gpunode.MIGLayout(enabled=True, instances=names)


def api_node(pool: str = "a100-mig") -> core.Node:
    manifest = gpunodes.node_manifest(NODES[pool], now="2026-01-01T00:00:00Z")
    return msgspec.convert(manifest, resources.NODE.type)


def names(card: gpunode.GPUDevice) -> list[str]:
    return [f"{each.profile}@{each.start}" for each in card.mig.instances]


@pytest.mark.parametrize("pool", sorted(NODES))
def test_a_node_as_built_offers_what_its_model_says(pool: str) -> None:
    assert mig_layout.compute_resources(api_node(pool), gpunodes.gpu_node(NODES[pool], "uid")) is None


def test_cards_are_cut_and_the_node_offers_the_slices() -> None:
    obj = described(c0=layout("7g.80gb@0"), c1=gpunode.MIGLayout(enabled=False))
    before = obj.status.gpus[2]
    status = asyncio.run(mig_layout.apply_layout(obj, frozenset()))
    assert names(status.gpus[0]) == ["7g.80gb@0"]
    assert not status.gpus[1].mig.enabled
    assert status.gpus[2] == before
    assert {card.mig.phase for card in status.gpus} == {""}
    offered = mig_layout.compute_resources(api_node(), msgspec.structs.replace(obj, status=status))
    assert offered is not None
    for amount in offered:
        assert amount[amounts.GPU] == "1"
        assert amount["nvidia.com/mig-7g.80gb"] == "1"
        assert amount["nvidia.com/mig-1g.10gb"] == "6"
        assert amount["cpu"]


def test_what_is_about_to_change_is_there_but_not_given() -> None:
    obj = described(c0=layout("3g.40gb@0"))
    capacity, allocatable = mig_layout.count_devices(obj)
    assert capacity["nvidia.com/mig-1g.10gb"] - allocatable["nvidia.com/mig-1g.10gb"] == 1
    assert capacity["nvidia.com/mig-3g.40gb"] == allocatable["nvidia.com/mig-3g.40gb"]
    closed = [offer.unit for offer in device_assignment.list_devices(obj, capacity) if not offer.healthy]
    gone = [each.instanceID for each in obj.status.gpus[0].mig.instances if each.profile != "3g.40gb"]
    assert closed == [(0, number) for number in gone]


def test_what_a_pod_has_stays() -> None:
    running = pod("a", resource="nvidia.com/mig-1g.10gb")
    obj = described()
    given = device_assignment.assign(device_assignment.list_devices(obj, NODES["a100-mig"].capacity()), [running], {})
    obj = described(c0=layout("3g.40gb@0", "3g.40gb@4"))
    taken, said = device_assignment.list_holdings(obj, given, {"a": running})
    assert said == (gpunode.HeldDevices("team/a", "a", "", ("0@6",)),)
    status = asyncio.run(mig_layout.apply_layout(obj, taken))
    assert names(status.gpus[0]) == ["3g.40gb@0", "1g.10gb@6"]
    assert status.gpus[0].mig.phase == "Waiting"


def test_a_whole_card_that_a_pod_has_is_cut_when_it_ends() -> None:
    obj = described("h100", c0=layout("7g.80gb@0"))
    assert mig_layout.count_devices(obj)[1] == {amounts.GPU: 7}
    busy = asyncio.run(mig_layout.apply_layout(obj, frozenset({obj.status.gpus[0].uuid})))
    assert (busy.gpus[0].mig.enabled, busy.gpus[0].mig.phase) == (False, "Waiting")
    free = asyncio.run(mig_layout.apply_layout(obj, frozenset()))
    assert names(free.gpus[0]) == ["7g.80gb@0"]
