"""Whether a SchedulerConfig's labels are on the nodes."""

import pytest

from kgwe.kube.api.kgwe.schedulerconfig import TopologyLabels, TopologyLevel
from kgwe.kube.translate.label_check import check_labels

LEAF, SPINE = "fabric.topograph.run/tier-0", "fabric.topograph.run/tier-1"


def levels(*keys):
    return TopologyLabels(levels=tuple(TopologyLevel(f"l{number}", each) for number, each in enumerate(keys)))


def test_labels_on_no_node_are_named_and_counted():
    verdict = check_labels(levels(("example.com/rack",)), [{}] * 64)
    assert (verdict.ready, verdict.reason) == (False, "LabelNotFound")
    assert verdict.levels == ("l0",)
    assert verdict.message == (
        "label example.com/rack is on 0 of 64 nodes, so every node counts as its own l0. Correct the label in the"
        " SchedulerConfig"
    )


def test_each_level_that_is_written_out_must_be_there():
    verdict = check_labels(levels(("rack",), ("row", "aisle")), [{"rack": "a"}] * 3)
    assert not verdict.ready
    assert verdict.message.startswith(
        "labels row, aisle are on 0 of 3 nodes, so every node counts as its own l1. Correct the labels"
    )


def test_the_labels_that_are_there_are_suggested():
    verdict = check_labels(TopologyLabels(preset="aws"), [{LEAF: "a", SPINE: "s"}] * 2)
    assert not verdict.ready
    assert "topology.k8s.aws/network-node-layer-3 is on 0 of 2 nodes" in verdict.message
    assert verdict.message.endswith("or set preset topograph, whose labels the nodes have")


def test_a_preset_may_name_levels_that_the_network_lacks():
    verdict = check_labels(TopologyLabels(preset="topograph"), [{LEAF: "a"}] * 2)
    assert (verdict.ready, verdict.reason) == (True, "InUse")


def test_a_zone_alone_is_no_network():
    assert not check_labels(TopologyLabels(preset="topograph"), [{"topology.kubernetes.io/zone": "z"}] * 2).ready


def test_nodes_without_the_label_are_counted():
    verdict = check_labels(levels(("rack",)), [{"rack": "a"}, {}, {"rack": "b"}])
    assert (verdict.ready, verdict.reason) == (True, "NodesWithoutLabel")
    assert "on 2 of 3 nodes" in verdict.message


@pytest.mark.parametrize(
    ("config", "nodes", "declared"),
    [
        (levels(("rack",)), [], 0),  # nothing to judge yet
        (TopologyLabels(preset="aws"), [{}], 4),  # objects describe the network
        (TopologyLabels(), [{}], 0),  # nothing was asked for
    ],
)
def test_what_cannot_be_wrong_is_ready(config, nodes, declared):
    assert check_labels(config, nodes, declared=declared).ready
