"""The tree of network domains: places, distances, bandwidths."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
import yaml
from tests.support.machines import reference

from kgwe import errors
from kgwe.model.network import domain_labels, domains
from kgwe.model.network.domains import Place, Speed

LEVELS = ("leaf", "spine", "core")


def clos(spines: int = 2, leaves: int = 2, nodes: int = 2, gb_per_s: float = 50.0) -> list[Place]:
    return [
        Place(f"n{s}{leaf}{n}", (f"l{s}{leaf}", f"s{s}", "c0"), gb_per_s=gb_per_s)
        for s, leaf, n in itertools.product(range(spines), range(leaves), range(nodes))
    ]


def hops(tree: domains.Tree, a: str, b: str) -> int:
    return tree.hops(tree.position[a], tree.position[b])


def gb_per_s(tree: domains.Tree, a: str, b: str) -> float:
    return tree.gb_per_s(tree.position[a], tree.position[b])


def test_every_domain_is_a_slice_of_the_nodes():
    shuffled = sorted(clos(), key=lambda place: place.node[::-1])
    tree = domains.build_tree(shuffled, LEVELS)
    assert tree.nodes == tuple(place.node for place in clos())
    assert [shuffled[i].node for i in tree.order] == list(tree.nodes)
    assert [level.names for level in tree.levels] == [("l00", "l01", "l10", "l11"), ("s0", "s1"), ("c0",)]
    assert tree.nodes[tree.levels[1].nodes(1)] == ("n100", "n101", "n110", "n111")
    assert tree.levels[0].parent.tolist() == [0, 0, 1, 1]
    assert tree.domain_of.tolist() == [[0, 0, 1, 1, 2, 2, 3, 3], [0] * 4 + [1] * 4, [0] * 8]


def test_sums_over_all_domains_of_a_level_are_one_call():
    tree = domains.build_tree(clos(), LEVELS)
    free = np.arange(8)
    assert tree.levels[0].sums(free).tolist() == [1, 5, 9, 13]
    assert tree.levels[1].sums(free).tolist() == [6, 22]
    assert tree.levels[2].sums(free).tolist() == [28]


def test_hops_count_the_switches_between_nodes():
    tree = domains.build_tree([*clos(), Place("far", ("l9", "s9", "c9"))], LEVELS)
    assert hops(tree, "n000", "n000") == 0
    assert hops(tree, "n000", "n001") == 1
    assert hops(tree, "n000", "n010") == 3
    assert hops(tree, "n000", "n100") == 5
    assert hops(tree, "n000", "far") == 7


def test_a_node_without_labels_is_near_nothing_not_even_another_such():
    tree = domains.build_tree([*clos(), Place("x1"), Place("x2")], LEVELS)
    assert hops(tree, "x1", "x2") == hops(tree, "x1", "n000") == hops(tree, "n000", "x1") == tree.unknown_hops
    assert tree.unknown_hops > hops(tree, "n000", "n111")
    assert gb_per_s(tree, "x1", "x2") == domains.UNKNOWN_GB_PER_S
    assert [level.known[tree.domain_of[i, tree.position["x1"]]] for i, level in enumerate(tree.levels)] == [False] * 3


def test_a_missing_leaf_below_a_known_spine_is_as_far_as_the_spine():
    tree = domains.build_tree([*clos(), Place("x1", ("", "s0", "c0")), Place("x2", ("", "s0", "c0"))], LEVELS)
    assert hops(tree, "x1", "n000") == hops(tree, "x1", "x2") == 3


def test_a_leaf_with_no_spine_is_still_a_leaf():
    tree = domains.build_tree([*clos(), Place("x1", ("l9",)), Place("x2", ("l9",)), Place("x3", ("l8",))], LEVELS)
    assert hops(tree, "x1", "x2") == 1
    assert hops(tree, "x1", "x3") == hops(tree, "x1", "n000") == tree.unknown_hops


def test_what_the_others_of_a_leaf_tell_is_believed_unless_they_disagree():
    told = domains.build_tree([*clos(), Place("x", ("l00",))], LEVELS)
    assert hops(told, "x", "n000") == 1
    assert hops(told, "x", "n010") == 3
    same_name = [Place("a", ("rack-1", "s0")), Place("b", ("rack-1", "s1")), Place("x", ("rack-1",))]
    apart = domains.build_tree(same_name, ("leaf", "spine"))
    assert hops(apart, "a", "b") == 5
    assert hops(apart, "x", "a") == hops(apart, "x", "b") == apart.unknown_hops


def test_nodes_are_in_the_order_people_count():
    tree = domains.build_tree([Place(f"node-{i}", ("l",)) for i in (10, 9, 100, 1)], ("leaf",))
    assert tree.nodes == ("node-1", "node-9", "node-10", "node-100")


def test_bandwidth_is_the_slower_node_divided_by_every_oversubscribed_domain_left():
    speeds = {"leaf": Speed(oversubscription=2), "spine": Speed(oversubscription=4)}
    slow = Place("slow", ("l00", "s0", "c0"), gb_per_s=12.5)
    tree = domains.build_tree([*clos(), slow, Place("mute", ("l00", "s0", "c0"))], LEVELS, speeds=speeds)
    assert gb_per_s(tree, "n000", "n000") == math.inf
    assert gb_per_s(tree, "n000", "n001") == 50
    assert gb_per_s(tree, "n000", "n010") == 25
    assert gb_per_s(tree, "n000", "n100") == 6.25
    assert gb_per_s(tree, "n000", "slow") == 12.5
    assert gb_per_s(tree, "n000", "mute") == domains.UNKNOWN_GB_PER_S


def test_a_domain_never_gives_a_node_more_than_it_has():
    tree = domains.build_tree(
        clos(),
        LEVELS,
        speeds={"leaf": Speed(oversubscription=2)},
        domain_speeds={("leaf", "l00"): Speed(gb_per_s=40), ("spine", "s0"): Speed(gb_per_s=10)},
    )
    assert gb_per_s(tree, "n000", "n001") == 40
    assert gb_per_s(tree, "n000", "n010") == 10
    assert gb_per_s(tree, "n010", "n011") == 50
    assert gb_per_s(tree, "n100", "n110") == 25, "the level's oversubscription holds where the domain says nothing"


def test_connected_leaves_are_nearer_than_their_spine():
    tree = domains.build_tree(clos(leaves=3), LEVELS, connected=[("leaf", "l00", "l01"), ("leaf", "l00", "gone")])
    assert hops(tree, "n000", "n010") == hops(tree, "n010", "n000") == 2
    assert hops(tree, "n000", "n020") == 3


def test_nvlink_domains_are_a_dimension_of_their_own():
    places = [Place(f"n{i}", (f"l{i // 4}",), nvlink=f"nvl{i // 3}" if i < 6 else "") for i in range(8)]
    tree = domains.build_tree(places, ("leaf",))
    assert tree.shares_nvlink(3, 4)
    assert hops(tree, "n3", "n4") == 3
    assert not tree.shares_nvlink(6, 7), "two nodes in no NVLink domain share none"
    assert tree.nvlink_of.tolist() == [0, 0, 0, 1, 1, 1, -1, -1]
    assert tree.sum_by_nvlink_domain(np.arange(8)).tolist() == [3, 12]


def test_an_empty_cluster_has_an_empty_tree():
    tree = domains.build_tree([], LEVELS)
    assert tree.nodes == ()
    assert tree.levels[0].sums(np.zeros(0, np.int64)).tolist() == []


def test_a_cluster_without_levels_knows_no_distance():
    tree = domains.build_tree([Place("a"), Place("b")], ())
    assert hops(tree, "a", "b") == tree.unknown_hops


def test_one_node_in_two_places_is_a_mistake_of_ours():
    with pytest.raises(errors.InvariantBroken):
        domains.build_tree([Place("a"), Place("a")], ("leaf",))


def test_levels_go_by_name():
    assert domains.build_tree(clos(), LEVELS).level("spine") == 1
    with pytest.raises(errors.Permanent, match="Levels of this cluster: leaf, spine, core"):
        domains.build_tree(clos(), LEVELS).level("rack")


# --- labels ---------------------------------------------------------------------------------------------

DIALECTS = {
    "topograph": {"fabric.topograph.run/tier-0": "l", "fabric.topograph.run/tier-1": "s"},
    "topographLegacy": {"network.topology.nvidia.com/block": "l", "network.topology.nvidia.com/spine": "s"},
    "aws": {"topology.k8s.aws/network-node-layer-3": "l", "topology.k8s.aws/network-node-layer-2": "s"},
    "gke": {"cloud.google.com/gce-topology-subblock": "l", "cloud.google.com/gce-topology-block": "s"},
    "oci": {"oci.oraclecloud.com/rdma.local_block_id": "l", "oci.oraclecloud.com/rdma.network_block_id": "s"},
    "leafSpine": {"kgwe.nvidia.io/leaf": "l", "kgwe.nvidia.io/spine": "s"},
}


@pytest.mark.parametrize("name", DIALECTS)
def test_every_dialect_tells_leaf_and_spine(name):
    labels = DIALECTS[name] | {"topology.kubernetes.io/zone": "z", "nvidia.com/gpu.clique": "u.1"}
    place = domain_labels.get_preset(name).place("n", labels, 50.0)
    assert place.path[:2] == ("l", "s")
    assert place.path[-1] == "z"
    assert place.nvlink == "u.1"
    assert place.gb_per_s == 50


@pytest.mark.parametrize("name", ["aws", "gke", "oci"])
def test_one_preset_reads_all_clouds(name):
    assert domain_labels.get_preset("cloud").place("n", DIALECTS[name]).path[:2] == ("l", "s")


def test_the_dialect_most_nodes_speak_is_found():
    for name, labels in DIALECTS.items():
        assert domain_labels.detect_preset([labels, labels, {}]) in (name, "cloud")
    assert domain_labels.detect_preset([{}]) == "topograph"


def test_a_label_without_a_value_says_nothing():
    assert domain_labels.TOPOGRAPH.place("n", {"fabric.topograph.run/tier-0": ""}).path[0] == ""


def test_an_unknown_preset_is_refused_with_the_known_ones():
    with pytest.raises(errors.Permanent, match="topographLegacy"):
        domain_labels.get_preset("slurm")


def test_every_nvlink_label_of_a_preset_is_known_to_hand_made_levels():
    used = {key for labels in domain_labels.PRESETS.values() for key in labels.nvlink}
    assert used == set(domain_labels.NVLINK_KEYS)


# --- topograph's own test networks ----------------------------------------------------------------------


def topograph(name: str) -> list[Place]:
    """Nodes of a topograph model, each with the switches above it."""
    model = yaml.safe_load(reference.reference("network", name).read_text())
    parent = {below: name for name, switch in model["switches"].items() for below in switch["switches"]}
    places = []
    for block in model["blocks"]:
        path = [block["switch"]]
        while path[-1] in parent:
            path.append(parent[path[-1]])
        for text in block["nodes"]:
            match = re.fullmatch(r"(.*)\[(\d+)-(\d+)\]", text)
            names = [f"{match[1]}{i}" for i in range(int(match[2]), int(match[3]) + 1)] if match else [text]
            nvlink = next(iter(block["annotations"].values()))
            places += [Place(node, tuple(path), nvlink, 400.0) for node in names]
    return places


def test_the_small_network_is_two_leaves_below_one_switch():
    tree = domains.build_tree(topograph("small-tree.yaml"), LEVELS[:2])
    assert tree.nodes == ("I21", "I22", "I25", "I34", "I35", "I36")
    assert hops(tree, "I21", "I25") == 1
    assert hops(tree, "I21", "I34") == 3


def test_the_medium_network_has_three_levels():
    tree = domains.build_tree(topograph("medium.yaml"), LEVELS)
    assert [len(level) for level in tree.levels] == [4, 2, 1]
    assert [hops(tree, "1101", other) for other in ("1102", "1201", "1301")] == [1, 3, 5]


def test_the_nvl72_network_has_racks_of_eighteen_nodes_that_share_nvlink():
    tree = domains.build_tree(topograph("nvl72.yaml"), LEVELS)
    assert tree.sum_by_nvlink_domain(np.full(72, 4)).tolist() == [72] * 4
    assert tree.levels[0].sums(np.full(72, 4)).tolist() == [72] * 4
    a, b, c = (tree.position[name] for name in ("node1101", "node1118", "node1201"))
    assert tree.shares_nvlink(a, b)
    assert not tree.shares_nvlink(b, c)
    assert tree.hops(b, c) == 3
