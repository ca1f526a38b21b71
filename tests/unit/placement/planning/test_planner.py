"""One question for every kind of work: plans of one pod and of many, divided counts, and the words of a no."""

from __future__ import annotations

import dataclasses
import random

import pytest
from tests.support.machines.reference import nvswitch, pcie_pairs

from kgwe.model.gpu import mig
from kgwe.model.network import domains
from kgwe.model.units import amounts
from kgwe.placement.fleet.node import Gpus, Node, Preference, Request, Shape, SpotPolicy
from kgwe.placement.gang.request import Following, GangRequest, Hardware, Segment
from kgwe.placement.live.fleet import LiveFleet
from kgwe.placement.live.holding import Holding
from kgwe.placement.planning import planner
from kgwe.placement.planning.ask import Ask, TopologyRequest
from kgwe.placement.planning.diagnosis import Diagnosis
from kgwe.placement.planning.plan import Plan
from kgwe.placement.refusal import Reason, Refusal

H100 = Shape(nvswitch(8), "NVIDIA-H100-80GB-HBM3", 81_559, "Hopper")
SMALL = Shape(pcie_pairs(4), "NVIDIA-L40S", 46_068, "Ada")


def fleet(*shapes, leaves=2, **node):
    """A node for each shape; n0 and n1 hang on leaf-0, n2 and n3 on leaf-1, all on one spine."""
    nodes = [Node(f"n{i}", shape, 64_000, 2**40, **node) for i, shape in enumerate(shapes)]
    places = [domains.Place(each.name, (f"leaf-{i // leaves}", "spine"), gb_per_s=50.0) for i, each in enumerate(nodes)]
    made = LiveFleet()
    made.set_nodes(nodes, domains.build_tree(places, ("leaf", "spine")))
    return made


def ask(count=1, **more):
    request = Request(Gpus(count=count), **more.pop("needs", {}))
    return Ask("w", request, {amounts.GPU: count, amounts.PODS: 1}, **more)


def placed(made, asked, **more):
    found = planner.make_plan(made, asked, **more)
    assert isinstance(found, Plan), found.message
    return found


def refused(made, asked, **more):
    found = planner.make_plan(made, asked, **more)
    assert isinstance(found, Refusal)
    return found


class TestOnePod:
    def test_a_hint_decides_between_equal_nodes(self):
        made = fleet(H100, H100, H100)
        assert placed(made, ask(8)).nodes == ("n0",)
        assert placed(made, ask(8, hint={"n2": 1.0})).nodes == ("n2",)
        assert placed(made, ask(8, hint={"n0": -1.0, "gone": 10.0})).nodes == ("n1",)

    @pytest.mark.parametrize("points", [10.0, 1e9, float("inf")])
    def test_a_hint_never_makes_a_node_fit(self, points):
        made = fleet(H100, SMALL, SMALL)
        assert placed(made, ask(8, hint={"n1": points, "n2": points})).nodes == ("n0",)
        assert refused(made, ask(9, hint={"n0": points})).code is Reason.TOO_LARGE

    @pytest.mark.parametrize("points", [-10.0, -1e9, float("-inf"), float("nan")])
    def test_a_hint_never_refuses_the_only_node_that_fits(self, points):
        assert placed(fleet(H100, SMALL), ask(8, hint={"n0": points})).nodes == ("n0",)

    def test_a_hint_is_bounded_beside_the_score(self):
        made = fleet(H100, H100)
        made.snapshot.commit(placed(made, ask(4)).grants[0])
        full = placed(made, ask(4))
        assert full.nodes == ("n0",)
        assert placed(made, ask(4, hint={"n1": 1e9})).score <= 100

    def test_a_plan_says_where_and_why(self):
        found = placed(fleet(H100, H100), ask(8))
        assert found.nodes == ("n0",)
        assert found.seats[0].gpus == 0xFF
        assert found.score == pytest.approx(
            sum(w * p for w, p in zip((0.4, 0.35, 0.25), found.parts.values(), strict=True))
        )
        assert found.gb_per_s == pytest.approx(900.0)
        assert (found.level, found.domain) == ("node", "n0")
        assert "best of 2 nodes" in found.message

    def test_an_installed_strategy_chooses_and_the_score_is_of_what_it_chose(self):
        made = fleet(SMALL, H100)
        chosen = placed(made, ask(2, strategy="last"), choosers={"last": Last()})
        assert chosen.nodes == ("n1",)
        assert chosen.score == pytest.approx(placed(fleet(H100), ask(2)).score)

    @pytest.mark.parametrize("chooser", ["raises", "invents", "full"])
    def test_a_strategy_that_fails_holds_only_who_named_it(self, chooser):
        made = fleet(SMALL, H100)
        made.hold("p", Holding("n0", {amounts.GPU: 4}))
        bad = {"raises": Raises(), "invents": Invents("nowhere"), "full": Invents("n0")}
        found = refused(made, ask(2, strategy=chooser), choosers=bad)
        assert found.code == Reason.STRATEGY_FAILED

    def test_an_unknown_strategy_is_refused_with_those_there_are(self):
        found = refused(fleet(H100), ask(1, strategy="best"), choosers={"mine": Last()})
        assert found.code == Reason.UNKNOWN_STRATEGY
        assert not found.possible
        assert "consolidated" in found.message
        assert "mine" in found.message

    @pytest.mark.parametrize(
        "strategy", ["score", "pack", "spread", "leastLoaded", "costOptimized", "random", "balanced"]
    )
    def test_every_strategy_places_one_pod_and_many(self, strategy):
        made = fleet(H100, H100)
        rng = random.Random(1)
        assert placed(made, ask(2, strategy=strategy), rng=rng)
        assert len(placed(made, ask(8, pods=2, strategy=strategy), rng=rng).seats) == 2


