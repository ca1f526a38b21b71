"""Verdicts of pods and gangs, the findings about them, and the waste score."""

from __future__ import annotations

import pytest
from tests.support.builders.usage_windows import STEPS, WindowBuilder, pod_key

from kgwe.forecast.waste import findings, verdicts
from kgwe.forecast.waste.findings import Kind
from kgwe.forecast.waste.rules import Rules
from kgwe.forecast.waste.score import Formula, score_verdict
from kgwe.forecast.waste.states import Reason, State
from kgwe.model.usage.window import PodKey

RULES = Rules()
NAN = float("nan")
GAP = [0.0] * 5 + [NAN] * 10 + [0.0] * 5


def judge(builder, rules=RULES):
    return {each.pod.name: each for each in verdicts.judge_pods(builder.build(), builder.pods.values(), rules)}


def find(builder, rules=RULES):
    return findings.judge_window(builder.build(), builder.pods.values(), rules)


def test_an_idle_pod_is_found_with_full_score():
    (found,) = find(WindowBuilder().add("p", 0.0))
    assert (found.kind, found.pods, found.score) == (Kind.IDLE, (pod_key("p"),), 100.0)
    assert found.message == "1 device did nothing for 10m"


def test_held_memory_is_said():
    (found,) = find(WindowBuilder().add("p", 0.0, memory_used_mib=40_960.0))
    assert found.kind is Kind.IDLE_HOLDING
    assert found.message == "1 device did nothing for 10m but held 40 GiB of memory"


def test_a_busy_pod_with_little_memory_is_no_finding():
    assert find(WindowBuilder().add("p", 0.8, memory_used_mib=100.0, power_w=500.0)) == []


def test_less_than_half_for_more_than_five_minutes_is_underused():
    assert [each.kind for each in find(WindowBuilder().add("p", 0.3))] == [Kind.UNDERUSED]
    assert find(WindowBuilder().add("p", [0.1] * 10 + [0.6] * 10)) == []
    assert [each.kind for each in find(WindowBuilder().add("p", [0.1] * 11 + [0.6] * 9))] == [Kind.UNDERUSED]


def test_a_gap_produces_no_finding():
    assert find(WindowBuilder().add("p", GAP)) == []


def test_a_gap_of_one_device_hides_the_whole_pod():
    builder = WindowBuilder().add("p", 0.0, devices=2).add("p", GAP, devices=2)
    assert find(builder) == []
    assert judge(builder)["p"].reason is Reason.GAP


def test_a_device_without_any_series_hides_the_pod():
    builder = WindowBuilder().add("p", 0.0, devices=8)
    assert find(builder) == []
    assert judge(builder)["p"].reason is Reason.DEVICE_MISSING


def test_a_pod_without_any_series_is_unknown():
    builder = WindowBuilder()
    builder.pods[pod_key("p")] = verdicts.PodFacts(pod_key("p"), 0.0)
    assert judge(builder)["p"].reason is Reason.NO_SAMPLES


def test_pods_that_the_api_does_not_show_are_ignored():
    builder = WindowBuilder().add("p", 0.0)
    builder.pods.clear()
    assert find(builder) == []


def test_one_idle_gpu_of_eight_is_an_imbalance_and_no_waste():
    builder = WindowBuilder()
    for number in range(8):
        builder.add("p", 0.0 if number == 3 else 0.9, power_w=80.0 if number == 3 else 600.0, devices=8)
    (found,) = find(builder)
    assert (found.kind, found.score, found.devices) == (Kind.IMBALANCE, None, ("GPU-3",))
    assert not found.kind.is_waste
    assert found.message.startswith("1 of 8 devices did nothing")


class TestGangs:
    def gang(self, *activities):
        builder = WindowBuilder()
        for rank, activity in enumerate(activities):
            builder.add(f"r{rank}", activity, gang="team/train")
        return builder

    def test_one_idle_rank_is_an_imbalance_of_the_gang(self):
        (found,) = find(self.gang(0.9, 0.9, 0.0, 0.9))
        assert (found.kind, found.gang, found.pods) == (Kind.IMBALANCE, "team/train", (pod_key("r2"),))
        assert "r2" in found.message
        assert [name for name, each in judge(self.gang(0.9, 0.9, 0.0, 0.9)).items() if each.is_unbalanced] == ["r2"]

    def test_an_idle_gang_is_waste_of_every_member(self):
        assert [each.kind for each in find(self.gang(0.0, 0.0))] == [Kind.IDLE, Kind.IDLE]

    def test_an_idle_member_of_a_gang_with_a_gap_is_unknown(self):
        builder = self.gang(0.0, 0.0, GAP)
        assert find(builder) == []
        assert judge(builder)["r0"].reason is Reason.GANG_UNKNOWN

    def test_pods_without_a_gang_do_not_judge_each_other(self):
        assert [each.pods[0].name for each in find(WindowBuilder().add("p", 0.9).add("q", 0.0))] == ["q"]


def test_two_containers_on_one_gpu_count_it_once():
    builder = WindowBuilder().add("p", 0.0, uuid="GPU-x").add("p", 0.0, uuid="GPU-x", container="side")
    assert judge(builder)["p"].devices == 1


def test_pods_of_one_name_in_two_namespaces_are_two_pods():
    builder = WindowBuilder().add("p", 0.0)
    other = PodKey("other", "p")
    builder.pods[other] = verdicts.PodFacts(other, 0.0)
    states = {each.pod: each.state for each in verdicts.judge_pods(builder.build(), builder.pods.values(), RULES)}
    assert states == {pod_key("p"): State.IDLE, other: State.UNKNOWN}


def test_sharers_are_charged_their_share_and_slices_the_larger_of_compute_and_memory():
    builder = WindowBuilder()
    for name in "abcd":
        builder.add(name, 0.0, uuid="GPU-x", sharers=4)
    builder.add("m", 0.0, instance="1", profile="3g.40gb", model="NVIDIA A100-SXM4-80GB")
    builder.add("odd", 0.0, instance="1", profile="weird", model="Prototype")
    found = judge(builder)
    assert [found[name].fraction for name in "abcdm"] == [0.25, 0.25, 0.25, 0.25, 0.5]
    assert found["odd"].fraction == 1.0


@pytest.mark.parametrize(
    ("activity", "memory", "formula", "score"),
    [
        (0.0, 500.0, Formula.UNUSED, 100.0),
        (0.8, 500.0, Formula.UNUSED, 20.0),
        (0.8, 0.0, Formula.WEIGHTED, 52.0),
        (0.0, 81_000.0, Formula.WEIGHTED, 60.0),
        (0.8, NAN, Formula.WEIGHTED, None),
        (0.8, NAN, Formula.UNUSED, 20.0),
        (GAP, 500.0, Formula.UNUSED, None),
    ],
)
def test_the_score_is_the_unused_part_and_the_weighted_formula_is_available(activity, memory, formula, score):
    verdict = judge(WindowBuilder().add("p", activity, memory_used_mib=memory))["p"]
    found = score_verdict(verdict, formula)
    assert found == score if score is None else found == pytest.approx(score)


def test_memory_traffic_counts_as_use():
    assert score_verdict(judge(WindowBuilder().add("p", 0.3, dram=0.7))["p"]) == pytest.approx(30.0)


def test_the_number_of_steps_follows_the_step_of_the_window():
    assert Rules().count_steps(30.0) == STEPS
    assert Rules().count_steps(60.0) == 10
