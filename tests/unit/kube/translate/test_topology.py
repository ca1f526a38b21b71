"""Wiring and network out of API objects."""

from __future__ import annotations

import pytest

from kgwe.kube.api import schema
from kgwe.kube.api.kgwe import gpunode
from kgwe.kube.api.kgwe.schedulerconfig import SchedulerConfig, TopologyLabels, TopologyLevel
from kgwe.kube.api.kgwe.topologydomain import TopologyDomain, TopologyDomainSpec
from kgwe.kube.api.meta import ObjectMeta
from kgwe.kube.translate import topology
from kgwe.local.fleet import gpunodes, models
from kgwe.model.gpu import bandwidth
from kgwe.model.gpu.topology import Relation
from kgwe.model.network import domain_labels, domains
from kgwe.model.simfleet import inventory


@pytest.mark.parametrize("name", ["dgx-h100", "hgx-a100", "l40s", "gb200-nvl72", "v100-cube", "mixed"])
def test_a_gpunode_tells_the_whole_wiring_of_its_machine(name):
    for node in inventory.expand_fleet(models.load(name), 6):
        assert topology.read_topology(gpunodes.gpu_node(node, "uid")) == node.machine.wiring


def test_links_that_are_down_slow_the_card_they_belong_to():
    node = inventory.expand_fleet(models.load("dgx-h100"), 1)[0]
    broken = topology.read_topology(gpunodes.gpu_node(node, "uid", [gpunodes.LinkDown(gpu=3, links=6)]))
    assert bandwidth.pair_gb_per_s(broken, 0, 3) == 600
    assert bandwidth.pair_gb_per_s(broken, 0, 1) == 900


def test_a_direct_link_that_is_down_leaves_the_host_path():
    node = inventory.expand_fleet(models.load("v100-cube"), 1)[0]
    broken = topology.read_topology(gpunodes.gpu_node(node, "uid", [gpunodes.LinkDown(gpu=0, links=2, peer=3)]))
    assert broken.nvlinks(0, 3) == 0
    assert broken.relation(0, 3) is Relation.NODE


def device(index: int, **more: object) -> gpunode.GPUDevice:
    health = gpunode.GPUHealth(state=gpunode.HealthState.HEALTHY)
    return gpunode.GPUDevice(uuid=f"GPU-{index}", index=index, model="X", memoryMiB=1, health=health, **more)  # type: ignore[arg-type] # keyword pass-through


def gpu_node(*devices: gpunode.GPUDevice, **more: object) -> gpunode.GPUNode:
    status = gpunode.GPUNodeStatus(gpus=devices, **more)  # type: ignore[arg-type] # keyword pass-through
    return gpunode.GPUNode(metadata=ObjectMeta(name="n"), status=status)


def test_a_card_that_is_gone_keeps_its_number_free():
    wiring = topology.read_topology(gpu_node(device(0, numaNode=0), device(2, numaNode=0)))
    assert [slot.numa for slot in wiring.slots] == [0, None, 0]


def test_a_node_without_cards_has_none():
    assert topology.read_topology(gpu_node()).slots == ()


def test_nothing_known_is_nothing_good():
    wiring = topology.read_topology(gpu_node(device(0), device(1)))
    assert wiring.relation(0, 1) is Relation.UNKNOWN


def test_host_bridges_without_a_name_are_not_all_the_same_one():
    def at(switch: str) -> gpunode.PCIeLocation:
        return gpunode.PCIeLocation(switches=(switch,))

    wiring = topology.read_topology(
        gpu_node(*[device(i, numaNode=0, pcie=at(switch)) for i, switch in enumerate(("a", "a", "b"))])
    )
    assert wiring.matrix()[0] == ["X", "PIX", "NODE"]


def test_an_unusual_link_speed_is_kept():
    def link(peer: int) -> gpunode.NVLinkState:
        peers = (gpunode.NVLinkPeer(peer, 4, 4),)
        return gpunode.NVLinkState(version=3, links=4, maxLinks=4, bandwidthGBps=56.25, peers=peers)

    wiring = topology.read_topology(gpu_node(device(0, nvlink=link(1)), device(1, nvlink=link(0))))
    assert bandwidth.pair_gb_per_s(wiring, 0, 1) == 112.5


# --- network --------------------------------------------------------------------------------------------


