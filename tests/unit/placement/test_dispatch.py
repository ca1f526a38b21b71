"""Who gets which node, and why the others wait."""

import random
from typing import Any

import pytest

from kgwe.model import amounts, gpu
from kgwe.placement.ask import Ask, Needs, NodeFacts, Taint, Toleration
from kgwe.placement.constraints import Operator, Requirement
from kgwe.placement.dispatch import Dispatcher, Held, Placed, Reason
from kgwe.placement.ledger import Ledger
from kgwe.placement.strategies import CHEAP_NODE_LABEL, CostOptimized, LeastLoaded, Random, Strategy

STRATEGIES: dict[str, Strategy] = {"leastLoaded": LeastLoaded(), "random": Random(), "costOptimized": CostOptimized()}


def for_gpus(owner, count, **more):
    return Ask(owner, amounts.GPU, count, {amounts.GPU: count, amounts.PODS: 1}, **more)


def node(name, gpus=8, **more):
    offers = {amounts.GPU: gpus, amounts.PODS: 110, amounts.CPU: 64_000} | more.pop("offers", {})
    return NodeFacts(name, offers, **more)


def ledger_of(*nodes, used=()):
    ledger = Ledger()
    for facts in nodes:
        ledger.set_node(facts)
    for number, (name, gpus) in enumerate(used):
        ledger.set_pod(f"others/{number}", "", name, {amounts.GPU: gpus, amounts.PODS: 1})
    return ledger


def dispatch(ledger, *wanted, seed=0):
    decisions = Dispatcher(STRATEGIES, random.Random(seed)).dispatch(ledger, wanted)
    return {d.ask.owner: d for d in decisions}


def placed_on(decision):
    assert isinstance(decision, Placed), decision
    return decision.node


class TestOrder:
    def test_higher_priority_goes_first_then_older(self):
        ledger = ledger_of(node("a", 4))
        young = for_gpus("young", 2, since="2026-01-02T00:00:00Z")
        old = for_gpus("old", 2, since="2026-01-01T00:00:00Z")
        urgent = for_gpus("urgent", 2, priority=10, since="2026-01-03T00:00:00Z")

        decisions = dispatch(ledger, young, old, urgent)

        assert placed_on(decisions["urgent"]) == placed_on(decisions["old"]) == "a"
        assert decisions["young"].reason is Reason.INSUFFICIENT_GPU

    def test_work_that_does_not_fit_does_not_stop_smaller_work_behind_it(self):
        ledger = ledger_of(node("a", 4))
        decisions = dispatch(ledger, for_gpus("big", 8, priority=5), for_gpus("small", 2))
        assert isinstance(decisions["big"], Held)
        assert placed_on(decisions["small"]) == "a"

    def test_twins_of_a_shape_without_room_get_the_same_answer(self):
        ledger = ledger_of(node("a", 4), used=[("a", 3)])
        decisions = dispatch(ledger, *(for_gpus(str(i), 2) for i in range(5)))
        assert {type(d) for d in decisions.values()} == {Held}
        assert len({d.message for d in decisions.values()}) == 1