class Last:
    def choose(self, candidates, _ask, _rng):
        return candidates[-1]


class Raises:
    def choose(self, *_):
        raise RuntimeError("broken")


class Invents:
    def __init__(self, name):
        self.name = name

    def choose(self, candidates, _ask, _rng):
        return candidates[0]._replace(name=self.name)


class TestDivided:
    def test_a_count_beyond_one_node_becomes_the_fewest_equal_pods(self):
        found = placed(fleet(H100, H100, H100, H100), ask(16, divisible=True))
        assert len(found.seats) == 2
        assert found.gpus_per_pod == 8
        assert found.level == "leaf"
        assert [seat.gpus for seat in found.seats] == [0xFF, 0xFF]

    def test_one_node_that_has_them_all_is_preferred_even_when_it_is_taken(self):
        made = fleet(SMALL, SMALL, H100)
        made.hold("p", Holding("n2", {amounts.GPU: 8}))
        assert refused(made, ask(8, divisible=True)).code == Reason.INSUFFICIENT_GPU

    def test_pods_are_of_equal_size(self):
        found = placed(fleet(H100, H100, H100), ask(12, divisible=True))
        assert (len(found.seats), found.gpus_per_pod) == (2, 6)

    def test_ranks_are_shared_out_equally(self):
        made = fleet(H100, H100, H100)
        assert len(placed(made, ask(18, divisible=True, ranks=18)).seats) == 3
        found = refused(made, ask(18, divisible=True, ranks=2))
        assert found.code == Reason.TOO_LARGE
        assert "0/3 nodes available for 18 GPUs: " in found.message

    def test_a_rack_of_72_gpus_is_18_pods_of_four(self):
        found = placed(fleet(*[SMALL] * 18), ask(72, divisible=True))
        assert (len(found.seats), found.gpus_per_pod) == (18, 4)

    def test_more_gpus_than_any_node_can_have_are_divided(self):
        found = refused(fleet(H100), ask(100_000, divisible=True))
        assert found.code == Reason.TOO_LARGE
        assert "12500 pods" in found.message

    def test_pods_make_whole_segments(self):
        made = fleet(H100, H100, H100, H100)
        near = TopologyRequest(segments=(Segment(2, "leaf"),))
        found = placed(made, ask(24, divisible=True, nearness=near))
        assert (len(found.seats), found.gpus_per_pod) == (4, 6), "three of eight would break one"

    @pytest.mark.parametrize(
        "needs",
        [
            {"preference": Preference.NVLINK_REQUIRED},
            {"min_bandwidth_gbps": 600.0},
            {"preference": Preference.NVLINK_REQUIRED, "min_bandwidth_gbps": 600.0},
        ],
    )
    def test_gpus_that_are_not_connected_as_required_are_not_divided(self, needs):
        found = refused(fleet(SMALL, SMALL), ask(4, divisible=True, needs=needs))
        assert (found.code, found.possible) == (Reason.TOPOLOGY_NOT_MET, False)
        assert "0/2 nodes available for 4 GPUs: 2 without free GPUs connected as required." in found.message

    def test_the_training_job_of_the_examples_stays_one_pod_of_eight(self):
        needs = {"preference": Preference.NVLINK_OPTIMAL, "min_bandwidth_gbps": 600.0, "min_memory_gb": 40}
        job = ask(8, divisible=True, ranks=8, needs=needs)
        l40s = dataclasses.replace(SMALL, wiring=pcie_pairs(8))
        assert "for 8 GPUs: " in refused(fleet(l40s, l40s), job).message
        assert placed(fleet(l40s, H100), job).nodes == ("n1",)

    @pytest.mark.parametrize("needs", [{"model": "L40S"}, {"architecture": "Ada"}])
    def test_a_count_is_divided_by_the_largest_node_of_its_model(self, needs):
        found = placed(fleet(SMALL, SMALL, H100), ask(8, divisible=True, needs=needs))
        assert (found.nodes, found.gpus_per_pod) == (("n0", "n1"), 4)

    def test_gpus_that_must_be_connected_are_not_divided_because_of_the_model(self):
        needs = {"model": "L40S", "preference": Preference.NVLINK_REQUIRED}
        found = refused(fleet(SMALL, SMALL, H100), ask(8, divisible=True, needs=needs))
        assert found.code == Reason.TOO_LARGE
        assert "the largest node that matches has 4. Set gpusPerPod to 4 or less." in found.message

    def test_a_model_that_no_node_has_divides_as_any_other(self):
        found = refused(fleet(SMALL, H100), ask(8, divisible=True, needs={"model": "L40"}))
        assert "0/2 nodes available for 8 GPUs: " in found.message

    def test_a_count_that_some_node_has_is_not_divided_while_that_node_is_cordoned_or_degraded(self):
        for change in ({"ready": False}, {"healthy": 0x7F}):
            made = fleet(SMALL, SMALL, H100)
            nodes = [*(made.node(f"n{i}") for i in range(2)), dataclasses.replace(made.node("n2"), **change)]
            made.set_nodes(nodes, made.tree)
            assert "for 8 GPUs: " in refused(made, ask(8, divisible=True)).message

    def test_gpus_of_each_pod_of_a_divided_count_must_be_connected(self):
        needs = {"preference": Preference.NVLINK_REQUIRED}
        assert len(placed(fleet(H100, H100), ask(16, divisible=True, needs=needs)).seats) == 2
        found = refused(fleet(SMALL, SMALL), ask(8, divisible=True, needs=needs))
        assert (found.code, found.possible) == (Reason.TOPOLOGY_NOT_MET, False)
        assert "2 pods of 4 GPUs" in found.message

    def test_connected_gpus_are_not_divided_into_pods_of_one(self):
        assert len(placed(fleet(H100, H100), ask(11, divisible=True)).seats) == 11
        found = refused(fleet(H100, H100), ask(11, divisible=True, needs={"preference": Preference.NVLINK_REQUIRED}))
        assert (found.code, found.possible) == (Reason.TOO_LARGE, False)
        assert "Each pod asks for 11 GPUs; the largest node has 8." in found.message

    def test_what_may_not_be_divided_waits_whole(self):
        found = refused(fleet(H100, H100), ask(16))
        assert found.code == Reason.TOO_LARGE
        assert not found.possible


