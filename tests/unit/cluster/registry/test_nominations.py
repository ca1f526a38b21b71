"""Room that kube-scheduler makes for a plain pod is nobody else's."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.builders.objects import added, changed, free, leaving, node, pod, removed

from kgwe.cluster.state.cluster_state import ClusterState


def plain(name, at="", nominated="", gpus=8):
    made = pod(name, "", at=at, gpus=gpus, phase="Running" if at else "Pending")
    return msgspec.structs.replace(
        made,
        metadata=msgspec.structs.replace(made.metadata, labels={}),
        status=msgspec.structs.replace(made.status, nominatedNodeName=nominated),
    )


@pytest.fixture
def state():
    made = ClusterState()
    made.on_node(added(node("n1")))
    made.on_node(added(node("n2")))
    made.on_pod(added(plain("victim", at="n1")))
    return made


def test_what_the_victim_leaves_is_kept_until_the_pod_is_bound(state):
    state.on_pod(added(plain("high")))
    state.on_pod(changed(plain("high"), plain("high", nominated="n1")))
    state.on_pod(removed(plain("victim", at="n1")))
    assert free(state) == {"n1": 0, "n2": 8}
    state.on_pod(changed(plain("high", nominated="n1"), plain("high", at="n1", nominated="n1")))
    assert free(state) == {"n1": 0, "n2": 8}
    state.on_pod(removed(plain("high", at="n1", nominated="n1")))
    assert free(state) == {"n1": 8, "n2": 8}


def test_nominated_elsewhere_or_not_at_all_it_keeps_no_longer_what_it_had(state):
    state.on_pod(added(plain("high", nominated="n2")))
    assert free(state) == {"n1": 0, "n2": 0}
    state.on_pod(changed(plain("high", nominated="n2"), plain("high", nominated="n1")))
    assert free(state) == {"n1": 0, "n2": 8}
    state.on_pod(changed(plain("high", nominated="n1"), plain("high")))
    state.on_pod(removed(plain("victim", at="n1")))
    assert free(state) == {"n1": 8, "n2": 8}


def test_a_pod_that_goes_gives_back_what_was_kept_for_it(state):
    state.on_pod(added(plain("high", nominated="n2")))
    state.on_pod(changed(plain("high", nominated="n2"), leaving(plain("high", nominated="n2"))))
    assert free(state)["n2"] == 8
    state.on_pod(added(plain("other", nominated="n2")))
    state.on_pod(removed(plain("other", nominated="n2")))
    assert free(state)["n2"] == 8


def test_pods_without_gpus_are_none_of_our_concern(state):
    state.on_pod(added(plain("cpu", nominated="n2", gpus=0)))
    assert not list(state.ledger.owners())
