"""Fleet models become nodes that placement can work with."""

import numpy as np

from kgwe.local.fleet import models
from kgwe.model.simfleet import inventory
from kgwe.placement.fleet.node import GPU_MILLI
from kgwe.placement.fleet.snapshot import Snapshot
from kgwe.sim.fleet import fleets

LISTED = inventory.expand_fleet(models.load("mixed"), 128)


def test_nodes_of_one_machine_share_one_shape():
    nodes = fleets.build_nodes(LISTED)
    assert len({id(node.shape) for node in nodes}) == len({node.machine.name for node in LISTED})
    assert {node.shape.architecture for node in nodes} == {"Hopper", "Ampere", "Ada", "Blackwell", "Volta"}


def test_amounts_are_what_the_node_offers():
    for node, listed in zip(fleets.build_nodes(LISTED), LISTED, strict=True):
        offered = listed.devices()
        assert node.usable.bit_count() == offered["nvidia.com/gpu"]
        assert sum(map(len, node.cut.values())) == sum(offered.values()) - offered["nvidia.com/gpu"]
        assert node.spot == ("spot" in node.name)
        assert node.labels["kubernetes.io/hostname"] == node.name


def test_prices_are_by_pool_and_unknown_where_nobody_says():
    priced = {
        node.name.rsplit("-", 1)[0]: node.price_micro_per_hour for node in fleets.build_nodes(LISTED, {"h100": 24})
    }
    assert priced["h100"] == 24
    assert priced["h100-spot"] is None


def test_the_network_holds_every_node_once():
    tree = fleets.build_network(LISTED)
    assert sorted(tree.nodes) == sorted(node.name for node in LISTED)
    assert [level.name for level in tree.levels] == ["leaf", "spine", "core", "zone"]
    assert len(tree.nvlink_names) == 2, "two NVL72 among 128 nodes"
    assert (tree.node_gb_per_s > 0).all()


def test_half_full_is_half_full_and_taken_back_is_empty():
    snapshot = Snapshot.from_nodes(fleets.build_nodes(LISTED))
    whole = int(snapshot.milli.sum())
    undos = fleets.half_full(snapshot, seed=3)
    assert 0.49 * whole - 8 * GPU_MILLI <= int(snapshot.milli.sum()) <= 0.5 * whole
    again = Snapshot.from_nodes(fleets.build_nodes(LISTED))
    fleets.half_full(again, seed=3)
    assert np.array_equal(snapshot.milli, again.milli)
    for undo in reversed(undos):
        undo()
    assert int(snapshot.milli.sum()) == whole