class TestServing:
    """A fleet as in the field: x86 nodes with H100, some of them spot, and ARM nodes with GB200."""

    def fleet(self):
        arm = Shape(nvswitch(4), "NVIDIA-GB200", 189_000, "Blackwell")
        nodes = [
            *(Node(f"a{i}", H100, 64_000, 2**40, labels={"kubernetes.io/arch": "amd64"}) for i in range(4)),
            *(Node(f"s{i}", H100, 64_000, 2**40, labels={"kubernetes.io/arch": "amd64"}, spot=True) for i in range(4)),
            *(Node(f"g{i}", arm, 64_000, 2**40, labels={"kubernetes.io/arch": "arm64"}) for i in range(4)),
        ]
        places = [domains.Place(each.name, (f"leaf-{i // 2}", "spine")) for i, each in enumerate(nodes)]
        made = LiveFleet()
        made.set_nodes(nodes, domains.build_tree(places, ("leaf", "spine")))
        return made

    def replicas(self, made, pods, **more):
        near = TopologyRequest(hardware=Hardware.SAME)
        found = placed(made, ask(2, pods=pods, strategy="distributed", nearness=near, serves=True, **more))
        return [made.node(seat.node) for seat in found.seats]

    def test_replicas_are_on_nodes_of_their_own_of_one_kind_and_not_spot(self):
        nodes = self.replicas(self.fleet(), 4, needs={"spot": SpotPolicy.AVOID})
        assert len({node.name for node in nodes}) == 4
        assert len({(node.shape.model, node.labels["kubernetes.io/arch"]) for node in nodes}) == 1
        assert not any(node.spot for node in nodes)

    def test_replicas_go_to_spot_nodes_where_the_others_are_full(self):
        made = self.fleet()
        for number in range(4):
            made.hold(f"p{number}", Holding(f"a{number}", {amounts.GPU: 8}))
            made.hold(f"q{number}", Holding(f"g{number}", {amounts.GPU: 4}))
        assert {node.name[0] for node in self.replicas(made, 4, needs={"spot": SpotPolicy.AVOID})} == {"s"}

    def test_replicas_that_require_spot_wait_for_it(self):
        made = self.fleet()
        for number in range(4):
            made.hold(f"p{number}", Holding(f"s{number}", {amounts.GPU: 8}))
        found = refused(made, ask(2, pods=4, strategy="distributed", needs={"spot": SpotPolicy.REQUIRE}))
        assert found.detail.reason == "NotOnSpot"

    def test_replicas_that_a_node_has_no_room_for_are_spread_too(self):
        found = placed(
            self.fleet(), ask(32, divisible=True, serves=True, nearness=TopologyRequest(hardware=Hardware.SAME))
        )
        assert found.ask.strategy == "distributed"
        assert len(found.nodes) == 4

    def test_a_strategy_of_others_is_not_offered_spot_nodes_that_are_avoided(self):
        chosen = placed(
            self.fleet(), ask(1, strategy="last", needs={"spot": SpotPolicy.AVOID}), choosers={"last": Last()}
        )
        assert chosen.nodes == ("g3",)
        only = placed(
            self.fleet(), ask(1, strategy="last", needs={"spot": SpotPolicy.ALLOW}), choosers={"last": Last()}
        )
        assert only.nodes == ("s3",)


