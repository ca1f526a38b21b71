"""The benchmark of the queue says what it is asked to say."""

import pytest

from kgwe.bench.placement import queue
from kgwe.local.host.progress import Silent


@pytest.mark.slow
def test_it_times_and_compares():
    options = queue.Options(nodes=24, repeat=1, small=8, jobs=24, heroes=1, seeds=1)

    metrics = queue.run(options, Silent()).metrics

    assert metrics["running_pods"] == 23 * 8
    assert metrics["woken_10k_attempts"] == 1
    assert all(metrics[name] > 0 for name in ("order_10k_ms", "pod_pass_us", "hold_ms", "estimate_200_ms"))
    assert set(metrics["rules"]) == {
        *("block", "greedy", "hold", "backfill"),
        *("by kind/hold", "by kind/backfill", "unknown/hold", "unknown/backfill"),
    }
    assert all(row["unfinished"] == 0 for row in metrics["rules"].values())
    assert set(metrics["told"]) == {"exact", "by kind", "unknown"}