class TestStrategies:
    def test_least_loaded_takes_the_node_with_most_free(self):
        ledger = ledger_of(node("a"), node("b"), node("c"), used=[("a", 3), ("b", 1), ("c", 2)])
        assert placed_on(dispatch(ledger, for_gpus("w", 1))["w"]) == "b"

    def test_least_loaded_breaks_ties_by_name(self):
        assert placed_on(dispatch(ledger_of(node("b"), node("a")), for_gpus("w", 1))["w"]) == "a"

    def test_random_uses_every_node_that_fits_and_no_other(self):
        chosen = set()
        for seed in range(60):
            ledger = ledger_of(node("a"), node("b"), node("full", 1), used=[("full", 1)])
            chosen.add(placed_on(dispatch(ledger, for_gpus("w", 1, strategy="random"), seed=seed)["w"]))
        assert chosen == {"a", "b"}

    def test_cost_optimized_prefers_cheap_nodes_and_falls_back(self):
        cheap = node("cheap", 2, labels={CHEAP_NODE_LABEL: "true"})
        ledger = ledger_of(node("dear"), cheap)
        first = for_gpus("first", 2, strategy="costOptimized", since="1")
        second = for_gpus("second", 2, strategy="costOptimized", since="2")

        decisions = dispatch(ledger, first, second)

        assert placed_on(decisions["first"]) == "cheap"
        assert placed_on(decisions["second"]) == "dear"

    def test_a_label_that_is_not_true_does_not_make_a_node_cheap(self):
        ledger = ledger_of(node("a"), node("b", 4, labels={CHEAP_NODE_LABEL: "false"}))
        assert placed_on(dispatch(ledger, for_gpus("w", 1, strategy="costOptimized"))["w"]) == "a"

    def test_an_unknown_strategy_waits_and_names_the_known_ones(self):
        held = dispatch(ledger_of(node("a")), for_gpus("w", 1, strategy="cheapest"))["w"]
        assert held.reason is Reason.UNKNOWN_STRATEGY
        assert "'cheapest'" in held.message
        assert "costOptimized, leastLoaded, random" in held.message

    def test_a_strategy_that_fails_holds_only_the_work_that_named_it(self):
        class Broken:
            def choose(self, *_):
                raise ZeroDivisionError("oops")

        class Inventor:
            def choose(self, candidates, *_):
                return candidates[0]._replace(name="elsewhere")

        both: dict[str, Strategy] = {**STRATEGIES, "broken": Broken(), "inventor": Inventor()}
        wanted = [for_gpus(name, 1, strategy=name) for name in ("broken", "inventor", "leastLoaded")]
        ledger = ledger_of(node("a", 1))

        decisions: dict[str, Any] = {
            d.ask.owner: d for d in Dispatcher(both, random.Random(0)).dispatch(ledger, wanted)
        }

        assert decisions["broken"].reason is decisions["inventor"].reason is Reason.STRATEGY_FAILED
        assert "oops" in decisions["broken"].message
        assert placed_on(decisions["leastLoaded"]) == "a"


class TestReasons:
    @pytest.mark.parametrize(
        ("nodes", "used", "ask", "reason", "says"),
        [
            pytest.param([], [], {}, Reason.NO_GPU_NODES, "no node offers nvidia.com/gpu", id="empty cluster"),
            pytest.param([node("a", 0)], [], {}, Reason.NO_GPU_NODES, "no node offers", id="CPU nodes only"),
            pytest.param(
                [node("a", 8)], [], {"count": 16}, Reason.TOO_LARGE, "largest of 1 nodes has 8", id="larger than any"
            ),
            pytest.param(
                [node("a"), node("b")],
                [("a", 5), ("b", 6)],
                {"count": 4},
                Reason.INSUFFICIENT_GPU,
                "the freest (a) has 3; 5 free in all",
                id="room only in pieces",
            ),
            pytest.param(
                [node("a", ready=False)], [], {}, Reason.NO_MATCHING_NODE, "1 not ready or cordoned", id="not ready"
            ),
            pytest.param(
                [node("a", taints=(Taint("dedicated", "x", "NoSchedule"),))],
                [],
                {},
                Reason.NO_MATCHING_NODE,
                "1 have taint dedicated",
                id="tainted",
            ),
            pytest.param(
                [node("a", labels={"zone": "1"})],
                [],
                {"node_selector": {"zone": "2"}},
                Reason.NO_MATCHING_NODE,
                "1 lack label zone=2",
                id="selector",
            ),
            pytest.param(
                [node("a", gpu_memory_mib=32_768)],
                [],
                {"needs": Needs(min_memory_gb=40)},
                Reason.NO_MATCHING_NODE,
                "less than 40 GB",
                id="GPU memory too small",
            ),
            pytest.param(
                [node("a")],
                [],
                {"needs": Needs(min_memory_gb=1)},
                Reason.NO_MATCHING_NODE,
                "less than 1 GB",
                id="unknown memory is not enough memory",
            ),
            pytest.param(
                [node("a", fabric_gbps=None)],
                [],
                {"count": 2, "needs": Needs(nvlink=True)},
                Reason.NO_MATCHING_NODE,
                "no NVLink",
                id="unknown wiring is not NVLink",
            ),
            pytest.param(
                [node("a", fabric_gbps=600.0)],
                [],
                {"count": 2, "needs": Needs(min_bandwidth_gbps=900)},
                Reason.NO_MATCHING_NODE,
                "less than 900 GB/s",
                id="bandwidth too low",
            ),
            pytest.param(
                [node("a", architecture="ampere")],
                [],
                {"needs": Needs(architecture="Hopper")},
                Reason.NO_MATCHING_NODE,
                "another architecture than Hopper",
                id="architecture",
            ),
        ],
    )
    def test_waiting_work_says_what_is_missing(self, nodes, used, ask, reason, says):
        wanted = for_gpus("w", ask.pop("count", 1), **ask)
        held = dispatch(ledger_of(*nodes, used=used), wanted)["w"]
        assert held.reason is reason
        assert says in held.message

    def test_enough_gpus_but_too_little_cpu_is_said_so(self):
        ledger = ledger_of(node("a", offers={amounts.CPU: 4000}))
        ledger.set_pod("other", "", "a", {amounts.CPU: 3500})
        wanted = Ask("w", amounts.GPU, 1, {amounts.GPU: 1, amounts.CPU: 1000, amounts.PODS: 1})
        held = dispatch(ledger, wanted)["w"]
        assert held.reason is Reason.INSUFFICIENT_RESOURCES
        assert "1 short of CPU" in held.message

    def test_every_reason_is_a_word_of_its_own(self):
        assert len({reason.value for reason in Reason}) == len(Reason)

    def test_a_twin_in_amounts_that_counts_otherwise_gets_its_own_answer(self):
        request = {amounts.GPU: 1, amounts.PODS: 1}
        large = Ask("large", amounts.GPU, 16, request, priority=1)
        small = Ask("small", amounts.GPU, 1, request)
        decisions = dispatch(ledger_of(node("a")), large, small)
        assert decisions["large"].reason is Reason.TOO_LARGE
        assert placed_on(decisions["small"]) == "a"


