"""Nodes follow from the model alone: stable, unique, dealt by weight, grouped by kind."""

from __future__ import annotations

import collections
import hashlib

import pytest

from kgwe import errors
from kgwe.local.fleet import models
from kgwe.model.simfleet import inventory, model_file

MIXED = models.load("mixed")


def uuids(nodes: tuple[inventory.FleetNode, ...]) -> list[str]:
    return [card.uuid for node in nodes for card in node.gpus]


def test_uuids_are_unique_over_a_thousand_nodes():
    nodes = inventory.expand_fleet(MIXED, 1000)
    everything = uuids(nodes) + [i.uuid for n in nodes for c in n.gpus for i in c.instances]
    assert len(set(everything)) == len(everything) > 6000


def test_uuids_never_change():
    # A changed digest means every simulated card of every user got a new identity: do that only on purpose.
    nodes = inventory.expand_fleet(MIXED, 200)
    digest = hashlib.sha256("".join(uuids(nodes)).encode()).hexdigest()
    assert digest[:16] == "ae809a2736810171"
    assert inventory.expand_fleet(models.load("mixed"), 200) == nodes


@pytest.mark.parametrize("count", [0, 1, 16, 63, 64])
def test_a_smaller_fleet_is_the_beginning_of_a_larger_one(count):
    assert inventory.expand_fleet(MIXED, count) == inventory.expand_fleet(MIXED, 128)[:count]


@pytest.mark.parametrize("rounds", [1, 3])
def test_pools_get_their_share_by_weight(rounds):
    nodes = inventory.expand_fleet(MIXED, 64 * rounds)
    assert collections.Counter(node.pool.name for node in nodes) == {
        pool.name: pool.weight * rounds for pool in MIXED.pools
    }


def test_sixteen_nodes_already_show_every_pool():
    assert {node.pool.name for node in inventory.expand_fleet(MIXED, 16)} == {pool.name for pool in MIXED.pools}


def test_an_nvl72_domain_has_eighteen_trays_and_72_cards():
    nodes = inventory.expand_fleet(models.load("gb200-nvl72"), 90)
    domains = collections.defaultdict(list)
    for node in nodes:
        domains[inventory.labels(node)["nvidia.com/gpu.clique"]].append(node)
    assert [len(members) for members in domains.values()] == [18, 18, 18, 18, 18]
    assert {sum(len(node.gpus) for node in members) for members in domains.values()} == {72}
    for members in domains.values():
        assert len({node.place.leaf for node in members}) == 1


def test_where_nvlink_ends_at_the_node_there_is_no_clique():
    for node in inventory.expand_fleet(models.load("dgx-h100"), 8):
        assert not {"nvidia.com/gpu.clique", "accelerator.topograph.run/domain"} & inventory.labels(node).keys()


def test_the_network_is_a_tree():
    nodes = inventory.expand_fleet(MIXED, 500)
    for child, parent in (("leaf", "spine"), ("spine", "core"), ("core", "zone"), ("zone", "region")):
        above = collections.defaultdict(set)
        for node in nodes:
            above[getattr(node.place, child)].add(getattr(node.place, parent))
        assert {len(parents) for parents in above.values()} == {1}, child


def test_a_leaf_holds_one_kind_of_machine_and_no_more_nodes_than_it_has_ports():
    leaves = collections.defaultdict(list)
    for node in inventory.expand_fleet(MIXED, 500):
        leaves[node.place.leaf].append(node.machine)
    for machines in leaves.values():
        assert len({machine.name for machine in machines}) == 1
        assert len(machines) <= machines[0].nodes_per_leaf


def test_the_dialects_of_topology_labels_agree():
    for node in inventory.expand_fleet(MIXED, 64):
        labels = inventory.labels(node)
        old = "network.topology.nvidia.com"
        assert labels["fabric.topograph.run/tier-0"] == labels[f"{old}/leaf"] == labels[f"{old}/block"]
        assert labels["fabric.topograph.run/tier-1"] == labels[f"{old}/spine"]
        assert labels["fabric.topograph.run/tier-2"] == labels[f"{old}/core"] == labels[f"{old}/datacenter"]
        assert labels.get("accelerator.topograph.run/domain") == labels.get(f"{old}/accelerator")


def test_spot_nodes_are_cheap_nodes_and_no_others():
    for node in inventory.expand_fleet(MIXED, 64):
        labels = inventory.labels(node)
        spot = labels["gpu-autoscaler.io/capacity-type"] == "spot"
        assert labels["karpenter.sh/capacity-type"] == labels["gpu-autoscaler.io/capacity-type"]
        assert labels.get("gpu-orchestrator/cheap-node") == ("true" if spot else None)


def test_capacity_counts_whole_cards_where_nothing_is_cut():
    node = inventory.expand_fleet(models.load("dgx-h100"), 1)[0]
    assert node.capacity()["nvidia.com/gpu"] == "8"
    assert node.allocatable()["nvidia.com/gpu"] == "8"
    assert node.allocatable(frozenset({1, 5}))["nvidia.com/gpu"] == "6"


def test_a_cut_node_offers_slices_and_no_whole_card():
    node = next(node for node in inventory.expand_fleet(MIXED, 64) if node.pool.name == "a100-mig")
    gpus = {name: count for name, count in node.capacity().items() if name.startswith("nvidia.com/")}
    assert gpus == {
        "nvidia.com/gpu": "0",
        "nvidia.com/mig-3g.40gb": "8",
        "nvidia.com/mig-2g.20gb": "8",
        "nvidia.com/mig-1g.10gb": "8",
    }
    assert node.allocatable(frozenset({0}))["nvidia.com/mig-3g.40gb"] == "7"