def test_simulated_nodes_hang_where_their_fleet_put_them():
    nodes = inventory.expand_fleet(models.load("gb200-nvl72"), 40)
    infos = [topology.node_info(n.name, inventory.labels(n), gpunodes.gpu_node(n, "uid")) for n in nodes]
    for preset in ("topograph", "topographLegacy"):
        tree, problems = topology.build_tree(infos, domain_labels.get_preset(preset))
        assert problems == ()
        position = tree.position
        for node in nodes:
            leaf = tree.domain_of[0, position[node.name]]
            assert tree.levels[0].names[leaf] == node.place.leaf
            assert tree.nvlink_names[tree.nvlink_of[position[node.name]]] == node.place.clique
        assert tree.gb_per_s(0, 1) == 200


def test_settings_choose_the_labels():
    assert topology.read_label_keys(TopologyLabels()) == domain_labels.TOPOGRAPH
    assert topology.read_label_keys(TopologyLabels(preset="cloud")) == domain_labels.CLOUD
    own = topology.read_label_keys(TopologyLabels(levels=(TopologyLevel(name="rack", labels=("example.com/rack",)),)))
    assert own.place("n", {"example.com/rack": "r1", "nvidia.com/gpu.clique": "c"}) == domains.Place("n", ("r1",), "c")


@pytest.mark.parametrize("preset", domain_labels.PRESETS)
def test_every_preset_can_be_set(preset):
    assert topology.read_label_keys(TopologyLabels(preset=preset)) == domain_labels.PRESETS[preset]
    spec = schema.structural(SchedulerConfig)["properties"]["spec"]
    assert preset in spec["properties"]["topology"]["properties"]["preset"]["enum"]


def domain(name: str, kind: str, **spec: object) -> TopologyDomain:
    return TopologyDomain(metadata=ObjectMeta(name=name), spec=TopologyDomainSpec(type=kind, **spec))  # type: ignore[arg-type] # keyword pass-through


def info(name: str, **labels: str) -> topology.NodeInfo:
    return topology.NodeInfo(name, labels, gb_per_s=50.0)


def test_objects_name_the_members_the_parents_and_the_speeds():
    objects = [
        domain("s", "Spine", oversubscription=2.0),
        domain("l1", "Leaf", parent="s", nodes=("a", "b"), oversubscription=4.0, bandwidthGBps=40.0),
        domain("l2", "Leaf", parent="s", nodeSelector={"rack": "2"}, connected=("l1",)),
        domain("l3", "Leaf", parent="s", nodes=("d",)),
        domain("nvl", "NVLink", nodes=("a", "c")),
    ]
    nodes = [info("a"), info("b"), info("c", rack="2"), info("d"), info("x", rack="3")]
    tree, problems = topology.build_tree(nodes, domain_labels.TOPOGRAPH, objects)
    at = tree.position
    assert problems == ()
    assert tree.hops(at["a"], at["b"]) == 1
    assert tree.hops(at["a"], at["c"]) == 2
    assert tree.hops(at["a"], at["d"]) == 3
    assert tree.hops(at["a"], at["x"]) == tree.unknown_hops
    assert tree.gb_per_s(at["a"], at["b"]) == 40
    assert tree.gb_per_s(at["a"], at["d"]) == 12.5
    assert tree.shares_nvlink(at["a"], at["c"])
    assert not tree.shares_nvlink(at["a"], at["b"])


def test_an_nvlink_domain_tells_where_it_lies():
    objects = [domain("nvl", "NVLink", parent="l1", nodes=("a",)), domain("l1", "Leaf", nodes=("b",))]
    tree, _ = topology.build_tree([info("a"), info("b")], domain_labels.TOPOGRAPH, objects)
    assert tree.hops(0, 1) == 1


def test_labels_fill_the_levels_no_object_speaks_of():
    objects = [domain("l1", "Leaf", nodes=("a",)), domain("l2", "Leaf", nodes=("b",))]
    keys = {"cloud.google.com/gce-topology-block": "blk"}
    nodes = [topology.NodeInfo("a", keys), topology.NodeInfo("b", keys)]
    tree, _ = topology.build_tree(nodes, domain_labels.GKE, objects)
    assert tree.hops(0, 1) == 3


def test_contradictions_lose_nothing_and_are_told():
    objects = [
        domain("l1", "Leaf", parent="gone", nodes=("a", "b")),
        domain("l2", "Leaf", parent="l1", nodes=("b",)),
        domain("s", "Spine", parent="s"),
    ]
    tree, problems = topology.build_tree([info("a"), info("b")], domain_labels.TOPOGRAPH, objects)
    assert tree.hops(0, 1) == 1
    assert sorted(problems) == [
        "l1: there is no domain 'gone' to be its parent",
        "l2: a Leaf cannot lie in 'l1', a Leaf",
        "node b is claimed by l1, l2; l1 keeps it",
        "s: a Spine cannot lie in 's', a Spine",
    ]
