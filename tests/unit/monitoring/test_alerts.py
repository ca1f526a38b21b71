"""Each alert fires in its fault, and at no other time: promtool evaluates the rules of the chart.

A series has one sample per minute, and rules are evaluated once per minute.
"""

from __future__ import annotations

import re

import pytest
from tests.support import promtool

from kgwe.monitoring.rules import catalogue

ALERTS = {alert.name: alert for alert in catalogue.list_alerts()}
# A fault begins with its series; ranges of rates and increases need samples before they say something.
MARGIN_MIN = 2
DAY = ("1h", "6h", "12h", "18h", "23h")


def minutes(duration):
    text = duration or "0m"
    return int(text[:-1]) * (60 if text.endswith("h") else 1)


def quiet(alert, times=DAY):
    """What promtool expects if the alert never fires."""
    return {"alert_rule_test": [{"eval_time": each, "alertname": alert.name, "exp_alerts": []} for each in times]}


def fires(alert, at_min):
    """What promtool expects if the alert fires, whatever its labels: the series ALERTS has it."""
    query = f'count(ALERTS{{alertname="{alert.name}",alertstate="firing"}}) > bool 0'
    return {
        "promql_expr_test": [{"expr": query, "eval_time": f"{at_min}m", "exp_samples": [{"labels": "{}", "value": 1}]}]
    }


def needed_minutes(alert):
    """When an alert must fire at the latest: two evaluations after its wait, counted from when its data suffices."""
    windows = [minutes(each) for each in re.findall(r"\[(\d+[mh])", alert.expr)]
    early = max(windows, default=0) if "min_over_time" in alert.expr else 10
    old = re.search(r"> (\d{3,})$", alert.expr)  # seconds since something happened
    age = int(old.group(1)) // 60 if old and "time()" in alert.expr else 0
    return max(early, age + 3) + minutes(alert.wait) + MARGIN_MIN


def test_each_alert_fires_in_its_fault_two_evaluations_after_its_wait(tmp_path):
    tests = [
        (alert, promtool.build_test(name, alert.fault, **fires(alert, needed_minutes(alert))))
        for name, alert in ALERTS.items()
    ]
    assert promtool.run_tests(tmp_path, tests) == ""


@pytest.mark.slow
def test_no_alert_fires_in_a_clean_day(tmp_path):
    tests = [(alert, promtool.build_test(name, alert.healthy, **quiet(alert))) for name, alert in ALERTS.items()]
    assert promtool.run_tests(tmp_path, tests) == ""


def test_without_any_data_only_alerts_about_missing_data_fire(tmp_path):
    unrelated = [("unrelated", "1x120")]
    tests = []
    for name, alert in ALERTS.items():
        expected = fires(alert, 30) if alert.fires_without_data else quiet(alert, ("10m", "1h", "2h"))
        tests.append((alert, promtool.build_test(name, unrelated, **expected)))
    assert promtool.run_tests(tmp_path, tests) == ""


def test_no_alert_fires_when_prometheus_or_the_process_was_restarted(tmp_path):
    """Samples are missing for ten minutes, and counters begin again at zero after that."""
    tests = []
    for name, alert in ALERTS.items():
        series = [(each, f"{_first_hour(values)} _x10 {_first_hour(values)}") for each, values in alert.healthy]
        if not alert.fires_without_data and "timestamp" not in alert.expr:
            times = ("59m", "72m", "75m", "80m", "100m")
            tests.append((alert, promtool.build_test(name, series, **quiet(alert, times))))
    assert promtool.run_tests(tmp_path, tests) == ""


def _first_hour(values):
    """The first part of a series, for an hour."""
    head = values.split(" ")[0]
    return re.sub(r"x\d+$", "x59", head) if not head.startswith("_") else "_x60"


@pytest.mark.parametrize("alert", ALERTS.values(), ids=ALERTS)
def test_an_alert_says_what_it_means_and_what_to_do(alert):
    assert alert.meaning.endswith(".")
    assert alert.checks
    assert alert.fixes
    assert alert.healthy
    assert alert.fault or alert.fires_without_data
