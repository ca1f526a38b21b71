"""`kgwe bench client`: its arithmetic, and a small run on the loopback server."""

from __future__ import annotations

import pytest

from kgwe import errors
from kgwe.bench.client import benchmark, probe
from kgwe.bench.client.probe import HTTPX2, OWN, Result
from kgwe.local.host.progress import Silent


def test_numbers_are_medians_and_ratios_are_baseline_over_ours():
    requests = {
        OWN: [Result(100, 1.0, 0.01, 1.0, 4.0), Result(100, 2.0, 0.02, 2.0, 5.0), Result(100, 4.0, 0.09, 9.0, 9.0)],
        HTTPX2: [Result(100, 2.0, 0.14, 3.0, 6.0)],
    }
    watches = {OWN: [Result(1000, 1.0, 0.01)], HTTPX2: [Result(1000, 1.0, 0.05)]}

    metrics = benchmark.summarize(requests, watches)

    assert metrics["requests_per_s"] == 50
    assert (metrics["cpu_ms_per_request"], metrics["p50_ms"], metrics["p99_ms"]) == (0.2, 2.0, 5.0)
    assert (metrics["httpx2_cpu_ms_per_request"], metrics["httpx2_p99_ms"]) == (1.4, 6.0)
    assert (metrics["cpu_saved_ms_per_request"], metrics["cpu_ratio"]) == (1.2, 7.0)
    assert (metrics["watch_cpu_us_per_event"], metrics["watch_cpu_ratio"]) == (10.0, 5.0)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"requests": 0}, "--requests must be"),
        ({"workers": 0}, "--workers must be"),
        ({"events": 0}, "--events must be"),
        ({"repeat": 0}, "--repeat must be"),
        ({"requests": 8, "workers": 16}, "at least --workers 16"),
    ],
)
def test_a_size_that_cannot_be_measured_is_refused(wrong, complaint):
    with pytest.raises(errors.Permanent, match=complaint):
        benchmark.Options(**wrong).check()


@pytest.mark.slow
def test_both_transports_are_measured_on_the_loopback_server():
    options = benchmark.Options(requests=40, workers=4, events=20, repeat=1, loopback=True)

    measured = benchmark.run(options, Silent())

    assert measured.name == "client"
    assert measured.params["requests"] == 40
    for prefix in ("", "httpx2_"):
        assert measured.metrics[f"{prefix}requests_per_s"] > 0
        assert measured.metrics[f"{prefix}p99_ms"] >= measured.metrics[f"{prefix}p50_ms"] > 0
    assert set(probe.WAYS) == {OWN, HTTPX2}
