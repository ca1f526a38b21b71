"""The API objects of simulated nodes: complete as built, honest as broken, and as built again when mended."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgwe.kube.api.kgwe import gpunode
from kgwe.local.fleet import faults, gpunodes, models
from kgwe.model.gpu import catalog
from kgwe.model.simfleet import inventory

NODES = {node.pool.name: node for node in inventory.expand_fleet(models.load("mixed"), 64)}
NOW = "2026-11-15T10:00:00Z"


def status(pool: str, *broken: gpunodes.CardFault) -> gpunode.GPUNodeStatus:
    return gpunodes.with_faults(gpunodes.build_status(NODES[pool]), broken)


@pytest.mark.parametrize("pool", NODES)
def test_every_gpu_of_a_node_is_described_in_full(pool):
    built = gpunodes.build_status(NODES[pool])
    assert built.gpuCount == built.healthyGPUs == len(built.gpus) == len(NODES[pool].gpus)
    for index, device in enumerate(built.gpus):
        assert device.index == index
        assert device.uuid.startswith("GPU-")
        assert catalog.find_model(device.model).memory_mib == device.memoryMiB
        assert device.architecture
        assert device.numaNode is not None
        assert device.cpuAffinity
        assert device.pcie
        assert device.pcie.busID
        assert device.health.state == gpunode.HealthState.HEALTHY
        assert device.health.lastXID is None
    assert len({device.uuid for device in built.gpus}) == len(built.gpus)


def test_an_nvswitch_has_links_and_bandwidth_but_no_peers():
    nvlink = gpunodes.build_status(NODES["h100"]).gpus[0].nvlink
    assert nvlink
    assert (nvlink.nvSwitch, nvlink.links, nvlink.maxLinks, nvlink.version) == (True, 18, 18, 4)
    assert nvlink.bandwidthGBps == 450
    assert nvlink.peers == ()


def test_a_mesh_lists_its_peers():
    nvlink = gpunodes.build_status(NODES["v100"]).gpus[0].nvlink
    assert nvlink
    assert not nvlink.nvSwitch
    assert [(peer.gpu, peer.links) for peer in nvlink.peers] == [(1, 1), (2, 1), (3, 2), (4, 2)]


def test_a_card_without_nvlink_says_nothing_about_it():
    assert {device.nvlink for device in gpunodes.build_status(NODES["l40s"]).gpus} == {None}


def test_a_cut_card_lists_its_slices_with_their_places():
    cut = gpunodes.build_status(NODES["a100-mig"]).gpus[0].mig
    assert (cut.capable, cut.enabled) == (True, True)
    assert [(i.profile, i.start, i.size, i.instanceID) for i in cut.instances] == [
        ("3g.40gb", 0, 4, 1),
        ("2g.20gb", 4, 2, 5),
        ("1g.10gb", 6, 1, 13),
    ]


def test_the_fabric_is_the_clique_of_the_label():
    node = NODES["gb200"]
    fabric = gpunodes.build_status(node).fabric
    assert fabric
    assert fabric.clique == inventory.labels(node)["nvidia.com/gpu.clique"]
    assert gpunodes.build_status(NODES["h100"]).fabric is None


def test_unknown_numa_is_left_out_and_node_zero_is_not():
    device = gpunodes.build_status(NODES["h100"]).gpus[0]
    assert msgspec.to_builtins(device)["numaNode"] == 0
    assert "numaNode" not in msgspec.to_builtins(msgspec.structs.replace(device, numaNode=None))


def test_a_node_has_no_taint_and_is_known_to_kwok():
    body = gpunodes.node_manifest(NODES["h100"], now=NOW)
    assert body["metadata"]["annotations"]["kwok.x-k8s.io/node"] == "fake"
    assert body["metadata"]["labels"]["type"] == "kwok"
    assert "taints" not in body["spec"]


# --- faults ---------------------------------------------------------------------------------------------


def test_an_xid_takes_the_card_out_of_service():
    broken = status("h100", gpunodes.Xid(3, 79, NOW))
    assert broken.healthyGPUs == 7
    health = broken.gpus[3].health
    assert (health.state, health.reason, health.lastXID) == ("Unhealthy", "FallenOffTheBus", 79)
    assert faults.list_devices(broken, NODES["h100"].capacity()) == {"nvidia.com/gpu": "7"}
    assert NODES["h100"].allocatable(gpunodes.unhealthy_cards([gpunodes.Xid(3, 79, NOW)]))["nvidia.com/gpu"] == "7"


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 109])
def test_an_xid_of_the_application_leaves_the_card_in_service(xid):
    broken = status("h100", gpunodes.Xid(3, xid, NOW))
    assert broken.healthyGPUs == 8
    assert broken.gpus[3].health.lastXID == xid
    assert gpunodes.unhealthy_cards([gpunodes.Xid(3, xid, NOW)]) == frozenset()


def test_a_contained_error_degrades_the_card_and_leaves_it_in_service():
    broken = status("h100", gpunodes.Xid(3, 94, NOW))
    health = broken.gpus[3].health
    assert (health.state, health.action) == ("Degraded", "RestartApplication")
    assert gpunodes.unhealthy_cards([gpunodes.Xid(3, 94, NOW)]) == frozenset()
    assert faults.list_devices(broken, NODES["h100"].capacity()) == {"nvidia.com/gpu": "8"}


def test_a_broken_card_takes_its_slices_along():
    broken = status("a100-mig", gpunodes.Xid(0, 48, NOW))
    assert faults.list_devices(broken, NODES["a100-mig"].capacity()) == {
        "nvidia.com/gpu": "0",
        "nvidia.com/mig-3g.40gb": "7",
        "nvidia.com/mig-2g.20gb": "7",
        "nvidia.com/mig-1g.10gb": "7",
    }


def test_a_link_between_two_cards_is_down_at_both_ends():
    broken = status("v100", gpunodes.LinkDown(0, 1, peer=3))
    one, other = broken.gpus[0].nvlink, broken.gpus[3].nvlink
    assert one
    assert other
    assert {peer.gpu: peer.links for peer in one.peers}[3] == 1
    assert {peer.gpu: peer.links for peer in other.peers}[0] == 1
    assert (one.links, one.maxLinks, one.bandwidthGBps) == (5, 6, 125)


def test_a_link_into_the_switch_costs_its_card_alone():
    broken = status("h100", gpunodes.LinkDown(2, 3))
    links = [device.nvlink.links for device in broken.gpus if device.nvlink]
    assert links == [18, 18, 15, 18, 18, 18, 18, 18]


card_faults = st.one_of(
    st.builds(gpunodes.Xid, gpu=st.integers(0, 7), xid=st.integers(1, 150), since=st.just(NOW)),
    st.builds(gpunodes.LinkDown, gpu=st.integers(0, 7), links=st.integers(1, 18), peer=st.none() | st.integers(0, 7)),
)


@given(st.sampled_from([name for name, node in NODES.items() if len(node.gpus) == 8]), st.lists(card_faults))
def test_whatever_was_broken_mending_gives_the_node_as_built(pool, broken):
    built = gpunodes.build_status(NODES[pool])
    hurt = gpunodes.with_faults(built, broken)
    assert gpunodes.without_faults(hurt) == built
    for device in hurt.gpus:
        if device.nvlink:
            assert 0 <= device.nvlink.links <= device.nvlink.maxLinks
            assert all(0 <= peer.links <= peer.maxLinks for peer in device.nvlink.peers)


@given(st.lists(card_faults, min_size=1))
def test_faults_survive_the_annotation(broken):
    obj = gpunodes.gpu_node(NODES["h100"], "uid", broken)
    assert gpunodes.read_faults(obj) == broken


def test_no_faults_need_no_annotation():
    assert gpunodes.write_faults([]) is None
    assert gpunodes.read_faults(gpunodes.gpu_node(NODES["h100"], "uid")) == []


def test_the_digest_changes_with_the_node_and_only_then():
    one, other = NODES["h100"], NODES["h100-spot"]
    assert gpunodes.compute_digest(one) == gpunodes.compute_digest(one) != gpunodes.compute_digest(other)


def test_an_api_object_decodes_to_what_was_encoded():
    for node in NODES.values():
        obj = gpunodes.gpu_node(node, "uid", [gpunodes.Xid(1, 79, NOW)])
        assert msgspec.json.decode(msgspec.json.encode(obj.manifest()), type=gpunode.GPUNode) == obj