# --- a model of our own ---------------------------------------------------------------------------------

OWN = """
name: own
description: two cards
region: r
zones: [z]
machines:
  box:
    machine: Box
    gpu: {gpu}
    cpu: "8"
    memory: 64Gi
    storage: 1Ti
    driver: "580.95.05"
    cuda: "13.0"
    cpus: ["0-7"]
    nvlink: {nvlink}
    gpus:
      - {{bus: "00000000:01:00.0", numa: {numa}}}
      - {{bus: "00000000:02:00.0"}}
pools:
  - {{name: {pool}, machine: {machine}, instanceType: box.large, weight: {weight}, mig: {mig}}}
"""
RIGHT = {
    "gpu": "A100-SXM4-80GB",
    "nvlink": "{}",
    "numa": "0",
    "pool": "box",
    "machine": "box",
    "weight": "1",
    "mig": "null",
}


def own(**changes: str) -> model_file.Fleet:
    return model_file.parse(OWN.format(**(RIGHT | changes)), where="own.yaml", include=lambda name: name)


def test_what_a_model_does_not_say_about_wiring_stays_unknown():
    wires = own().pools[0].machine.wiring
    assert wires.slots[1].numa is None
    assert wires.matrix() == [["X", "?"], ["?", "X"]]


def test_a_node_cut_alike_may_offer_its_slices_as_plain_gpus():
    cut = own(mig='{strategy: single, layout: ["3g.40gb@0", "3g.40gb@4"]}')
    node = inventory.expand_fleet(cut, 1)[0]
    labels = inventory.labels(node)
    assert node.devices() == {"nvidia.com/gpu": 4}
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-80GB-MIG-3g.40gb"
    assert (labels["nvidia.com/gpu.count"], labels["nvidia.com/gpu.memory"]) == ("4", "40192")


def test_some_cards_of_a_node_may_stay_whole():
    node = inventory.expand_fleet(own(mig='{gpus: [1], layout: ["7g.80gb@0"]}'), 1)[0]
    assert node.devices() == {"nvidia.com/gpu": 1, "nvidia.com/mig-7g.80gb": 1}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"gpu": "H1000"}, "machines.box: gpu: no model 'H1000' is known; the models are V100"),
        ({"numa": "1"}, r"gpus\[0\].numa: cpus lists 1 NUMA nodes"),
        ({"numa": "yes"}, r"Expected `int \| null`, got `bool` - at `\$.machines\[...\].gpus\[0\].numa`"),
        ({"nvlink": "{mesh: [[0, 2, 1]]}"}, "does not join two of 2 GPUs"),
        ({"nvlink": "{mesh: [[0, 1, 13]]}"}, "a A100-SXM4-80GB has 12 links, 13 are used"),
        ({"nvlink": "{mesh: [[0, 1, 1], [1, 0, 1]]}"}, "every pair of GPUs once"),
        ({"nvlink": "{switchLinks: 4, mesh: [[0, 1, 1]]}"}, "either switchLinks or mesh"),
        ({"nvlink": "{links: 4}"}, "unknown field `links`"),
        ({"pool": "Box_1"}, "a name has at most 40 lower-case letters"),
        ({"machine": "bx"}, "no machine 'bx'; there are box"),
        ({"weight": "0"}, "pools.box.weight: at least 1"),
        ({"mig": '{layout: ["5g.50gb@0"]}'}, "pools.box.mig: a A100-80GB has no MIG profile '5g.50gb'"),
        ({"mig": '{layout: ["4g.40gb@0", "3g.40gb@0"]}'}, "3g.40gb@0 overlaps 4g.40gb@0"),
        ({"mig": '{layout: ["7g.80gb@0"], gpus: [2]}'}, "the machine has GPUs 0 to 1"),
        ({"mig": '{strategy: single, layout: ["4g.40gb@0", "3g.40gb@4"]}'}, "use mixed"),
        ({"gpu": "L40S", "mig": '{layout: ["1g.5gb@0"]}'}, "a L40S cannot be cut"),
    ],
)
def test_a_wrong_model_is_refused_with_the_place_and_the_reason(changes, why):
    with pytest.raises(errors.Permanent, match=why):
        own(**changes)


def test_all_mistakes_are_reported_at_once():
    with pytest.raises(errors.Permanent) as caught:
        own(weight="0", numa="9", nvlink="{mesh: [[0, 0, 1]]}")
    assert str(caught.value).count("\n  - ") == 3


def test_an_unknown_model_is_refused_with_those_there_are():
    with pytest.raises(errors.Permanent, match="no fleet model 'nope'; expected the path of a file or one of dgx-h100"):
        models.load("nope")


@pytest.mark.parametrize("spelling", ["mixed", "models/mixed.yaml", "models/mixed"])
def test_a_model_is_found_by_name_and_by_path_from_any_directory(spelling, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert models.load(spelling).name == "mixed"


def test_a_file_of_ones_own_may_include_the_machines_of_a_known_model(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "{name: mine, description: d, region: r, zones: [z], include: [l40s],"
        " pools: [{name: a, machine: l40s, instanceType: t}]}"
    )
    assert models.load(str(file)).pools[0].machine.model.name == "L40S"