class TestSpot:
    """Why work that avoids spot nodes is on one: n0 and n1 are in one leaf, n2 and n3 in another."""

    def fleet(self, *spot):
        made = fleet(H100, H100, H100, H100)
        nodes = [dataclasses.replace(made.node(f"n{i}"), spot=f"n{i}" in spot) for i in range(4)]
        made.set_nodes(nodes, made.tree)
        return made

    def test_one_pod_says_that_no_other_node_fits(self):
        made = self.fleet("n0")
        for name in ("n1", "n2", "n3"):
            made.hold(name, Holding(name, {amounts.GPU: 1}))
        assert (
            "; a spot node, because no other node fits"
            in placed(made, ask(8, needs={"spot": SpotPolicy.AVOID})).message
        )
        assert "spot" not in placed(made, ask(8, needs={"spot": SpotPolicy.ALLOW})).message
        assert "spot" not in placed(made, ask(4, needs={"spot": SpotPolicy.AVOID})).message

    def test_a_gang_says_what_it_would_lose_without_them(self):
        avoiding = {"needs": {"spot": SpotPolicy.AVOID}}
        few = placed(self.fleet("n0", "n1", "n2"), ask(8, pods=2, **avoiding))
        assert ": without spot nodes not all pods fit" in few.message
        near = TopologyRequest(preferred="leaf")
        apart = placed(self.fleet("n0", "n2"), ask(8, pods=2, nearness=near, **avoiding))
        assert ": without spot nodes it would not be in one leaf, as preferred" in apart.message
        assert "spot" not in placed(self.fleet("n0"), ask(8, pods=2, **avoiding)).message


