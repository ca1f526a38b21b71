"""The detector judges pods on a window, and an error with one pod concerns that pod alone."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.support.builders.assessments import facts, found, recommendation
from tests.support.builders.usage_windows import END_S, STEP_S, WindowBuilder

from kgwe import errors
from kgwe.apps.optimizer.waste.detector import (
    Assessment,
    WasteDetector,
    describe_pod,
    select_findings,
    sum_savings,
)
from kgwe.forecast.waste.alternatives import Action, Needs
from kgwe.forecast.waste.findings import Kind
from kgwe.forecast.waste.recommend import Prices
from kgwe.forecast.waste.rules import Rules
from kgwe.forecast.waste.score import Formula
from kgwe.forecast.waste.verdicts import judge_pods

if TYPE_CHECKING:
    from kgwe.apps.optimizer.history.gpu_pods import PodFacts
    from kgwe.model.usage.window import UsageWindow

PRICES = Prices({"H100-SXM5-80GB": 3.0}, {"H100-SXM5-80GB": 1.2})


class Source:
    """A source with one window."""

    def __init__(self, window: UsageWindow) -> None:
        self.window = window
        self.asked: tuple[float, float, float] | None = None
        self.trouble: str | None = None
        self.fails = False

    async def read_window(self, end_s: float, length_s: float, step_s: float) -> UsageWindow:
        if self.fails:
            raise errors.Transient("down")
        self.asked = (end_s, length_s, step_s)
        return self.window

    def problem(self) -> str | None:
        return self.trouble

    async def close(self) -> None:
        pass


class KnownNeeds:
    def __init__(self, broken: str = "") -> None:
        self.broken = broken

    def find_needs(self, facts: PodFacts) -> Needs:
        if facts.key.name == self.broken:
            raise KeyError(self.broken)
        return Needs(memory_mib=500.0, history_s=86400.0)


def detector(builder: WindowBuilder, *pods: PodFacts, broken: str = "", source: Source | None = None) -> WasteDetector:
    return WasteDetector(
        source or Source(builder.build()),
        Rules(),
        list_pods=lambda: {each.key: each for each in pods},
        needs=KnownNeeds(broken),
        prices=PRICES,
        check=lambda _uid, _alternative: True,
        formula=Formula.UNUSED,
        step_s=STEP_S,
    )


def judge(builder: WindowBuilder, *pods: PodFacts, broken: str = "") -> Assessment:
    return detector(builder, *pods, broken=broken).judge(builder.build(), END_S)


async def test_a_round_reads_one_window_that_ends_with_a_step():
    builder = WindowBuilder().add("train-0", 0.0)
    source = Source(builder.build())
    assessment = await detector(builder, facts(), source=source).assess(END_S + 17)
    assert source.asked == (END_S + 10, 600.0, STEP_S)  # a multiple of 30 seconds
    assert assessment.at_s == END_S + 17


async def test_a_large_window_is_judged_in_a_thread_and_advice_is_made_on_the_loop(monkeypatch):
    threads = {}

    def note(name, call):
        def noted(*args):
            threads[name] = threading.current_thread()
            return call(*args)

        return noted

    monkeypatch.setattr("kgwe.apps.optimizer.waste.detector.judge_pods", note("judge", judge_pods))
    builder = WindowBuilder().add("train-0", 0.0)
    made = detector(builder, facts())
    monkeypatch.setattr(made, "_recommend", note("advice", made._recommend))
    apart = await made.judge_apart(builder.build(), END_S)
    assert threads["judge"] is not threading.current_thread()
    assert threads["advice"] is threading.current_thread()
    assert apart == made.judge(builder.build(), END_S)


def test_an_idle_pod_is_found_with_advice_and_its_price():
    (one,) = judge(WindowBuilder().add("train-0", 0.0), facts()).findings
    assert (one.finding.kind, one.facts.key.name) == (Kind.IDLE, "train-0")
    assert one.recommendation is not None
    assert (one.recommendation.action, one.recommendation.hourly_cost) == (Action.SUSPEND, 3.0)


def test_a_busy_pod_is_no_finding():
    assessment = judge(WindowBuilder().add("train-0", 0.9), facts())
    assert (assessment.findings, assessment.states) == ((), {"busy": 1})


def test_a_gap_is_no_finding():
    activity = [0.0] * 12 + [np.nan] * 8
    assessment = judge(WindowBuilder().add("train-0", activity), facts())
    assert (assessment.findings, assessment.states) == ((), {"unknown": 1})


def test_a_pod_without_a_price_has_advice_without_money():
    (one,) = judge(WindowBuilder().add("train-0", 0.0, model="NVIDIA T4"), facts()).findings
    assert one.recommendation is not None
    assert (one.recommendation.action, one.recommendation.hourly_saving) == (Action.SUSPEND, None)


def test_a_pod_whose_advice_fails_keeps_its_finding_and_others_their_advice():
    builder = WindowBuilder().add("a", 0.0).add("b", 0.0)
    made = detector(builder, facts("a", owner="a"), facts("b", owner="b"), broken="a")
    first, second = made.judge(builder.build(), END_S).findings
    assert first.recommendation is None
    assert second.recommendation is not None
    assert made.failures == 1


def test_one_idle_rank_beside_a_busy_one_is_an_imbalance_without_advice():
    builder = WindowBuilder().add("train-0", 0.0).add("train-1", 0.9)
    (one,) = judge(builder, facts("train-0"), facts("train-1")).findings
    assert (one.finding.kind, one.facts.key.name, one.recommendation) == (Kind.IMBALANCE, "train-0", None)


def test_an_ended_pod_of_a_job_does_not_hide_that_the_others_are_idle():
    ended = facts("train-0", phase="Failed", ended="2023-11-02T00:00:00Z")
    assessment = judge(WindowBuilder().add("train-1", 0.0), ended, facts("train-1"))
    assert [(each.facts.key.name, each.finding.kind) for each in assessment.findings] == [("train-1", Kind.IDLE)]
    assert assessment.states == {"idle": 1}


def test_a_pod_that_does_not_run_yet_is_unknown():
    assessment = judge(WindowBuilder().add("train-0", 0.0), facts(phase="Pending"))
    assert assessment.states == {"unknown": 1}


def test_a_pod_with_fewer_devices_than_it_asked_for_is_unknown():
    pod = facts(limits={"nvidia.com/gpu": "2"})
    assert judge(WindowBuilder().add("train-0", 0.0), pod).states == {"unknown": 1}


@pytest.mark.parametrize(
    ("changes", "devices", "gang"),
    [
        ({"limits": {"nvidia.com/gpu": "2"}}, 2, "team/Job/train"),
        ({"owner": ""}, 1, ""),
        (
            {"limits": {"nvidia.com/gpu.shared": "1"}, "annotations": {"kgwe.nvidia.io/gpu-share": "0.25"}},
            None,
            "team/Job/train",
        ),
    ],
)
def test_pods_are_judged_with_their_devices_and_gang(changes, devices, gang):
    judged = describe_pod(facts(**changes))
    assert (judged.devices, judged.gang) == (devices, gang)


def test_the_problem_of_the_source_is_part_of_the_result():
    source = Source(WindowBuilder().build())
    source.trouble = "no exporter answers"
    made = detector(WindowBuilder(), facts(), source=source)
    assert made.judge(source.window, END_S).problem == "no exporter answers"


async def test_a_source_that_fails_raises_and_judges_nothing():
    source = Source(WindowBuilder().build())
    source.fails = True
    with pytest.raises(errors.Transient):
        await detector(WindowBuilder(), facts(), source=source).assess(END_S)


def test_savings_leave_out_advice_without_money_or_certainty():
    pods = [facts(name, namespace=space) for name, space in (("a", "x"), ("b", "x"), ("c", "y"), ("d", "y"))]
    advice = [
        recommendation(pods[0], 3.0),
        recommendation(pods[1], 2.0),
        recommendation(pods[2], None),
        recommendation(pods[3], 5.0, is_advice_only=True),
    ]
    findings = tuple(found(pod, recommendation=each) for pod, each in zip(pods, advice, strict=True))
    assert sum_savings(Assessment(findings=findings)) == {"x": 5.0}


def test_findings_are_selected_by_namespace_and_score_worst_first():
    low, high = found(facts("a"), score=20.0), found(facts("b"), score=90.0)
    uneven, other = found(facts("c"), Kind.IMBALANCE, score=None), found(facts("d", namespace="other"), score=50.0)
    every = [low, high, uneven, other]
    assert [each.facts.key.name for each in select_findings(every, "", 0)] == ["b", "d", "a", "c"]
    assert [each.facts.key.name for each in select_findings(every, "team", 30)] == ["b", "c"]
