"""The fleet and the pods of `kgwe bench shares`, and what pods leave of it."""

import pytest

from kgwe import errors
from kgwe.bench.cluster.shared_gpus import Options, SharedNode, SharingPod, Usage, make_nodes, make_pods


def test_the_same_seed_gives_the_same_pods_and_they_ask_for_more_than_there_is():
    nodes = make_nodes(16)
    pods = make_pods(nodes, 1)
    assert pods == make_pods(nodes, 1) != make_pods(nodes, 2)
    for pieces in (0, 2, 4):
        there = sum(node.gpus for node in nodes if node.pieces == pieces)
        assert sum(pod.gpu for pod in pods if pod.pieces == pieces) > there


def test_free_gpus_without_cpu_are_stranded():
    nodes = [SharedNode("n", gpus=2, cpu_milli=2000, pieces=4)]
    small, hungry = SharingPod("small", 500, 4), SharingPod("hungry", 1000, 4)
    usage = Usage(nodes, [small, hungry])
    assert (usage.used_gpus(), usage.usable_gpus(), usage.stranded_gpus()) == (0.0, 1.0, 1.0)
    usage.add(hungry, "n")
    assert (usage.placed, usage.used_gpus(), usage.usable_gpus(), usage.stranded_gpus()) == (1, 0.25, 0.5, 1.25)


def test_options_that_make_no_sense_are_refused():
    for bad in (Options(nodes=0), Options(strategies=("best",)), Options(strategies=())):
        with pytest.raises(errors.Permanent):
            bad.check()
