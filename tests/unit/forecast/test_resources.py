import pytest

from kgwe.forecast.memory import MemoryNeed
from kgwe.forecast.resources import forecast_resources, measure_activity
from kgwe.forecast.runtime.query import UNKNOWN, Prediction
from kgwe.model.usage.history import UsagePeak

NOTHING = MemoryNeed(is_known=False, reasons=("GPU memory: 0 hours of use measured, 3 are needed",))
HOUR = Prediction(
    is_known=True, quantiles={0.1: 3000.0, 0.5: 3600.0, 0.9: 5000.0}, lower_s=3000.0, upper_s=5000.0, confidence=0.8
)
PROFILES = (("1g.10gb", 9_728.0), ("2g.20gb", 19_968.0), ("7g.80gb", 80_000.0))


def need(mib: float) -> MemoryNeed:
    return MemoryNeed(is_known=True, recommended_mib=mib, confidence=0.6)


def peaks(activity: float | None, count: int = 5) -> list[UsagePeak]:
    return [UsagePeak("f", i, 60, 0, 1.0, 80_000.0, activity, 0.9, 300.0) for i in range(count)]


def test_without_history_the_request_is_recommended_and_the_rest_is_unknown():
    found = forecast_resources(requested_gpus=4, runtime=UNKNOWN, memory=NOTHING, peaks=[])
    assert found.recommended_gpus == 4
    assert found.recommended_memory_gb is None
    assert found.expected_utilization is None
    assert found.expected_duration_seconds is None
    assert found.confidence == 0.0
    assert found.estimated_cost is None


def test_cost_is_price_times_gpus_times_run_time():
    found = forecast_resources(
        requested_gpus=2, runtime=HOUR, memory=need(1024.0), peaks=peaks(0.9), price_per_gpu_hour=3.0
    )
    assert found.estimated_cost_per_hour == pytest.approx(6.0)
    assert found.estimated_cost == pytest.approx(6.0)
    assert found.recommended_memory_gb == 1.0
    assert found.prefer_nvlink


def test_idle_gpus_are_given_back_only_where_memory_allows():
    small = forecast_resources(
        requested_gpus=4, runtime=HOUR, memory=need(10_000.0), peaks=peaks(0.15), gpu_memory_mib=80_000.0
    )
    large = forecast_resources(
        requested_gpus=4, runtime=HOUR, memory=need(70_000.0), peaks=peaks(0.15), gpu_memory_mib=80_000.0
    )
    assert small.recommended_gpus == 1
    assert large.recommended_gpus == 4


def test_unknown_memory_never_shrinks_a_workload():
    found = forecast_resources(
        requested_gpus=4, runtime=HOUR, memory=NOTHING, peaks=peaks(0.05), gpu_memory_mib=80_000.0, profiles=PROFILES
    )
    assert found.recommended_gpus == 4
    assert not found.recommended_mig_profile


def test_the_smallest_profile_that_holds_the_memory_is_chosen():
    found = forecast_resources(
        requested_gpus=1, runtime=HOUR, memory=need(12_000.0), peaks=peaks(0.1), profiles=PROFILES
    )
    assert found.recommended_mig_profile == "2g.20gb"


def test_a_busy_workload_keeps_its_gpu():
    found = forecast_resources(requested_gpus=1, runtime=HOUR, memory=need(1.0), peaks=peaks(0.9), profiles=PROFILES)
    assert not found.recommended_mig_profile


def test_at_most_three_reasons_are_given():
    found = forecast_resources(requested_gpus=1, runtime=UNKNOWN, memory=NOTHING, peaks=peaks(0.5))
    assert len(found.reasoning) == 3


def test_unmeasured_activity_is_unknown():
    assert measure_activity(peaks(None)) is None
    assert measure_activity(peaks(0.5, count=2)) is None