class TestGangs:
    def test_a_required_level_is_never_crossed(self):
        made = fleet(H100, H100, H100, H100)
        made.hold("p", Holding("n0", {amounts.GPU: 1}))
        made.hold("q", Holding("n2", {amounts.GPU: 1}))
        found = refused(made, ask(8, pods=2, nearness=TopologyRequest(required="leaf")))
        assert found.code == Reason.TOPOLOGY_NOT_MET
        assert isinstance(found.detail, Diagnosis)
        assert "spine" in found.detail.describe()
        assert placed(made, ask(8, pods=2, nearness=TopologyRequest(preferred="leaf"))).level == "spine"

    def test_a_level_nobody_knows_is_said_so(self):
        found = refused(fleet(H100, H100), ask(8, pods=2, nearness=TopologyRequest(required="rack")))
        assert found.code == Reason.UNKNOWN_LEVEL
        assert "leaf" in found.message

    def test_segments_that_do_not_divide_the_pods_are_refused(self):
        found = refused(fleet(H100, H100), ask(4, pods=3, nearness=TopologyRequest(segments=(Segment(2, "leaf"),))))
        assert found.code == Reason.INVALID

    def test_a_short_refusal_has_no_diagnosis(self):
        found = refused(fleet(H100), ask(8, pods=2), explain=False)
        assert not isinstance(found.detail, Diagnosis)
        assert "(1 of 2 worker pods fit)" in found.message

    def test_a_strategy_for_single_pods_is_refused_for_many(self):
        found = refused(fleet(H100, H100), ask(8, pods=2, strategy="mine"), choosers={"mine": Last()})
        assert found.code == Reason.UNKNOWN_STRATEGY
        assert "places single pods" in found.message


class TestConnections:
    """GPUs that are not connected as required have one reason, whether one pod or several ask for them."""

    def test_free_gpus_that_are_not_connected(self):
        made = fleet(SMALL)
        made.hold("p", Holding("n0", {amounts.GPU: 1}, 0b0001))
        made.hold("q", Holding("n0", {amounts.GPU: 1}, 0b0100))
        found = refused(made, ask(2, needs={"preference": Preference.SAME_PCIE_SWITCH}))
        assert (found.code, found.possible) == (Reason.TOPOLOGY_NOT_MET, True)
        assert found.message.endswith(" Wait, or set topology.preference to NVLinkOptimal.")

    @pytest.mark.parametrize("pods", [1, 2])
    def test_gpus_that_no_node_connects(self, pods):
        needs = {"preference": Preference.NVLINK_REQUIRED}
        assert refused(fleet(SMALL, SMALL), ask(4, pods=pods, needs=needs)).code == Reason.TOPOLOGY_NOT_MET

    def test_full_nodes_with_connected_gpus_are_waited_for(self):
        made = fleet(SMALL, H100)
        made.hold("p", Holding("n1", {amounts.GPU: 8}))
        needs = {"preference": Preference.NVLINK_REQUIRED}
        assert refused(made, ask(4, needs=needs)).code == Reason.INSUFFICIENT_GPU


