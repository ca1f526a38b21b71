"""Shares of cards in the scheduler's state: in whatever order things are heard, and when nodes divide otherwise."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.builders.gang_listener import Listener
from tests.support.builders.held_devices import cards_of, gpu_node
from tests.support.builders.objects import added, changed, make, node

from kgwe.apps.mig import census as mig_census
from kgwe.apps.scheduler.extender.handlers import ExtenderHandlers
from kgwe.cluster.state.cluster_state import ClusterState
from kgwe.cluster.state.running_view import RunningView
from kgwe.kube.api import resources
from kgwe.kube.translate import extender_wire
from kgwe.model.units import amounts

HELD = {"pod": "team/p", "uid": "uid-p", "cards": "4", "replicas": 1}


def divided(name: str = "n1", shares: int = 16, *, label: str = "", gpus: str = "0", **more: str) -> Any:
    made = node(name, gpus, **{amounts.SHARED: str(shares), **more})
    labels = {"nvidia.com/gpu.replicas": label} if label else {}
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, labels=labels))


def pod(name: str = "p", at: str = "n1", *, notes: dict[str, str] | None = None, **wants: str) -> Any:
    limits = {amounts.SHARED: "1"} | {key.replace("_", "."): text for key, text in wants.items()}
    meta = {"name": name, "namespace": "team", "uid": f"uid-{name}", "annotations": notes or {}}
    spec = {"nodeName": at, "containers": [{"name": "c", "resources": {"limits": limits}}]}
    return make(
        resources.POD.type, {"metadata": meta, "spec": spec, "status": {"phase": "Running" if at else "Pending"}}
    )


# --- the truth --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", ["node", "gpunode", "pod"])
def test_what_the_kubelet_says_is_booked_whatever_is_heard_last(last):
    state = ClusterState()
    events = {
        "node": lambda: state.on_node(added(divided())),
        "gpunode": lambda: state.on_gpunode(added(gpu_node(HELD))),
        "pod": lambda: state.on_pod(added(pod())),
    }
    for name in sorted(events, key=lambda name: name == last):
        events[name]()
    assert cards_of(state, "uid-p") == 0b100


def test_and_when_the_device_plugin_comes_late():
    state = ClusterState()
    state.on_node(added(divided(shares=0)))
    state.on_gpunode(added(gpu_node(HELD)))
    state.on_pod(added(pod()))
    state.on_node(changed(divided(shares=0), divided()))
    assert cards_of(state, "uid-p") == 0b100


def test_while_somebody_has_a_share_of_a_card_nobody_gets_it_whole_though_cards_are_no_longer_divided():
    state = ClusterState()
    state.on_node(added(divided()))
    state.on_gpunode(added(gpu_node(HELD)))
    state.on_pod(added(pod()))
    state.on_node(changed(divided(), divided(shares=0, gpus="8")))
    assert int(state.fleet.snapshot.free[0]) == 0b11111011


def test_a_resource_that_stays_with_nothing_to_give_divides_no_card():
    """As kubelets do for a while after a plugin has gone."""
    state = ClusterState()
    made = divided(shares=0, gpus="8")
    there = msgspec.structs.replace(made.status, capacity={amounts.SHARED: "16", amounts.GPU: "8", "pods": "110"})
    state.on_gpunode(added(gpu_node()))
    state.on_node(added(msgspec.structs.replace(made, status=there)))
    assert int(state.fleet.snapshot.free[0]).bit_count() == 8


def test_a_pod_with_a_share_and_a_slice_is_no_victim_and_no_error():
    state = ClusterState()
    slices = "nvidia.com/mig-1g.10gb"
    sliced = {"instanceID": 1, "profile": "1g.10gb", "uuid": "MIG-0", "start": 0, "size": 1, "memoryMiB": 9728}
    cards = [
        {"uuid": f"GPU-{number}", "index": number, "model": "NVIDIA H100 80GB HBM3", "memoryMiB": 80_000,
         "health": {"state": "Healthy"}, "mig": {"capable": True, "enabled": bool(cut), "instances": cut}}
        for number, cut in enumerate(([], [sliced]))
    ]  # fmt: skip
    state.on_gpunode(added(make(resources.GPU_NODE.type, {"metadata": {"name": "n1"}, "status": {"gpus": cards}})))
    state.on_node(added(divided(shares=2, **{slices: "1"})))
    victim = pod(notes={"kgwe.nvidia.io/preemptible": "true"})
    containers = [{"name": "c", "resources": {"limits": {amounts.SHARED: "1", slices: "1"}}}]
    victim = msgspec.structs.replace(victim, spec=make(type(victim.spec), {"nodeName": "n1", "containers": containers}))
    state.on_pod(added(victim))
    assert len(state.fleet.grants("uid-p")) == 2
    assert list(RunningView(state, state.gangs, "").list_preemptible()) == []


# --- gangs that do not say how large a share ----------------------------------------------------------------


def gang_member(name: str) -> Any:
    return pod(name, "", notes={"kgwe.nvidia.io/gang": "g", "kgwe.nvidia.io/gang-size": "2"})


def test_a_gang_waits_for_nodes_that_divide_their_cards():
    heard = Listener()
    for number in range(2):
        heard.state.on_pod(added(gang_member(f"p{number}")))
    heard.catch_up()
    assert not heard.asked
    assert "no node offers" in heard.group.problem
    heard.state.on_node(added(divided("n2", label="2")))
    heard.catch_up()
    assert heard.asked[-1].request.gpus.milli == 500


def test_a_gang_asks_for_what_nodes_offer_now():
    heard = Listener()
    heard.state.on_node(added(divided("n2", 32, label="4")))
    for number in range(2):
        heard.state.on_pod(added(gang_member(f"p{number}")))
    heard.catch_up()
    assert heard.asked[-1].request.gpus.milli == 250
    heard.state.on_node(changed(divided("n2", 32, label="4"), divided("n2", label="2")))
    heard.catch_up()
    assert heard.asked[-1].request.gpus.milli == 500


# --- pods that do not say how large a share ------------------------------------------------------------------


def answers(state: ClusterState) -> ExtenderHandlers:
    return ExtenderHandlers(state, state.gangs, assume_s=5.0)


def asked(state: ClusterState, made: Any, *names: str) -> tuple[list[str], dict[str, str]]:
    state.on_pod(added(made))
    body = {"Pod": msgspec.to_builtins(made), "NodeNames": list(names)}
    reply = msgspec.json.decode(answers(state).filter(extender_wire.Args(msgspec.json.encode(body)))[0])
    failed = (reply.get("FailedNodes") or {}) | (reply.get("FailedAndUnresolvableNodes") or {})
    return reply["NodeNames"], failed


def test_a_pod_gets_a_share_of_another_size_where_the_usual_ones_are_taken():
    state = ClusterState()
    for name, shares, label in (("a", 2, "2"), ("b", 2, "2"), ("c", 4, "4")):
        state.on_node(added(divided(name, shares, label=label)))
    for number, name in enumerate("aabb"):
        state.on_pod(added(pod(f"holder-{number}", name)))
    assert asked(state, pod("late", ""), "a", "b", "c")[0] == ["c"]
    assert asked(state, pod("late", "", notes={"kgwe.nvidia.io/gpu-share": "0.5"}), "a", "b", "c")[0] == []
    for number in range(4):
        state.on_pod(added(pod(f"more-{number}", "c")))
    chosen, failed = asked(state, pod("later", ""), "a", "b", "c")
    assert chosen == []
    assert set(failed.values()) == {"kgwe: GPUShareTaken"}


@pytest.mark.parametrize("shares", ["1", "2"])
def test_what_nobody_here_can_judge_is_left_to_kube_scheduler(shares):
    state = ClusterState()
    state.on_node(added(divided("a", 100, label="100" if shares == "1" else "2")))
    made = pod("p", "", **{"nvidia_com/gpu_shared": shares})
    assert asked(state, made, "a", "b") == (["a", "b"], {})


# --- the MIG controller ---------------------------------------------------------------------------------------


def test_a_card_of_which_somebody_has_a_share_is_not_cut():
    card = {"uuid": "GPU-0", "index": 0, "model": "NVIDIA H100 80GB HBM3", "memoryMiB": 80_000,
            "health": {"state": "Healthy"}, "mig": {"capable": True}}  # fmt: skip
    described = make(resources.GPU_NODE.type, {"metadata": {"name": "n1"}, "status": {"gpus": [card]}})
    held = mig_census.read_held(described, [pod()], ())
    seen = mig_census.read_card(described, described.status.gpus[0], held, mig_census.Clocks(), 0.0)
    assert seen is not None
    assert seen.card.is_taken


def test_a_slice_that_is_shared_is_in_use():
    status = {"held": [{"pod": "team/p", "uid": "uid-p", "slices": ["0@0"], "replicas": 1}]}
    described = make(resources.GPU_NODE.type, {"metadata": {"name": "n1"}, "status": status})
    sharer = pod()
    containers = [{"name": "c", "resources": {"limits": {"nvidia.com/mig-1g.10gb.shared": "1"}}}]
    sharer = msgspec.structs.replace(sharer, spec=make(type(sharer.spec), {"containers": containers}))
    assert mig_census.read_held(described, [sharer], ()).slices == {(0, 0)}