class TestMatching:
    def test_a_tolerated_taint_does_not_matter(self):
        tainted = node("a", taints=(Taint("dedicated", "ml", "NoSchedule"),))
        tolerant = for_gpus("w", 1, tolerations=(Toleration("dedicated", "Equal", "ml"),))
        assert placed_on(dispatch(ledger_of(tainted), tolerant)["w"]) == "a"

    def test_prefer_no_schedule_does_not_forbid(self):
        tainted = node("a", taints=(Taint("old", "", "PreferNoSchedule"),))
        assert placed_on(dispatch(ledger_of(tainted), for_gpus("w", 1))["w"]) == "a"

    def test_nvlink_optimal_prefers_a_switched_node_even_when_it_is_fuller(self):
        ledger = ledger_of(node("pcie", fabric_gbps=0.0), node("switch", fabric_gbps=900.0), used=[("switch", 4)])
        wanted = for_gpus("w", 4, needs=Needs(prefers_nvlink=True))
        assert placed_on(dispatch(ledger, wanted)["w"]) == "switch"

    def test_nvlink_optimal_still_runs_without_one(self):
        wanted = for_gpus("w", 4, needs=Needs(prefers_nvlink=True))
        assert placed_on(dispatch(ledger_of(node("pcie", fabric_gbps=0.0)), wanted)["w"]) == "pcie"

    def test_one_gpu_needs_no_links(self):
        wanted = for_gpus("w", 1, needs=Needs(nvlink=True, min_bandwidth_gbps=900))
        assert placed_on(dispatch(ledger_of(node("a")), wanted)["w"]) == "a"

    def test_required_node_affinity_is_any_of_its_terms(self):
        zone = lambda *values: (Requirement("zone", Operator.IN, values),)  # noqa: E731 - two words
        ledger = ledger_of(node("a", labels={"zone": "1"}), node("b", 1, labels={"zone": "2"}))
        assert placed_on(dispatch(ledger, for_gpus("w", 1, affinity=(zone("3"), zone("2"))))["w"]) == "b"
        held = dispatch(ledger_of(node("a")), for_gpus("w", 1, affinity=(zone("3"),)))["w"]
        assert "1 do not match its node affinity" in held.message

    def test_a_node_that_refused_is_avoided(self):
        wanted = for_gpus("w", 1, avoid=frozenset({"a"}))
        assert placed_on(dispatch(ledger_of(node("a"), node("b", 1)), wanted)["w"]) == "b"

    def test_a_node_that_changes_is_looked_at_again(self):
        ledger, dispatcher = ledger_of(node("a", ready=False)), Dispatcher(STRATEGIES, random.Random(0))
        assert isinstance(dispatcher.dispatch(ledger, [for_gpus("w", 1)])[0], Held)
        ledger.set_node(node("a"))
        assert isinstance(dispatcher.dispatch(ledger, [for_gpus("w", 1)])[0], Placed)

    @pytest.mark.parametrize(
        ("wanted", "found", "matches"),
        [
            ("H100", "NVIDIA-H100-80GB-HBM3", True),
            ("NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3", True),
            ("h100", "NVIDIA-H100-80GB-HBM3", True),
            ("A10", "NVIDIA-A100-SXM4-80GB", False),
            ("H100", None, False),
        ],
    )
    def test_model_names_match_by_whole_words(self, wanted, found, matches):
        assert gpu.name_matches(wanted, found) is matches
