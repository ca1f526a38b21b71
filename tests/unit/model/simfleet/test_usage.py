"""Use profiles: bounded, repeatable, and clear about what they do not accept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgwe import errors
from kgwe.model.gpu import catalog
from kgwe.model.simfleet import sensors, usage

shares = st.floats(min_value=0, max_value=1).map(lambda share: round(share, 4))
times = st.floats(min_value=0.001, max_value=10**7).map(lambda seconds: round(seconds, 3))
moments = st.floats(min_value=-(10.0**9), max_value=4 * 10.0**9)

profiles = st.builds(
    usage.Profile,
    kind=st.sampled_from(["idle", "constant", "bursty", "diurnal", "oom-after"]),
    util=shares,
    mem=shares,
    base=shares,
    tensor=shares,
    dram=shares,
    noise=shares,
    period=times,
    duty=shares,
    peak=times,
    after=times,
)


@given(profiles, moments, moments, st.integers(min_value=0, max_value=2**64 - 1))
def test_use_always_lies_between_nothing_and_everything(profile, age, clock, seed):
    got = usage.usage_at(profile, age, clock, seed)
    for share in (got.util, got.memory, got.tensor, got.dram):
        assert 0.0 <= share <= 1.0
    assert got == usage.usage_at(profile, age, clock, seed)


@given(profiles, moments, st.integers(min_value=0, max_value=2**32), st.sampled_from(list(catalog.CATALOGUE.values())))
def test_instruments_stay_within_what_the_card_can_do(profile, age, seed, model):
    got = sensors.read_sensors(model, usage.usage_at(profile, age, age, seed), links=model.nvlink_links)
    assert model.idle_w <= got.power_w <= model.limit_w
    assert 0 < got.sm_mhz <= model.sm_mhz + 7
    assert 20 <= got.gpu_c < 90
    assert got.nvlink_bytes_per_s <= model.nvlink_gb_per_s * 10**9


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("idle", {"kind": "idle"}),
        ("idle()", {"kind": "idle"}),
        ("constant(util=0.9,mem=0.7)", {"kind": "constant", "util": 0.9, "mem": 0.7}),
        (" constant ( util = 90% , mem = 70% ) ", {"kind": "constant", "util": 0.9, "mem": 0.7}),
        ("bursty(period=90s, duty=25%)", {"kind": "bursty", "period": 90.0, "duty": 0.25}),
        ("diurnal(peak=14h, base=0)", {"kind": "diurnal", "peak": 50400.0, "base": 0.0}),
        ("oom-after(600s)", {"kind": "oom-after", "after": 600.0}),
        ("oom-after(10m, mem=0.5)", {"kind": "oom-after", "after": 600.0, "mem": 0.5}),
        ("oom-after(after=1.5s)", {"kind": "oom-after", "after": 1.5}),
    ],
)
def test_a_profile_is_written_as_a_name_and_its_parameters(text, want):
    got = usage.parse_profile(text)
    assert {name: getattr(got, name) for name in want} == want


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not a use profile; write for example constant"),
        ("constant(util=0.9", "is not a use profile"),
        ("constant(util=0.9) twice", "is not a use profile"),
        ("x" * 1000, "is not a use profile"),
        ("steady(util=0.9)", "no use profile 'steady'; there are idle, constant, bursty"),
        ("constant(utl=0.9)", "constant takes util=, mem=, .* not 'utl=0.9'"),
        ("constant(0.9)", "constant takes util="),
        ("constant(util=0.9, util=0.8)", "each once"),
        ("constant(util=90)", "util=90 is not a share; write 0 to 1"),
        ("constant(util=-1)", "is not a share"),
        ("constant(util=1.1)", "is not a share"),
        ("constant(util=nan)", "is not a share"),
        ("bursty(period=90)", "period=90 is not a time; write for example period=90s"),
        ("bursty(period=0s)", "is not a time"),
        ("oom-after(never)", "after=never is not a time"),
        ("oom-after(mem=0.5, 10m)", "oom-after takes after="),
        ("idle(util=0.5)", "idle takes mem="),
    ],
)
def test_what_is_not_a_profile_is_refused_with_advice(text, why):
    with pytest.raises(errors.Permanent, match=why):
        usage.parse_profile(text)


@given(st.text(max_size=40))
def test_any_text_gives_a_profile_or_a_clear_error(text):
    try:
        usage.parse_profile(text)
    except errors.Permanent as error:
        refusal = str(error)
        assert "write" in refusal or "takes" in refusal or "there are" in refusal


def test_constant_use_is_steady_after_its_warm_up():
    profile = usage.parse_profile("constant(util=0.9, mem=0.7, noise=0)")
    assert usage.usage_at(profile, 0, 0, 1).util == 0.0
    assert {usage.usage_at(profile, age, age, 1).util for age in (20, 100, 10**6)} == {0.9}
    assert usage.usage_at(profile, 100, 100, 1).memory == 0.7


def test_bursty_use_is_busy_for_its_share_of_the_time():
    profile = usage.parse_profile("bursty(util=1, base=0, period=100s, duty=0.3, noise=0)")
    busy = sum(usage.usage_at(profile, age, 0, 7).util == 1.0 for age in range(1000, 2000))
    assert busy == pytest.approx(300, abs=10)


def test_diurnal_use_peaks_at_its_hour():
    profile = usage.parse_profile("diurnal(util=0.8, base=0.1, peak=14h, noise=0)")
    day = [usage.usage_at(profile, 10**6, hour * 3600.0, 1).util for hour in range(24)]
    assert max(day) == pytest.approx(0.8)
    assert day.index(max(day)) == 14
    assert day[2] == pytest.approx(0.1)


def test_oom_fills_the_memory_until_the_end_and_then_fails():
    profile = usage.parse_profile("oom-after(100s, mem=0.5)")
    assert [usage.usage_at(profile, age, 0, 1).memory for age in (0, 50, 100, 200)] == [0.5, 0.75, 1.0, 1.0]
    assert usage.fails_after_s(profile) == 100
    assert usage.fails_after_s(usage.parse_profile("idle")) is None


def test_pods_with_different_seeds_do_not_beat_as_one_heart():
    profile = usage.parse_profile("bursty(period=60s, duty=0.5, noise=0)")
    assert len({usage.usage_at(profile, 1000, 1000, seed).util for seed in range(20)}) == 2


@pytest.mark.parametrize("kind", [*usage.DEFAULTS, "", "Unheard"])
def test_every_workload_type_has_a_default(kind):
    for label in usage.WORKLOAD_TYPE_LABELS:
        assert usage.default_profile({label: kind}).kind in ("constant", "bursty", "diurnal")


def test_training_is_busier_than_inference():
    busy = [usage.default_profile({"kgwe.nvidia.io/workload-type": kind}) for kind in ("Training", "Inference")]
    mean = [sum(usage.usage_at(p, age, age, 3).util for age in range(100, 4000, 7)) for p in busy]
    assert mean[0] > 1.5 * mean[1]
