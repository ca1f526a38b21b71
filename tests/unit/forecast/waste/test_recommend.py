"""Recommendations: one per pod, large enough, priced, and never counted twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kgwe.forecast.waste import recommend as module
from kgwe.forecast.waste.alternatives import Action, Needs
from kgwe.forecast.waste.recommend import Prices, recommend, sum_savings
from kgwe.forecast.waste.rules import Rules
from kgwe.forecast.waste.states import Reason, State
from kgwe.forecast.waste.verdicts import Verdict
from kgwe.model.usage.window import PodKey

RULES = Rules()
POD = PodKey("team", "p")
PRICES = Prices({"H100-SXM5-80GB": 3.0, "L4": 0.5, "A100-SXM4-80GB": 2.5}, {"H100-SXM5-80GB": 1.2})
WEEK = Needs(history_s=7 * 86400.0)
BUSY = Verdict(
    POD,
    State.BUSY,
    Reason.MEASURED,
    devices=1,
    activity=0.9,
    p95=0.95,
    peak=0.95,
    memory_peak_mib=60_000.0,
    memory_total_mib=81_000.0,
    coverage=1.0,
    model="NVIDIA H100 80GB HBM3",
)
LOW = replace(BUSY, activity=0.1, p95=0.1, peak=0.12, memory_peak_mib=6000.0, is_underused=True)
IDLE = replace(LOW, state=State.IDLE, activity=0.0, p95=0.0, is_underused=False, is_corroborated=True)


def advise(verdict, needs=WEEK, prices=PRICES, fits=lambda _: True):
    return recommend(verdict, needs, prices, RULES, fits)


def test_an_idle_pod_is_suspended_and_saves_its_whole_cost():
    found = advise(IDLE)
    assert (found.action, found.hourly_cost, found.hourly_saving) == (Action.SUSPEND, 3.0, 3.0)
    assert found.monthly_saving == pytest.approx(3.0 * 730)
    assert found.confidence > 0.95


def test_a_busy_pod_keeps_its_gpu():
    found = advise(BUSY)
    assert (found.action, found.reasons) == (Action.NONE, ("its devices are used",))
    assert found.hourly_saving is None


@pytest.mark.parametrize("verdict", [replace(IDLE, state=State.UNKNOWN, reason=Reason.GAP)])
def test_an_unknown_state_gets_no_recommendation(verdict):
    assert advise(verdict).action is Action.NONE
    assert "Gap" in advise(verdict).reasons[0]


def test_a_pod_out_of_balance_is_a_mistake_and_gets_none():
    uneven = replace(LOW, devices=8, idle_devices=("GPU-3",), is_unbalanced=True)
    assert advise(uneven).action is Action.NONE


def test_an_idle_rank_of_a_working_gang_is_not_suspended():
    found = advise(replace(IDLE, gang="team/g", is_unbalanced=True))
    assert (found.action, found.hourly_saving) == (Action.NONE, None)


def test_the_smallest_slice_that_holds_memory_and_activity_is_recommended():
    found = advise(LOW, prices=Prices({"H100-SXM5-80GB": 3.0}, {}))
    assert found.action in {Action.MIG_PROFILE, Action.SHARE}
    sliced = advise(LOW, fits=lambda each: each.action is Action.MIG_PROFILE)
    assert sliced.alternative is not None
    assert sliced.alternative.mig_profile == "1g.10gb"
    assert sliced.hourly_saving == pytest.approx(3.0 * 6 / 7)
    more_memory = advise(replace(LOW, memory_peak_mib=12_000.0), fits=lambda each: each.action is Action.MIG_PROFILE)
    assert more_memory.alternative is not None
    assert more_memory.alternative.mig_profile == "1g.20gb"


def test_the_memory_of_past_runs_counts_too():
    needs = replace(WEEK, memory_mib=30_000.0)
    found = advise(LOW, needs, fits=lambda each: each.action is Action.MIG_PROFILE)
    assert found.alternative is not None
    assert found.alternative.mig_profile == "3g.40gb"


def test_memory_that_was_too_small_before_is_never_recommended_again():
    needs = replace(WEEK, too_small_mib=40_448.0)
    found = advise(LOW, needs, fits=lambda each: each.action is Action.MIG_PROFILE)
    assert found.action is Action.NONE


def test_bursts_do_not_fit_a_slice_but_can_share_a_gpu():
    bursty = replace(LOW, state=State.BURSTY, activity=0.15, p95=0.8, peak=0.8)
    found = advise(bursty)
    assert found.alternative is not None
    assert (found.action, found.alternative.shares) == (Action.SHARE, 4)
    assert found.saved_share == 0.75


def test_unknown_memory_means_no_smaller_device():
    found = advise(replace(LOW, memory_peak_mib=None))
    assert (found.action, found.reasons) == (Action.NONE, ("its memory use is unknown",))


def test_a_preallocator_gets_advice_that_counts_in_no_sum():
    full = replace(LOW, memory_peak_mib=73_000.0)
    assert advise(full).action is Action.NONE
    found = advise(full, replace(WEEK, is_preallocator=True))
    assert found.is_advice_only
    assert "memory need is unknown" in " ".join(found.reasons)
    totals = sum_savings([found])
    assert (totals.recommendations, totals.advice_only, totals.hourly_saving) == (1, 1, 0.0)


def test_an_idle_preallocator_can_be_suspended():
    assert not advise(IDLE, replace(WEEK, is_preallocator=True)).is_advice_only


def test_without_a_price_there_is_no_money_but_a_share():
    found = advise(LOW, prices=Prices({}, {}))
    assert found.hourly_saving is None
    assert found.monthly_saving is None
    assert found.saved_share is not None
    assert found.saved_share > 0.8
    assert sum_savings([found]).unpriced == 1


def test_a_cheaper_model_needs_a_price_memory_and_speed():
    found = advise(LOW, fits=lambda each: each.action is Action.SMALLER_GPU)
    assert found.alternative is not None
    # An L4 has 9 % of the memory bandwidth of an H100: too slow for 10 %.
    assert found.action is Action.SMALLER_GPU
    assert found.alternative.model == "A100-SXM4-80GB"
    slower = replace(LOW, activity=0.05, p95=0.06)
    cheap = advise(slower, fits=lambda each: each.action is Action.SMALLER_GPU)
    assert cheap.alternative is not None
    assert cheap.alternative.model == "L4"


def test_fewer_gpus_hold_all_memory_and_activity_together():
    eight = replace(LOW, devices=8, p95=0.2, memory_peak_mib=20_000.0)
    found = advise(eight, fits=lambda each: each.action is Action.FEWER_GPUS)
    assert found.alternative is not None
    assert found.alternative.devices == 3
    assert found.hourly_saving == pytest.approx(5 * 3.0)


def test_several_gpus_or_a_gang_get_no_slices_and_shares():
    kept = {Action.MIG_PROFILE, Action.SHARE}
    assert advise(replace(LOW, devices=8), fits=lambda each: each.action in kept).action is Action.NONE
    assert advise(replace(LOW, gang="team/g")).action is Action.NONE


def test_spot_is_recommended_only_to_owners_that_accept_it():
    assert advise(BUSY, replace(WEEK, is_spot_ok=True)).hourly_saving == pytest.approx(1.8)
    assert advise(BUSY, replace(WEEK, is_spot_ok=True, is_spot=True)).action is Action.NONE


def test_what_does_not_fit_is_skipped_and_named():
    found = advise(LOW, fits=lambda each: each.action is Action.SHARE)
    assert found.action is Action.SHARE
    assert found.is_feasible is True
    assert "no room for MIG profile 1g.10gb" in found.reasons
    assert advise(LOW, fits=lambda _: False).action is Action.NONE


def test_an_unchecked_recommendation_is_less_certain():
    known, unknown = advise(LOW), advise(LOW, fits=lambda _: None)
    assert unknown.is_feasible is None
    assert unknown.confidence < known.confidence


def test_short_history_and_lost_samples_lower_confidence():
    assert advise(LOW, Needs()).confidence < advise(LOW).confidence
    assert advise(replace(LOW, coverage=0.9)).confidence < advise(LOW).confidence


def test_four_sharers_of_an_idle_gpu_save_one_gpu_together():
    pods = [replace(IDLE, pod=PodKey("team", name), fraction=0.25, is_shared=True) for name in "abcd"]
    assert sum_savings([advise(each) for each in pods]).hourly_saving == pytest.approx(3.0)


def test_a_pod_counts_once_in_sums():
    assert sum_savings([advise(IDLE), advise(IDLE)]).hourly_saving == pytest.approx(3.0)


def test_a_month_has_730_hours():
    assert sum_savings([advise(IDLE)]).monthly_saving == pytest.approx(3.0 * module.HOURS_PER_MONTH)
