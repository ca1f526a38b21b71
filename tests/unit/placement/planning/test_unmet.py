"""What no node could ever run is answered with the requirement, the largest available value and a fix."""

from __future__ import annotations

import pytest
from tests.support.machines import reference

from kgwe.kube.translate import podrequest
from kgwe.model.gpu import mig
from kgwe.model.gpu.topology import Slot, Wiring
from kgwe.placement.fleet.constraints import Constraints, Operator, Requirement
from kgwe.placement.fleet.node import Gpus, Node, Preference, Request, Shape, SpotPolicy
from kgwe.placement.fleet.snapshot import Snapshot
from kgwe.placement.fleet.taints import Taint, Toleration
from kgwe.placement.planning.exclusions import list_exclusions, list_unready
from kgwe.placement.planning.unmet import find_unmet
from kgwe.placement.pod.fit import Fitter
from kgwe.placement.refusal import Reason

H100 = Shape(reference.nvswitch(8), "NVIDIA-H100-80GB-HBM3", 81_559, "Hopper", geometry=mig.GEOMETRIES["H100-80GB"])
L40S = Shape(reference.pcie_pairs(4), "NVIDIA-L40S", 46_068, "Ada")
INFRA = Taint("dedicated", "infra", "NoSchedule")


def node(name, shape=H100, **more):
    return Node(name, shape, 64_000, 512 * 2**30, **more)


NODES = (
    node("h1", labels={"zone": "a"}),
    node("h2", labels={"zone": "b"}),
    node("l1", L40S),
    node("infra", taints=(INFRA,), labels={"pool": "infra"}),
    node("old", ready=False, cordoned=True, labels={"pool": "old"}),
)


def text(request, *nodes):
    found = find_unmet(Fitter(Snapshot.from_nodes(nodes or NODES)), request)
    return "" if found is None else found.text


def one(**needs):
    return Request(Gpus(count=needs.pop("count", 1)), **needs)


def on(**selector):
    return Constraints(selector=tuple(selector.items()))


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (one(), ""),
        (one(count=16), "Each pod asks for 16 GPUs; the largest node has 8. Set gpusPerPod to 8 or less."),
        (
            one(model="H10O"),
            (
                "No GPU has model H10O; did you mean H100? Set gpuModel to H100 (models here: NVIDIA-H100-80GB-HBM3,"
                " NVIDIA-L40S)."
            ),
        ),
        (
            one(model="MI300X"),
            "No GPU has model MI300X. Change gpuModel (models here: NVIDIA-H100-80GB-HBM3, NVIDIA-L40S).",
        ),
        (one(architecture="Blackwell"), "No GPU has architecture Blackwell (here: Ada, Hopper). Change architecture."),
        (
            one(min_memory_gb=200),
            (
                "Each GPU needs 200 GB of memory (minMemoryGB); the largest GPU that matches has 85 GB (79.6 GiB). Set"
                " minMemoryGB to 85 or less."
            ),
        ),
        (
            one(cpu_milli=128_000),
            (
                "Each pod requests 128 cores (all containers together); the largest node that matches has 64 cores."
                " Request 64 cores or less."
            ),
        ),
        (
            one(memory_bytes=2**41),
            (
                "Each pod requests 2048 GiB of memory (all containers together); the largest node that matches has"
                " 512 GiB. Request 512Gi or less."
            ),
        ),
        (
            one(spot=SpotPolicy.REQUIRE),
            "Only spot nodes are allowed (spotPolicy: Require), but no node is one. Set spotPolicy to Allow.",
        ),
        (
            one(constraints=on(zone="mars")),
            "No GPU node has label zone=mars (values here: a, b). Change nodeSelector, or label a node.",
        ),
        (
            one(constraints=on(disk="ssd")),
            "No GPU node has label disk=ssd (no GPU node has a label disk). Change nodeSelector, or label a node.",
        ),
        (
            one(constraints=on(zone="a", pool="infra")),
            "No GPU node has all labels of nodeSelector (zone=a, pool=infra). Change nodeSelector.",
        ),
        (
            one(constraints=on(pool="infra")),
            (
                "The only matching node has an untolerated taint dedicated=infra:NoSchedule (infra). Add a toleration"
                " to the pod template."
            ),
        ),
        (one(constraints=Constraints(selector=(("pool", "infra"),), tolerations=(Toleration(operator="Exists"),))), ""),
        (
            one(constraints=on(pool="old")),
            ("The only matching node is cordoned (old). Run `kubectl uncordon old`."),
        ),
        (
            one(constraints=Constraints(affinity=((Requirement("zone", Operator.IN, ("c",)),),))),
            "No GPU node matches the required node affinity. Change nodeAffinity.",
        ),
        (
            one(count=4, model="L40S", preference=Preference.NVLINK_REQUIRED),
            (
                "No 4 GPUs on node l1 are connected by NVLink. Set topology.preference to NVLinkOptimal, or set"
                " gpuModel to NVIDIA-H100-80GB-HBM3, which meets it."
            ),
        ),
        (
            one(count=4, model="L40S", min_bandwidth_gbps=600, preference=Preference.NVLINK_OPTIMAL),
            (
                "No 4 GPUs on node l1 are connected with at least 600 GB/s; the fastest 4 have 2.7 GB/s. Set"
                " topology.minBandwidthGBps to 2.7 or less, or set gpuModel to NVIDIA-H100-80GB-HBM3, which"
                " meets it."
            ),
        ),
        (
            one(count=4, model="L40S", min_bandwidth_gbps=600, preference=Preference.NVLINK_REQUIRED),
            (
                "No 4 GPUs on node l1 are connected by NVLink with at least 600 GB/s. Set topology.preference to"
                " NVLinkOptimal and set topology.minBandwidthGBps to 2.7 or less, or set gpuModel to"
                " NVIDIA-H100-80GB-HBM3, which meets it."
            ),
        ),
        (
            one(count=4, model="H100", min_bandwidth_gbps=2000, preference=Preference.NVLINK_REQUIRED),
            (
                "No 4 GPUs on any of the nodes h1, h2 are connected by NVLink with at least 2000 GB/s; the fastest 4"
                " have 900 GB/s. Set topology.minBandwidthGBps to 900 or less."
            ),
        ),
        (
            one(count=8, model="L40S"),
            "Each pod asks for 8 GPUs; the largest node that matches has 4. Set gpusPerPod to 4 or less.",
        ),
        (one(count=11), "Each pod asks for 11 GPUs; the largest node has 8. Ask for at most 8 GPUs per pod."),
        (
            Request(Gpus(profile="3g.40gb", slices=1)),
            "No GPU has a 3g.40gb slice (no GPU is partitioned). Create a MIGStrategy that makes such slices.",
        ),
    ],
)
def test_the_unmet_requirement_is_named_with_a_fix(request_, expected):
    assert text(request_) == expected


