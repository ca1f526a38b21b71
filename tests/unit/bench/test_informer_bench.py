"""The arithmetic of `kgwe bench informer`; `tests/integration/kube/test_informer_scale.py` runs it."""

from __future__ import annotations

import pytest

from kgwe import errors
from kgwe.bench.nodes import informer
from kgwe.bench.nodes.informer_probe import DICTS, INFORMER, JSON, LIGHTKUBE, Result


def result(cpu_s: float, rss_mb: float) -> Result:
    return Result(
        pods=1000,
        wall_s=[2 * cpu_s, 4 * cpu_s, 3 * cpu_s],
        cpu_s=[cpu_s, 2 * cpu_s, 9 * cpu_s],
        rss_before_mb=40.0,
        rss_mb=rss_mb,
        rss_peak_mb=rss_mb + 5,
        bytes=4_000_000,
    )


def test_numbers_are_medians_per_pod_and_ratios_are_baseline_over_ours():
    metrics = informer.summarize(
        {
            INFORMER: [result(0.010, 50), result(0.010, 52), result(0.010, 90)],
            JSON: [result(0.009, 53)],
            LIGHTKUBE: [result(0.050, 76)],
            DICTS: [result(0.080, 90)],
        }
    )

    assert metrics["pods"] == 1000
    assert metrics["us_per_pod"] == 30
    assert metrics["cpu_us_per_pod"] == 20
    assert metrics["list_s"] == 0.03
    assert (metrics["rss_mb"], metrics["rss_added_mb"], metrics["rss_peak_mb"]) == (52, 12, 57)
    assert metrics["bytes_per_pod"] == 4000
    assert metrics["lightkube_cpu_us_per_pod"] == 100
    assert (metrics["cpu_ratio"], metrics["rss_ratio"]) == (5, 3)
    assert set(metrics["ways"]) == {INFORMER, JSON, LIGHTKUBE, DICTS}


@pytest.mark.parametrize("name", ["pods", "page_size", "lists", "repeat"])
def test_nothing_is_started_for_a_size_that_makes_no_sense(name):
    with pytest.raises(errors.Permanent, match=f"--{name.replace('_', '-')} must be at least 1"):
        informer.Options(**{name: 0}).check()


def test_pods_are_distinct():
    names = {informer.build_pod(index)["metadata"]["name"] for index in range(200)}

    assert len(names) == 200
