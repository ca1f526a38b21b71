"""`kgwe budget`: what it prints about budgets."""

from __future__ import annotations

import json

import pytest

from kgwe.cli.cost import budget
from kgwe.kube.api.kgwe.gpubudget import BudgetAlert, GPUBudget, GPUBudgetSpec, GPUBudgetStatus
from kgwe.kube.api.meta import Condition, ObjectMeta

STATUS = GPUBudgetStatus(
    currentSpend="120.500000",
    utilizationPercent=120.5,
    encumbered="7.00",
    projectedSpend="150.00",
    projectedLow="140.00",
    projectedHigh="160.00",
    periodStart="2026-11-18T00:00:00Z",
    periodEnd="2026-11-19T00:00:00Z",
    exceededSince="2026-11-18T10:00:00Z",
    alerts=(BudgetAlert(1.0, "2026-11-18T10:00:00Z", acknowledged=True),),
    waitingWorkloads=2,
    conditions=(Condition("Ready", "True", "Counting", "Spend is counted."),),
)
SPEC = GPUBudgetSpec(limit="100", period="Daily", enforcementPolicy="Block")


def make(status: GPUBudgetStatus = STATUS, spec: GPUBudgetSpec = SPEC) -> GPUBudget:
    return GPUBudget(metadata=ObjectMeta(name="daily", namespace="ml"), spec=spec, status=status)


def test_a_list_has_one_line_per_budget() -> None:
    lines = budget.print_rows([budget.make_row(make())], "text").splitlines()
    assert lines[0].split() == [
        "NAMESPACE", "BUDGET", "LIMIT", "SPENT", "ENCUMBERED", "PROJECTED", "USED", "POLICY", "WAITING", "STATUS"
    ]  # fmt: skip
    assert lines[1].split() == [
        "ml", "daily", "100", "USD", "120.500000", "7.00", "150.00", "120.5%", "Block", "2", "Exceeded"
    ]  # fmt: skip
    assert json.loads(budget.print_rows([budget.make_row(make())], "json"))[0]["usedPercent"] == 120.5
    assert "usedPercent: 120.5" in budget.print_rows([budget.make_row(make())], "yaml")
    assert "There are no budgets" in budget.print_rows([], "text")


def test_a_budget_without_effect_says_why() -> None:
    bad = GPUBudgetStatus(conditions=(Condition("Ready", "False", "UnknownTimeZone", "timeZone is not known."),))
    assert budget.make_row(make(bad)).status == "UnknownTimeZone"
    assert budget.make_row(make(GPUBudgetStatus())).status == "NotCounted"


def test_an_explanation_names_alerts_and_what_waits() -> None:
    row = budget.make_row(make())
    told = budget.BudgetExplanation(row, {}, ["ml/train: Budget ml/daily is used up."])
    text = budget.print_explanation(told, make(), "text")
    assert "120.500000 of 100 USD spent (120.5 %), 7.00 encumbered; Block" in text
    assert "Projected: 150.00, between 140.00 and 160.00" in text
    assert "Alert: 100% reached at 2026-11-18T10:00:00Z, acknowledged" in text
    assert "1 workload waits because of it:\n    ml/train: Budget ml/daily is used up." in text
    assert json.loads(budget.print_explanation(told, make(), "json"))["budget"]["name"] == "daily"


@pytest.mark.parametrize("flags", [[], ["-A"], ["--all-namespaces", "-n", "ml"]])
def test_all_namespaces_are_listed_unless_one_is_named(flags: list[str]) -> None:
    _, bound, _ = budget.app.parse_args(["list", *flags])
    assert bound.arguments.get("all_namespaces", False) is (bool(flags))
