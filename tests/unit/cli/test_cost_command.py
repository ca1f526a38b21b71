"""`kgwe cost` and `kgwe report` show the ledger as tables, CSV, JSON and YAML with the same sums."""

from __future__ import annotations

import csv
import io
from decimal import Decimal
from typing import TYPE_CHECKING

import msgspec
import pytest
import yaml
from tests.support.contracts.ledger import make_segments

from kgwe import errors
from kgwe.cli.cost import ledger_access
from kgwe.cli.cost.cost import cost
from kgwe.cli.cost.report import report
from kgwe.store.ledger.ledger import Ledger

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("cost") / "cost.db")
    segments = make_segments(range(6))
    end = max(each.end_s for each in segments)
    with Ledger.open(path) as ledger:
        state = {"counted_until_s": str(end), "split_method": "market", "currency": "USD"}
        ledger.put(segments, state | {"gaps": f"[[{end - 900},{end - 300}]]"})
    return path


def test_json_lines_sum_to_the_books(store, capsys):
    cost(store=store, last="4w", output="json")
    told = msgspec.json.decode(capsys.readouterr().out)
    assert told["splitMethod"] == "market"
    parts = ("allocated", "idle", "unallocated", "reservedIdle")
    assert sum(Decimal(told[name]) for name in parts) == Decimal(told["fleet"])
    held = Decimal(told["allocated"]) + Decimal(told["idle"])
    assert sum(Decimal(line["cost"]) for line in told["lines"]) == held
    for line in told["lines"]:
        assert Decimal(line["used"]) + Decimal(line["idle"]) + Decimal(line["unmeasured"]) == Decimal(line["cost"])
    assert len(told["gaps"]) == 1


def test_the_table_names_the_method_the_gap_and_what_is_unpriced(store, capsys):
    cost(store=store, last="4w")
    told = capsys.readouterr().out
    assert "split method: market" in told
    assert "not metered from" in told
    assert "have no price" in told
    assert "NAMESPACE" in told


def test_csv_and_yaml_have_the_same_lines(store, capsys):
    cost(store=store, last="4w", output="yaml", by="workload")
    by_yaml = yaml.safe_load(capsys.readouterr().out)
    cost(store=store, last="4w", output="csv", by="workload")
    rows = [row for row in csv.DictReader(io.StringIO(capsys.readouterr().out)) if row["by"] == "workload"]
    assert [(row["name"], row["cost"]) for row in rows] == [(line["name"], line["cost"]) for line in by_yaml["lines"]]


def test_a_report_has_sections_with_the_same_total(store, capsys):
    report(store=store, last="4w", output="json")
    sections = msgspec.json.decode(capsys.readouterr().out)
    assert len({sum(Decimal(line["cost"]) for line in each["lines"]) for each in sections}) == 1
    report(store=store, last="4w")
    assert "COST-CENTER" in capsys.readouterr().out


def test_a_namespace_can_be_chosen(store, capsys):
    cost(store=store, last="4w", output="json")
    first = msgspec.json.decode(capsys.readouterr().out)["lines"][0]
    cost(store=store, last="4w", output="json", namespace=first["name"])
    (line,) = msgspec.json.decode(capsys.readouterr().out)["lines"]
    assert (line["name"], line["gpuHours"]) == (first["name"], first["gpuHours"])
    # Lines are rounded so that they sum to the total of their report.
    assert abs(Decimal(line["cost"]) - Decimal(first["cost"])) <= Decimal("0.000001")


@pytest.mark.parametrize("text", ["", "7", "0d", "d", "7 days", "-1h"])
def test_a_time_that_is_none_is_refused(text):
    with pytest.raises(errors.Permanent, match="expected a time such as"):
        ledger_access.parse_last(text)


def test_a_ledger_that_is_absent_names_the_engine(tmp_path: Path):
    with pytest.raises(errors.Transient, match="kgwe cost-engine"):
        cost(store=str(tmp_path / "none.db"))
