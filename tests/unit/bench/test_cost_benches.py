"""The benchmarks of the cost engine, at a small size: what they measure balances, and the methods differ as stated."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgwe.bench.cost import ledger, price_split

DATA = Path(__file__).parents[3].parent / "shared/data/prices/gpu_prices_2026-08-22.csv"


def test_the_ledger_balances_and_reports():
    metrics = ledger.run(ledger.Options(segments=500)).metrics
    assert metrics["unbalanced_microdollars"] == 0
    assert metrics["segments"] >= 500
    assert {"events_per_s", "report_30d_ms", "report_365d_ms", "mb_per_million"} <= metrics.keys()


def test_market_finds_the_part_of_the_gpus_where_other_methods_do_not(tmp_path: Path):
    head = "cloud,instance_type,accelerator,accelerator_count,vcpus,memory_gib,region,zone,price_usd_h"
    rows = [
        "gcp,,A100,1,,,us,us-a,3.0",
        "gcp,,H100,8,,,us,us-a,80.0",
        "gcp,,L4,1,,,us,us-a,0.6",
        "gcp-host,a2-highgpu-1g,,,12,85,us,us-a,0.74",
        "gcp-host,a3-highgpu-8g,,,208,1872,us,us-a,14.5",
        "gcp-host,g2-standard-8,,,8,32,us,us-a,0.39",
        "gcp-host,a4-highgpu-8g,,,8,32,us,us-a,0",
    ]
    path = tmp_path / "prices.csv"
    path.write_text("\n".join((head, *rows)))
    points = price_split.run(price_split.Options(path)).metrics["mean_error_points"]
    assert points["market"] < 2 < points["fixed"] < points["opencost"]


@pytest.mark.skipif(not DATA.exists(), reason="the price catalogue is not here")
def test_market_is_within_five_points_on_the_recorded_catalogue():
    metrics = price_split.run(price_split.Options(DATA)).metrics
    assert metrics["mean_error_points"]["market"] <= 5
    assert metrics["shapes"] >= 21