def test_shares_name_what_nodes_offer():
    half = Request(Gpus(milli=500))
    assert text(half, node("a", shares_per_gpu=4), node("b", shares_per_gpu=0)) == (
        "No node offers shares of 1/2 GPU; nodes here offer 1/4 GPU. Set share to 0.25."
    )
    assert text(half, node("b", shares_per_gpu=0)).startswith("No node offers GPU shares, and 1/2 GPU was requested.")
    assert text(one(), node("a", shares_per_gpu=4)).startswith("All GPUs that match are offered as shares")


def test_slices_name_the_profiles_there_are():
    small = next(each.profiles["1g.10gb"] for each in mig.GEOMETRIES.values() if "1g.10gb" in each.profiles)
    cut = {0: (mig.Placement(small, 0), mig.Placement(small, 1))}
    nodes = (node("a", cut=cut),)
    assert text(Request(Gpus(profile="1g.10gb", slices=2)), *nodes) == ""
    assert text(Request(Gpus(profile="1g.10gb", slices=3)), *nodes) == (
        "Each pod asks for 3 slices of 1g.10gb; the largest node has 2. Ask for 2 or fewer per pod."
    )
    assert "(slices here: 1g.10gb)" in text(Request(Gpus(profile="3g.40gb", slices=1)), *nodes)


def test_a_profile_that_no_gpu_model_has_is_answered_with_the_nearest():
    odd = Request(Gpus(profile="9g.99gb", slices=1))
    assert text(odd) == (
        "No GPU model here has MIG profile 9g.99gb (nearest profiles: 7g.80gb, 4g.40gb, 3g.40gb, 2g.20gb +2)."
        " Set mig.profile to one of these, such as 7g.80gb."
    )
    assert text(odd, node("l1", L40S)) == (
        "No GPU that matches can be partitioned with MIG (models here: NVIDIA-L40S)."
        " Ask for whole GPUs or a share instead of a MIG slice."
    )


def test_a_pod_is_answered_with_what_a_pod_has():
    def said(request):
        found = find_unmet(Fitter(Snapshot.from_nodes(NODES)), request, podrequest.FIELDS)
        return found and found.fix

    own = "annotation kgwe.nvidia.io/"
    assert said(one(count=16)) == "Request nvidia.com/gpu: 8 or less, and create several pods"
    assert said(one(model="H10O")).startswith(f"Set {own}gpu-model to H100")
    assert said(one(min_memory_gb=200)) == f"Set {own}min-memory-gb to 85 or less"
    assert said(one(spot=SpotPolicy.REQUIRE)) == f"Set {own}spot-policy to Allow"
    assert said(one(constraints=on(pool="infra"))) == "Add a toleration to the pod"
    wired = one(count=4, model="L40S", preference=Preference.NVLINK_REQUIRED)
    assert said(wired) == (
        f"Set {own}topology-preference to NVLinkOptimal, or set {own}gpu-model to NVIDIA-H100-80GB-HBM3, which meets it"
    )


