"""The simulated fleet on the real control plane: nodes and GPUNodes, growing and shrinking."""

from __future__ import annotations

import pytest
from tests.support.clusters.fleet import MIXED, NODES

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.local.fleet import apply, faults, gpunodes, models
from kgwe.model.simfleet import inventory

pytestmark = pytest.mark.cluster


async def test_every_node_is_ready_and_offers_its_gpus(client):
    wanted = {node.name: node for node in inventory.expand_fleet(MIXED, NODES)}
    nodes = {node.metadata.name: node for node in await client.list(resources.NODE)}
    assert nodes.keys() == wanted.keys()
    for name, node in nodes.items():
        assert apply.is_open(node)
        assert node.spec.taints == ()
        assert node.status.capacity == wanted[name].capacity()
        assert node.status.allocatable == wanted[name].allocatable()
        assert node.metadata.labels.items() >= inventory.labels(wanted[name]).items()


async def test_every_node_has_its_gpu_node_complete(client):
    wanted = {node.name: gpunodes.build_status(node) for node in inventory.expand_fleet(MIXED, NODES)}
    found = {obj.metadata.name: obj for obj in await client.list(resources.GPU_NODE)}
    assert {name: obj.status for name, obj in found.items()} == wanted
    for obj in found.values():
        assert obj.spec.source == "Simulated"
        assert obj.metadata.ownerReferences[0].kind == "Node"


async def test_applying_again_writes_nothing(client):
    before = {node.metadata.name: node.metadata.resourceVersion for node in await client.list(resources.GPU_NODE)}
    outcome = await apply.apply_fleet(client, MIXED, NODES)
    after = {node.metadata.name: node.metadata.resourceVersion for node in await client.list(resources.GPU_NODE)}
    assert outcome.counts[apply.Verdict.UNCHANGED] == NODES
    assert after == before


async def test_a_fleet_shrinks_and_grows_at_its_end(client):
    outcome = await apply.apply_fleet(client, MIXED, 10)
    assert outcome.counts[apply.Verdict.DELETED] == 6
    kept = {node.name for node in inventory.expand_fleet(MIXED, 10)}
    assert {node.metadata.name for node in await client.list(resources.NODE)} == kept
    assert {node.metadata.name for node in await client.list(resources.GPU_NODE)} == kept
    outcome = await apply.apply_fleet(client, MIXED, 20)
    assert (outcome.counts[apply.Verdict.CREATED], outcome.counts[apply.Verdict.UNCHANGED]) == (10, 10)


async def test_slices_are_published_where_asked_for_follow_faults_and_go_again(client):
    async def listed():
        found = await client.list(resources.RESOURCE_SLICE)
        return {obj.spec.nodeName: {device.text("uuid") for device in obj.spec.devices} for obj in found}

    first = inventory.expand_fleet(MIXED, 10)[0]
    await apply.apply_fleet(client, MIXED, 10)
    assert await listed() == {}
    outcome = await apply.apply_fleet(client, MIXED, 10, dra=True)
    assert outcome.counts[apply.Verdict.UPDATED] == 10
    published = await listed()
    assert published.keys() == {node.name for node in inventory.expand_fleet(MIXED, 10)}
    assert published[first.name] == {card.uuid for card in first.gpus}
    outcome = await apply.apply_fleet(client, MIXED, 10, dra=True)
    assert outcome.counts[apply.Verdict.UNCHANGED] == 10
    await faults.gpu_xid(client, first.name, 3, 79)
    assert (await listed())[first.name] == {card.uuid for card in first.gpus if card.index != 3}
    await faults.clear(client, first.name)
    assert await listed() == published
    await apply.apply_fleet(client, MIXED, 10)
    assert await listed() == {}


async def test_another_model_changes_nodes_of_the_same_name(client):
    await apply.apply_fleet(client, models.load("hgx-a100"), 4)
    nodes = {node.metadata.name: node for node in await client.list(resources.NODE)}
    assert set(nodes) == {"a100-0000", "a100-0001", "a100-spot-0000", "a100-mig-0000"}
    assert {node.metadata.labels["kgwe.nvidia.io/fleet"] for node in nodes.values()} == {"hgx-a100"}


async def test_a_node_that_is_not_simulated_is_left_alone(client):
    await client.create(resources.NODE, {"metadata": {"name": "real"}})
    try:
        await apply.apply_fleet(client, MIXED, 2)
        assert (await client.get(resources.NODE, "real")).metadata.name == "real"
        with pytest.raises(errors.Permanent, match="belongs to no simulated fleet"):
            await faults.node_down(client, "real")
    finally:
        await client.delete(resources.NODE, "real")


async def test_a_node_in_the_way_is_an_error_and_not_overwritten(client):
    name = inventory.expand_fleet(MIXED, NODES + 1)[-1].name
    await client.create(resources.NODE, {"metadata": {"name": name}})
    try:
        with pytest.raises(errors.Permanent, match=f"node {name} exists and belongs to no simulated fleet"):
            await apply.apply_fleet(client, MIXED, NODES + 1)
    finally:
        await client.delete(resources.NODE, name)
