"""What the driver says becomes the status of a GPUNode, for every model there is, and nothing known is forgotten."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
from tests.support.machines import memory_driver

from kgwe.agentapi import messages
from kgwe.apps.agent.status import gpunode_status
from kgwe.kube.api.kgwe import gpunode
from kgwe.kube.api.meta import ObjectMeta
from kgwe.kube.translate import topology
from kgwe.local.fleet import gpunodes
from kgwe.model.gpu import driver_data


@pytest.mark.parametrize("node", memory_driver.fleet_nodes(), ids=lambda node: f"{node.fleet_name}-{node.pool.name}")
def test_the_report_of_a_machine_is_its_model(node):
    assert gpunode_status.build_status(memory_driver.machine(node)) == gpunodes.build_status(node)


@pytest.mark.parametrize("node", memory_driver.fleet_nodes(), ids=lambda node: f"{node.fleet_name}-{node.pool.name}")
def test_the_matrix_is_that_of_the_model(node):
    machine = memory_driver.machine(node)
    assert (
        gpunode_status.build_wiring(machine, gpunode_status.build_status(machine)).matrix()
        == node.machine.wiring.matrix()
    )


@pytest.mark.parametrize("node", memory_driver.fleet_nodes(), ids=lambda node: f"{node.fleet_name}-{node.pool.name}")
def test_the_protocol_loses_nothing(node):
    status = gpunode_status.build_status(memory_driver.machine(node))
    told = messages.encode_topology("n", status, age_s=1.0, matrix=[["X"]])
    again = messages.decode_status(type(told).FromString(told.SerializeToString()), messages.encode_health("n", status))
    assert again == status


def test_what_is_not_known_is_left_out():
    machine = memory_driver.machine(memory_driver.node())
    bare = dataclasses.replace(
        machine.devices[0],
        memory_mib=None,
        architecture=None,
        compute_capability=None,
        slot=dataclasses.replace(machine.devices[0].slot, numa=None, cpus="", pcie=()),
        links=(),
    )
    card = gpunode_status.build_status(dataclasses.replace(machine, devices=(bare,), nics=())).gpus[0]
    written = msgspec.to_builtins(card)
    assert {"architecture", "computeCapability", "numaNode", "cpuAffinity", "nvlink"}.isdisjoint(written)
    assert (
        messages.encode_topology("n", gpunode.GPUNodeStatus(gpus=(card,)), age_s=0, matrix=())
        .gpus[0]
        .HasField("numa_node")
        is False
    )


class TestLinksDown:
    def test_into_a_switch_they_count_as_down_though_they_say_nothing(self):
        machine = memory_driver.link_down(memory_driver.machine(memory_driver.node("h100")), 2, 7)
        nvlink = gpunode_status.build_status(machine).gpus[2].nvlink
        assert nvlink is not None
        assert (nvlink.links, nvlink.maxLinks, nvlink.bandwidthGBps) == (17, 18, 425.0)

    def test_between_cards_where_they_led_is_remembered(self):
        whole = memory_driver.machine(memory_driver.node("v100"))
        broken = memory_driver.link_down(whole, 0, 0)
        before = gpunode_status.build_status(whole).gpus[0].nvlink
        after = gpunode_status.build_status(gpunode_status.with_memory(broken, whole)).gpus[0].nvlink
        assert before is not None
        assert after is not None
        assert (after.links, after.maxLinks) == (before.links - 1, before.maxLinks)
        assert after.peers[0].links == before.peers[0].links - 1
        assert after.peers[0].maxLinks == before.peers[0].maxLinks

    def test_memory_lasts_through_many_looks_and_ends_when_the_link_is_back(self):
        whole = memory_driver.machine(memory_driver.node("v100"))
        known = whole
        for _ in range(3):
            known = gpunode_status.with_memory(memory_driver.link_down(whole, 0, 0), known)
        assert gpunode_status.build_status(known).gpus[0].nvlink.maxLinks == 6  # type: ignore[union-attr] # it has links
        assert gpunode_status.with_memory(whole, known) == whole

    @pytest.mark.parametrize("pool", ["v100", "h100"])
    def test_a_restarted_agent_knows_the_wiring_from_what_was_published(self, pool):
        whole = memory_driver.machine(memory_driver.node(pool))
        before = gpunode_status.build_status(whole)
        one = (
            gpunode_status.with_known_links(gpunode_status.build_status(memory_driver.link_down(whole, 0, 0)), before)
            .gpus[0]
            .nvlink
        )
        expected = (
            gpunode_status.build_status(gpunode_status.with_memory(memory_driver.link_down(whole, 0, 0), whole))
            .gpus[0]
            .nvlink
        )
        assert one == expected
        dark = whole
        for link in range(len(whole.devices[0].links)):
            dark = memory_driver.link_down(dark, 0, link)
        none = gpunode_status.with_known_links(gpunode_status.build_status(dark), before).gpus[0].nvlink
        was = before.gpus[0].nvlink
        assert none is not None
        assert was is not None
        assert (none.links, none.maxLinks, none.bandwidthGBps) == (0, was.maxLinks, 0.0)
        assert gpunode_status.with_known_links(before, gpunode_status.build_status(dark)) == before, (
            "less was known before"
        )

    def test_another_card_in_the_slot_inherits_nothing(self):
        whole = memory_driver.machine(memory_driver.node("v100"))
        broken = memory_driver.link_down(whole, 0, 0)
        other = dataclasses.replace(broken.devices[0], uuid="GPU-new")
        broken = dataclasses.replace(broken, devices=(other, *broken.devices[1:]))
        nvlink = gpunode_status.build_status(gpunode_status.with_memory(broken, whole)).gpus[0].nvlink
        assert nvlink is not None
        assert nvlink.maxLinks == 5


def test_a_lost_card_is_still_the_card_it_was():
    whole = memory_driver.machine(memory_driver.node())
    lost = driver_data.Device(whole.devices[3].uuid, 3, "", None, whole.devices[3].slot, is_lost=True)
    broken = dataclasses.replace(whole, devices=(*whole.devices[:3], lost, *whole.devices[4:]))
    for known in (whole, gpunode_status.with_memory(broken, whole)):
        status = gpunode_status.build_status(gpunode_status.with_memory(broken, known))
        assert status.healthyGPUs == 7
        card = status.gpus[3]
        assert (card.health.state, card.health.reason) == ("Unhealthy", "FallenOffTheBus")
        assert card.model == whole.devices[0].product
        assert card.nvlink is not None
        assert card.nvlink.links == 0
        shape = topology.read_topology(gpunode.GPUNode(metadata=ObjectMeta(name="n"), status=status))
        assert shape.nvlinks(3, 0) == 0
        assert shape.nvlinks(1, 0) == 18


def test_without_a_driver_health_is_unknown_and_the_rest_stays():
    status = gpunode_status.build_status(memory_driver.machine(memory_driver.node()))
    bad = msgspec.structs.replace(
        status.gpus[0], health=gpunode.GPUHealth(state=gpunode.HealthState.UNHEALTHY, reason="FallenOffTheBus")
    )
    status = msgspec.structs.replace(status, gpus=(bad, *status.gpus[1:]))
    blind = gpunode_status.without_driver(status, "nobody answers")
    assert [each.health.state for each in blind.gpus] == ["Unhealthy"] + ["Unknown"] * 7
    assert (blind.gpuCount, blind.healthyGPUs) == (8, 0)
    assert [each.nvlink for each in blind.gpus] == [each.nvlink for each in status.gpus]


def test_half_made_instances_are_not_offered():
    machine = memory_driver.machine(memory_driver.node("a100-mig"))
    cut = machine.devices[0].mig
    half = dataclasses.replace(cut.instances[0], uuid="")
    card = dataclasses.replace(machine.devices[0], mig=dataclasses.replace(cut, instances=(half, *cut.instances[1:])))
    status = gpunode_status.build_status(dataclasses.replace(machine, devices=(card,)))
    assert len(status.gpus[0].mig.instances) == len(cut.instances) - 1