class TestWords:
    def test_full_nodes(self):
        made = fleet(H100, H100, SMALL)
        made.hold("p", Holding("n0", {amounts.GPU: 5}))
        made.hold("q", Holding("n1", {amounts.GPU: 2}))
        found = refused(made, ask(8))
        assert found.code == Reason.INSUFFICIENT_GPU
        assert found.message == (
            "0/3 nodes available for 8 GPUs: 2 insufficient GPUs, 1 with fewer than 8 whole GPUs. Best: n1 (6 free)."
        )

    def test_nothing_large_enough(self):
        found = refused(fleet(SMALL, SMALL), ask(8))
        assert found.code == Reason.TOO_LARGE
        assert found.message == (
            "0/2 nodes available for 8 GPUs: 2 with fewer than 8 whole GPUs. Each pod asks for 8 GPUs; the largest node"
            " has 4. Set gpusPerPod to 4 or less."
        )

    def test_nothing_of_the_kind(self):
        found = refused(fleet(SMALL), ask(1, needs={"model": "H200"}))
        assert found.code == Reason.NO_MATCHING_NODE
        assert found.message == (
            "0/1 nodes available for 1 GPU: 1 with another GPU model. No GPU has model H200. Change gpuModel"
            " (models here: NVIDIA-L40S)."
        )

    def test_wiring_and_other_amounts(self):
        made = fleet(SMALL)
        made.hold("p", Holding("n0", {amounts.GPU: 2}, gpus=0b0101))
        found = refused(made, ask(2, needs={"preference": Preference.SAME_PCIE_SWITCH}))
        assert "Best: n0 (its free GPUs are not connected as required)." in found.message
        made.hold("q", Holding("n0", {amounts.CPU: 64_000}))
        starved = refused(made, ask(1, needs={"cpu_milli": 1000}))
        assert starved.code == Reason.INSUFFICIENT_RESOURCES
        assert "Best: n0 (0 cores free, 1 core requested)." in starved.message

    def test_no_nodes_at_all(self):
        assert refused(fleet(), ask(1)).code == Reason.NO_GPU_NODES

    def test_the_nearest_node_decides_whether_gpus_or_cpu_are_short(self):
        made = fleet(H100, H100)
        made.hold("p", Holding("n0", {amounts.GPU: 8}))
        made.hold("q", Holding("n1", {amounts.CPU: 60_000}))
        assert refused(made, ask(8, needs={"cpu_milli": 8_000})).code == Reason.INSUFFICIENT_RESOURCES
        assert refused(made, ask(8, pods=2, needs={"cpu_milli": 1_000})).code == Reason.INSUFFICIENT_GPU
        made.drop("p")
        assert refused(made, ask(8, pods=2, needs={"cpu_milli": 8_000})).code == Reason.INSUFFICIENT_RESOURCES

    def test_a_gang_that_is_larger_than_the_fleet_names_what_exists_and_is_free(self):
        made = fleet(H100, H100, SMALL)
        made.hold("p", Holding("n0", {amounts.GPU: 8}))
        found = refused(made, ask(400, divisible=True, needs={"model": "H100"}))
        assert found.code == Reason.TOO_LARGE
        assert "400 GPUs are requested; nodes with GPU model H100 have 16, 8 of them free." in found.message

    def test_slices(self):
        made = fleet(dataclasses.replace(H100, geometry=mig.GEOMETRIES["H100-80GB"]))
        asked = Ask("w", Request(Gpus(profile="1g.10gb", slices=2)))
        assert refused(made, asked).message.startswith(
            "0/1 nodes available for 2 slices of 1g.10gb: 1 without 2 slices of 1g.10gb. No GPU has a 1g.10gb slice"
        )


def test_asks_of_one_shape_differ_only_in_who_asks():
    one = ask(4, priority=3, name="a", namespace="x", since="t1", first_claim=True)
    other = Ask("v", one.request, {}, priority=9, name="b", namespace="y", since="t2")
    assert one.without_identity() == other.without_identity()
    assert hash(one.without_identity()) == hash(other.without_identity())
    assert ask(4).without_identity() != ask(4, nearness=TopologyRequest(required="leaf")).without_identity()
    assert ask(4).without_identity() != ask(4, ranks=2).without_identity()


def test_an_ask_is_the_same_whichever_gangs_follow_it():
    ask = Ask(owner="train", request=Request(Gpus(count=1)), pods=2)
    gang = GangRequest.uniform(Request(Gpus(count=8)), 4)
    assert dataclasses.replace(ask, following=Following.from_gangs([gang])) == ask
