"""Metrics of savings: per month while advice is followed, and dollars until now."""

from __future__ import annotations

import msgspec

from kgwe.apps.optimizer.metrics import Metrics
from kgwe.apps.optimizer.waste.savings import Advice, Entry, Form


def test_savings_are_shown_per_month_and_in_total():
    form = Form(1000)
    advice = (Advice("Shrink", "1g.10gb", 1.0, form, 0.0),)
    entry = Entry(
        "ml", "Job", "a", form, advice, 9.0, followed_s=1.0, realized_per_hour=2.0, realized=30.0, earlier=5.0
    )
    ended = msgspec.structs.replace(entry, name="b", ended_s=5.0, realized=-4.0, earlier=0.0)
    unknown = msgspec.structs.replace(entry, name="c", realized_per_hour=None, realized=None, earlier=0.0)
    metrics = Metrics()
    for _ in range(2):
        metrics.show_savings([entry, ended, unknown])
    find = metrics.registry.get_sample_value
    assert find("gpu_autoscaler_total_savings_usd") == 31.0
    assert find("kgwe_cost_savings_realized_dollars", {"namespace": "ml"}) == 2.0 * 730
