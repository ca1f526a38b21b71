"""The meter of a cluster reads nodes, pods, GPUNodes and claims, and charges pods for what they held and how long."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.support.builders.claims import claim, resource_slice, uuid
from tests.support.builders.costs import T0

from kgwe.apps.cost import nodes, pods
from kgwe.apps.cost.cluster_meter import ClusterMeter, Stores
from kgwe.apps.cost.devices import KnownDevices
from kgwe.apps.cost.nodes import CostNode
from kgwe.apps.cost.pods import CostPod
from kgwe.costing import books
from kgwe.costing.attribution import AttributionRules
from kgwe.costing.books import Dimension
from kgwe.costing.prices.book import Capacity, Price, PriceBook
from kgwe.costing.prices.commitments import Commitment, CommitmentKind
from kgwe.costing.segments import Bucket, Segment, SegmentKey
from kgwe.costing.split import SplitMethod
from kgwe.kube.api import timestamp
from kgwe.kube.api.core import PodResourceClaimStatus
from kgwe.kube.api.kgwe.gpunode import GPUNode
from kgwe.kube.client.informer import Change

DOLLAR = 1_000_000
BOOK = PriceBook((Price(8 * DOLLAR, instance_type="p4d", region="us"),))
GRACE = 120


def at(seconds: int) -> str:
    return timestamp.format_time(T0 + seconds)


def make_node(name: str = "n1", created: int = 0, gpus: int = 8, **labels: str) -> CostNode:
    resources = {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": str(gpus)}
    known = {"node.kubernetes.io/instance-type": "p4d", "topology.kubernetes.io/region": "us"}
    known["nvidia.com/gpu.product"] = "NVIDIA-A100-SXM4-80GB"
    named = {key.replace("__", "/").replace("_", "."): value for key, value in labels.items()}
    return msgspec.convert(
        {
            "metadata": {"name": name, "creationTimestamp": at(created), "labels": known | named},
            "status": {"capacity": resources, "allocatable": resources},
        },
        CostNode,
    )


def make_pod(name: str, start: int, end: int | None = None, gpus: int = 1, node: str = "n1", **more: Any) -> CostPod:
    resource = more.pop("resource", "nvidia.com/gpu")
    status: dict[str, Any] = {
        "phase": "Running" if end is None else "Succeeded",
        "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": at(start)}],
    }
    if end is not None:
        status["containerStatuses"] = [{"state": {"terminated": {"finishedAt": at(end)}}}]
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": "ml", "uid": f"uid-{name}", **more},
            "spec": {"nodeName": node, "containers": [{"resources": {"requests": {resource: str(gpus)}}}]},
            "status": status,
        },
        CostPod,
    )


class World:
    """A cluster whose objects and clock the test sets, and the ledger of its meter."""

    def __init__(self, *objects: CostNode, book: PriceBook = BOOK) -> None:
        self.now = T0
        self.book = book
        self.nodes: dict[str, CostNode] = {each.metadata.name: each for each in objects}
        self.pods: dict[str, CostPod] = {}
        self.gpu_nodes: dict[str, GPUNode] = {}
        self.claims: dict[str, Any] = {}
        self.ledger: dict[SegmentKey, Segment] = {}
        self.meter = self.start(T0)

    def start(self, settled_s: int) -> ClusterMeter:
        stores = Stores(self.nodes, self.pods, self.gpu_nodes, self.claims)
        self.devices = KnownDevices()
        self.meter = ClusterMeter(
            stores,
            rules=AttributionRules(),
            settled_s=settled_s,
            clock=lambda: self.now,
            devices=self.devices,
            book=self.book,
        )
        return self.meter

    def set_pod(self, pod: CostPod) -> None:
        key = f"ml/{pod.metadata.name}"
        old = self.pods.get(key)
        self.pods[key] = pod
        self.meter.on_pod(Change(key, old, pod))

    def delete_pod(self, name: str) -> None:
        self.meter.on_pod(Change(f"ml/{name}", self.pods.pop(f"ml/{name}"), None))

    def delete_node(self, name: str) -> None:
        self.meter.on_node(Change(name, self.nodes.pop(name), None))

    def count(self, seconds: int) -> books.Books:
        """Count up to a time, and return the books since the start."""
        self.now = T0 + seconds
        for each in self.meter.count(self.now, GRACE, self.book, SplitMethod.GPU_ONLY):
            if each.seconds:
                self.ledger[each.key] = each
            else:
                del self.ledger[each.key]
        return books.keep_books(self.ledger.values(), T0, self.now)

    def costs(self) -> dict[str, int]:
        """Dollar-seconds per hour of each pod."""
        lines = books.attribute(self.ledger.values(), T0, self.now, Dimension.POD)
        return {name.removeprefix("ml/"): sums.ticks // DOLLAR for name, sums in lines.items()}


def test_a_pod_pays_from_its_binding_to_its_end():
    world = World(make_node())
    world.set_pod(make_pod("a", 10))
    world.count(60)
    assert world.costs() == {"a": 50}
    world.now = T0 + 100
    world.set_pod(make_pod("a", 10, 55))  # it had ended before the last count
    found = world.count(120)
    assert world.costs() == {"a": 45}
    assert found.unbalanced == 0
    assert found.fleet == 120 * 8 * DOLLAR


def test_a_pod_that_is_deleted_pays_until_it_is_gone():
    world = World(make_node())
    world.set_pod(make_pod("a", 0, gpus=2))
    world.count(60)
    world.now = T0 + 90
    world.delete_pod("a")
    world.count(180)
    assert world.costs() == {"a": 180}


def test_a_node_costs_from_its_creation_until_it_is_gone():
    world = World()
    world.now = T0 + 50
    world.nodes["n2"] = make_node("n2", created=40)
    world.meter.on_node(Change("n2", None, world.nodes["n2"]))
    world.count(60)
    world.now = T0 + 100
    world.delete_node("n2")
    found = world.count(600)
    assert found.fleet == 60 * 8 * DOLLAR
    assert not list(world.meter.list_states())


def test_a_restart_continues_at_the_last_count():
    world = World(make_node())
    world.set_pod(make_pod("a", 10))
    world.set_pod(make_pod("b", 20))
    world.count(60)
    # The process is down until 500. Meanwhile b ends, c runs and ends, and the pods are still there.
    world.pods["ml/b"] = make_pod("b", 20, 300)
    world.pods["ml/c"] = make_pod("c", 310, 400, gpus=4)
    world.pods["ml/d"] = make_pod("d", 250, 350, gpus=3)  # overlaps with b and c
    world.now = T0 + 500
    world.start(T0 + 60)
    found = world.count(500)
    assert world.costs() == {"a": 490, "b": 280, "c": 360, "d": 300}
    assert found.unbalanced == 0


def test_a_clock_that_goes_back_counts_nothing_twice():
    world = World(make_node())
    world.set_pod(make_pod("a", 0))
    world.count(100)
    world.now = T0 + 20
    assert world.meter.now_s() == T0 + 100


@pytest.mark.parametrize("later", [0, 30])
def test_an_agent_names_the_gpus_of_a_pod(later):
    world = World(make_node())
    gpus = [
        {
            "uuid": f"GPU-{n}",
            "index": n,
            "model": "NVIDIA A100-SXM4-80GB",
            "memoryMiB": 1,
            "health": {"state": "Healthy"},
        }
        for n in range(8)
    ]
    world.set_pod(make_pod("a", 0))
    held = [{"pod": "ml/a", "cards": "20"}]
    gpu_node = msgspec.convert({"metadata": {"name": "n1"}, "status": {"gpus": gpus, "held": held}}, GPUNode)
    world.count(later)
    world.gpu_nodes["n1"] = gpu_node
    world.meter.on_gpu_node(Change("n1", None, gpu_node))
    world.count(60)
    assert world.costs() == {"a": 60}
    assert {each.piece.gpu for each in world.ledger.values() if each.holder} == {"GPU-5"}


def test_sharers_pay_their_share():
    world = World(make_node(gpus=8, nvidia_com__gpu_replicas="4", nvidia_com__gpu_count="2"))
    for name in ("a", "b", "c"):
        world.set_pod(make_pod(name, 0))
    found = world.count(60)
    # Two GPUs of 4 dollars in four shares.
    assert world.costs() == {"a": 60, "b": 60, "c": 60}
    assert found.unallocated == 5 * 60 * DOLLAR


def test_a_slice_without_an_agent_pays_for_its_profile():
    node = make_node()
    capacity = {"cpu": "8", "nvidia.com/mig-3g.40gb": "2"}
    labels = node.metadata.labels | {"nvidia.com/gpu.count": "1"}
    state = nodes.read_state(
        msgspec.convert({"metadata": {"name": "n1", "labels": labels}, "status": {"capacity": capacity}}, CostNode),
        None,
    )
    assert state is not None
    assert [[place.profile for place in gpu.slices] for gpu in state.gpus] == [["3g.40gb", "3g.40gb"]]


def test_labels_of_nodes_say_how_they_are_paid_for():
    for label, value, expected in (
        ("karpenter.sh/capacity-type", "spot", Capacity.SPOT),
        ("karpenter.sh/capacity-type", "reserved", Capacity.RESERVED),
        ("cloud.google.com/gke-spot", "true", Capacity.SPOT),
        ("karpenter.sh/capacity-type", "on-demand", Capacity.ON_DEMAND),
    ):
        node = msgspec.structs.replace(
            make_node(), metadata=msgspec.structs.replace(make_node().metadata, labels={label: value})
        )
        state = nodes.read_state(node, None)
        assert state is not None
        assert state.kind.capacity is expected


def test_a_node_without_gpus_is_not_metered():
    world = World(make_node(gpus=0))
    assert world.count(60).fleet == 0


def test_an_unknown_gpu_is_unpriced_with_a_reason():
    world = World(make_node())
    labels = {"node.kubernetes.io/instance-type": "x9"}
    node = make_node("n3")
    world.nodes["n3"] = msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, labels=labels))
    world.meter.on_node(Change("n3", None, world.nodes["n3"]))
    found = world.count(60)
    assert world.meter.list_unpriced(BOOK)["n3"] == "no on-demand price for x9 in any region"
    assert found.sums(Bucket.FLEET).unpriced_ppm_s >= 8 * 60 * 1_000_000


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        ({"labels": {"kgwe.nvidia.io/workload": "train"}}, "GPUWorkload/train"),
        ({}, "Pod/p"),
        (
            {"ownerReferences": [{"apiVersion": "v1", "kind": "Job", "name": "j", "uid": "1", "controller": True}]},
            "Job/j",
        ),
    ],
)
def test_a_workload_is_what_created_the_pod(meta, expected):
    pod = make_pod("p", 0, **meta)
    assert pods.read_holder(pod, AttributionRules(), {}).workload == expected


def test_a_pod_without_a_node_holds_nothing():
    assert pods.read_times(make_pod("p", 0, node=""), T0) is None


def test_a_broken_quantity_delays_no_other_pod():
    world = World(make_node())
    world.set_pod(make_pod("bad", 0, gpus=1, resource="nvidia.com/gpu"))
    broken = msgspec.convert({"resources": {"requests": {"nvidia.com/gpu": "lots"}}}, pods.Container)
    spec = msgspec.structs.replace(make_pod("bad", 0).spec, containers=(broken,))
    world.set_pod(msgspec.structs.replace(make_pod("bad", 0), spec=spec))
    world.set_pod(make_pod("good", 0))
    world.count(60)
    assert world.costs()["good"] == 60


def test_a_pod_pays_for_the_devices_of_its_claim():
    node = make_node(gpus=0)
    world = World(node)
    for each in world.devices.set_slice("n1-gpu", resource_slice("n1", 2)):
        world.meter.on_devices(each)
    pod = make_pod("p", 10, gpus=0)
    spec = msgspec.structs.replace(pod.spec, resource_claims=(pods.PodClaim("gpu"),))
    made = (PodResourceClaimStatus("gpu", "p-gpu"),)
    status = msgspec.structs.replace(pod.status, resource_claim_statuses=made)
    world.set_pod(msgspec.structs.replace(pod, spec=spec, status=status))
    allocated = claim("p-gpu", (1,), of="uid-p")
    world.claims["ml/p-gpu"] = allocated
    world.meter.on_claim(Change("ml/p-gpu", None, allocated))
    found = world.count(60)
    assert world.costs() == {"p": 200}  # one of two GPUs of 8 dollars, for 50 seconds
    assert {each.piece.gpu for each in world.ledger.values() if each.holder} == {uuid("n1", 1)}
    assert found.unbalanced == 0


def make_pool(kind: CommitmentKind, micros: int, **more: Any) -> Commitment:
    return Commitment("pool", kind, micros, T0 - 1000, T0 + 3600, "vision", **({"instance_type": "p4*"} | more))


def idle_of(world: World) -> dict[str, int]:
    """Reserved idle by owner, in ticks."""
    found: dict[str, int] = {}
    for each in world.ledger.values():
        if each.bucket is Bucket.RESERVED_IDLE:
            name = each.holder.account.team if each.holder else ""
            found[name] = found.get(name, 0) + each.ticks
    return found


def test_a_reservation_that_no_node_uses_is_idle_of_its_owner():
    pool = make_pool(CommitmentKind.RESERVATION, 16 * DOLLAR, count=2)
    world = World(make_node(), book=replace(BOOK, commitments=(pool,)))
    world.set_pod(make_pod("a", 0, gpus=6))
    world.count(600)
    found = world.count(1000)
    assert found.unbalanced == 0
    # The pool costs 16 dollars an hour. One of its two nodes exists; six of its eight GPUs are held.
    assert found.fleet == 16 * DOLLAR * 1000
    assert idle_of(world) == {"vision": 10 * DOLLAR * 1000}
    assert found.unallocated == 0
    # A second node joins, a third finds no room, and the first goes.
    world.now = T0 + 1100
    for name in ("n2", "n3"):
        world.nodes[name] = make_node(name, created=1100)
        world.meter.on_node(Change(name, None, world.nodes[name]))
    assert world.count(1200).fleet == found.fleet + (16 * 200 + 8 * 100) * DOLLAR
    world.delete_node("n1")
    after = world.count(1300)
    assert after.unbalanced == 0
    # n3 has the room that n1 left.
    assert after.fleet == found.fleet + (16 * 300 + 8 * 100) * DOLLAR


def test_a_commitment_ends_to_the_second():
    pool = make_pool(CommitmentKind.RESERVATION, 4 * DOLLAR, count=1)
    world = World(make_node(), book=replace(BOOK, commitments=(pool,)))
    for seconds in (600, 1800, 3500, 3660, 4000):
        found = world.count(seconds)
        assert found.unbalanced == 0
    assert found.fleet == (4 * 3600 + 8 * 400) * DOLLAR
    assert found.unallocated == 8 * 400 * DOLLAR
    assert idle_of(world) == {"vision": 4 * 3600 * DOLLAR}


def test_a_savings_plan_covers_nodes_at_a_discount_while_it_has_room():
    pool = make_pool(CommitmentKind.SAVINGS_PLAN, 10 * DOLLAR, percent_milli=25_000)
    world = World(make_node("n1"), make_node("n2"), book=replace(BOOK, commitments=(pool,)))
    found = world.count(1000)
    assert found.unbalanced == 0
    # n1 takes 6 of the 10 dollars an hour; n2 needs 6, and there are 4: it costs its usual 8.
    assert found.fleet == (10 + 8) * DOLLAR * 1000
    assert idle_of(world) == {"vision": 10 * DOLLAR * 1000}
    assert found.unallocated == 8 * DOLLAR * 1000


def test_a_restart_keeps_commitments_balanced():
    pool = make_pool(CommitmentKind.CAPACITY_BLOCK, 12 * DOLLAR, count=3)
    world = World(make_node("n1"), make_node("n2"), book=replace(BOOK, commitments=(pool,)))
    world.count(600)
    world.start(T0 + 600)
    found = world.count(900)
    assert found.unbalanced == 0
    assert found.fleet == 12 * DOLLAR * 900