def test_the_reason_tells_size_offer_and_match_apart():
    def code(request, nodes=NODES):
        found = find_unmet(Fitter(Snapshot.from_nodes(nodes)), request)
        return found and found.code

    assert code(one(count=16)) == code(one(cpu_milli=128_000)) == Reason.TOO_LARGE
    assert code(Request(Gpus(profile="1g.10gb", slices=1))) == Reason.NOT_OFFERED
    assert code(Request(Gpus(milli=500)), (node("a", shares_per_gpu=4),)) == Reason.NOT_OFFERED
    assert code(one(model="MI300X")) == code(one(constraints=on(pool="old"))) == Reason.NO_MATCHING_NODE
    assert code(one(count=4, model="L40S", preference=Preference.NVLINK_REQUIRED)) == Reason.TOPOLOGY_NOT_MET


def test_exclusions_are_counted_by_cause():
    snapshot = Snapshot.from_nodes(NODES)

    def describe_exclusions(snapshot, request):
        return [f"{len(cause.nodes)} {cause.text}" for cause in list_exclusions(snapshot, request)]

    assert describe_exclusions(snapshot, one()) == ["1 with untolerated taint dedicated=infra:NoSchedule"]
    assert describe_exclusions(snapshot, one(constraints=on(zone="a"))) == ["3 without the labels of nodeSelector"]
    assert describe_exclusions(snapshot, one(constraints=Constraints(avoid=frozenset({"h1"})))) == [
        "1 excluded after rejecting its pods",
        "1 with untolerated taint dedicated=infra:NoSchedule",
    ]


def test_no_ready_node_is_said_with_names():
    gone = node("n1", ready=False)
    assert text(one(), gone) == ("The only GPU node is not ready (n1). Find out why with `kubectl describe node n1`.")


def test_cordoned_and_broken_nodes_are_told_apart():
    nodes = (node("n1", ready=False), node("n2", ready=False, cordoned=True), node("n3", ready=False, cordoned=True))
    assert text(one(), *nodes) == (
        "All 3 GPU nodes are cordoned (n2, n3) or not ready (n1)."
        " Run `kubectl uncordon n2` or find out why with `kubectl describe node n1`."
    )
    assert list_unready(Snapshot.from_nodes(nodes)) == [("not ready", [0]), ("cordoned", [1, 2])]


def test_a_model_that_only_excluded_nodes_have_is_not_called_missing():
    cordoned = [node("l1", L40S, ready=False, cordoned=True), node("l2", L40S, ready=False, cordoned=True)]
    assert text(one(model="L40S"), node("h1"), *cordoned) == (
        "All 2 nodes with GPU model L40S are cordoned (l1, l2). Run `kubectl uncordon l1`, or change gpuModel."
    )
    tainted = node("l1", L40S, taints=(Taint("team", "vision", "NoSchedule"),))
    assert text(one(model="L40S"), node("h1"), tainted) == (
        "The only node with GPU model L40S has an untolerated taint team=vision:NoSchedule (l1)."
        " Add a toleration to the pod template."
    )
    spot = one(model="L40S", spot=SpotPolicy.REQUIRE)
    assert text(spot, node("h1", spot=True), node("l1", L40S)) == (
        "No spot node has GPU model L40S (l1). Set spotPolicy to Allow, or change gpuModel."
    )


def test_connections_are_explained_where_no_change_of_them_is_enough():
    full = node("l1", L40S, pods=0)
    assert text(one(count=4, preference=Preference.NVLINK_REQUIRED), full).endswith(
        "Set topology.preference to NVLinkOptimal."
    )
    assert "topology.minBandwidthGBps to 2.7 or less" in text(one(count=4, min_bandwidth_gbps=600), full)


def test_a_bandwidth_that_no_agent_reports_is_advised_on():
    blank = Shape(Wiring(tuple(Slot(str(number)) for number in range(4))), "NVIDIA-L40S", 46_068, "Ada")
    found = text(one(count=4, min_bandwidth_gbps=500), node("l1", blank))
    assert "the bandwidth between these GPUs is not known (it comes from the KGWE agent)" in found
    assert "Start the KGWE agent there, or remove topology.minBandwidthGBps." in found
