"""`kgwe cost` and `kgwe report` show the ledger as tables, CSV, JSON and YAML with the same sums."""

from __future__ import annotations

import csv
import io
import re
import shutil
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING

import msgspec
import pytest
import yaml
from tests.support.contracts.ledger import make_segments

from kgwe import errors
from kgwe.apps.optimizer.waste.savings import Advice, Entry, Form
from kgwe.cli.cost import ledger_access
from kgwe.cli.cost.bill import app as bill_app
from kgwe.cli.cost.bill import bill
from kgwe.cli.cost.cost import app as cost_app
from kgwe.cli.cost.cost import cost
from kgwe.cli.cost.report import app as report_app
from kgwe.cli.cost.report import report
from kgwe.cli.main import COMMANDS
from kgwe.costing.dates import format_time
from kgwe.costing.money import format_dollars
from kgwe.costing.reports.page import make_page
from kgwe.costing.reports.texts import make_csv
from kgwe.store.history import HistoryStore
from kgwe.store.ledger.charges import ChargeReader
from kgwe.store.ledger.ledger import Ledger, NodeFacts
from kgwe.store.ledger.savings import SavingRecord, record_savings

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


def test_a_page_escapes_names_and_shows_the_same_totals(store, tmp_path):
    report(store=store, last="4w", output="html", file=tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    (statement,) = ledger_access.load_statements(store, "4w", ("namespace",))
    assert f"<b>fleet {format_dollars(statement.fleet)}</b>" in text
    total = format_dollars(sum(line.micros for line in statement.lines))
    assert text.count(f"<td>Total</td><td>{total}</td>") == 6
    evil = replace(statement, lines=(replace(statement.lines[0], name="<script>alert(1)</script>"),))
    assert "<script>" not in make_page([evil])
    assert "&lt;script&gt;" in make_page([evil])


def test_names_are_no_formulas_in_a_spreadsheet(store):
    (statement,) = ledger_access.load_statements(store, "4w", ("namespace",))
    evil = replace(statement, lines=(replace(statement.lines[0], name="=HYPERLINK(1)"),))
    assert "'=HYPERLINK(1)" in make_csv([evil])


def test_a_pdf_is_written(store, tmp_path):
    pytest.importorskip("reportlab")
    report(store=store, last="4w", output="pdf", file=tmp_path / "r.pdf")
    assert (tmp_path / "r.pdf").read_bytes().startswith(b"%PDF-")
    with pytest.raises(errors.Permanent, match="needs --file"):
        report(store=store, output="pdf")


def test_the_return_on_investment_states_its_inputs(store, capsys, tmp_path):
    cost(store=store, last="4w", roi=True)
    told = capsys.readouterr().out
    assert "ROI: unknown, because no savings are known" in told
    cost(store=store, last="4w", roi=True, savings="552.328767", investment="300")
    told = capsys.readouterr().out
    assert "ROI: (savings 552.33 - investment 276.16) / investment = 100 %" in told
    assert "savings 552.33: as stated (--savings)" in told
    assert "300.00 per month of 730 hours (--investment)" in told
    with pytest.raises(errors.Permanent, match="inputs of --roi"):
        cost(store=store, savings="1")
    copy = str(tmp_path / "copy.db")
    shutil.copy(store, copy)
    with Ledger.open(copy) as ledger:
        end = int(ledger.load_state()["counted_until_s"])
        record_savings(ledger, [SavingRecord(end, "ml", "replay", 552_328_767, "replay of the last week")])
    cost(store=copy, last="4w", roi=True, investment="300")
    told = capsys.readouterr().out
    assert "ROI: (savings 552.33 - investment 276.16) / investment = 100 %" in told
    assert "replay of the last week" in told


def test_verified_savings_count_as_far_as_they_are_in_the_time(store, capsys, tmp_path):
    with Ledger.open(store, read_only=True) as ledger:
        end = int(ledger.load_state()["counted_until_s"])
    form = Form(1000)
    advice = (Advice("Shrink", "1g.10gb", 1.0, form, end - 90 * 86_400.0),)
    entry = Entry("ml", "Job", "a", form, advice, seen_s=end, followed_s=end - 56 * 86_400.0, realized=200.0)
    harmful = msgspec.structs.replace(entry, name="b", followed_s=end - 86_400.0, realized=-10.0)
    early = msgspec.structs.replace(entry, name="c", realized=None)
    history = str(tmp_path / "history.db")
    with HistoryStore.open(history) as written:
        for each in (entry, harmful, early):
            written.put_document("savings", "/".join(each.key), msgspec.to_builtins(each), float(end))
    cost(store=store, last="4w", roi=True, savings_from=history, output="json")
    told = msgspec.json.decode(capsys.readouterr().out)["roi"]
    assert told["savings"] == "90.000000"  # half of 200, minus 10
    assert "2 recommendations that were followed" in told["sources"][0]["origin"]
    with HistoryStore.open(history) as written:
        written.put_document("savings", "ml/Job/d", {"namespace": 7}, float(end))
    with pytest.raises(errors.Permanent, match="not as this version writes it"):
        cost(store=store, last="4w", roi=True, savings_from=history)


def test_the_help_names_only_commands_that_exist():
    known = {command.name for command in COMMANDS}
    for app in (cost_app, report_app, bill_app):
        texts = f"{app.help} {app.help_epilogue} {app.default_command.__doc__}"
        named = set(re.findall(r"\bkgwe ([a-z][a-z-]+)", texts))
        assert named
        assert named <= known


def test_a_bill_is_compared_and_restates_history(store, tmp_path, capsys):
    copy = str(tmp_path / "copy.db")
    shutil.copy(store, copy)
    with Ledger.open(copy, read_only=True) as ledger:
        reader = ChargeReader(ledger.database)
        end = int(ledger.load_state()["counted_until_s"])
        metered = reader.list_node_hours(end - 28 * 86_400, end)
    node = max(metered, key=lambda key: metered[key].ticks).node
    lines = ["BilledCost,ChargePeriodStart,ChargePeriodEnd,BillingCurrency,ResourceId,ChargeCategory"]
    total = 0
    for key, each in sorted(metered.items()):
        if key.node == node:
            micros = each.ticks * 97 // 360_000
            total += micros
            start, stop = format_time(key.hour * 3600), format_time(key.hour * 3600 + 3600)
            lines.append(f"{micros / 10**6:.6f},{start},{stop},USD,{node},Usage")
    file = tmp_path / "bill.csv"
    file.write_text("\n".join(lines))
    with Ledger.open(copy) as ledger:
        ledger.put([], None, [NodeFacts(node)])
    bill(file, store=copy, restate=True)
    told = capsys.readouterr().out
    assert f"bill {total / 10**6:.6f}" in told
    assert "rate" in told
    assert "The history is restated" in told
    bill(file, store=copy, restate=True)
    assert "imported before" in capsys.readouterr().out
    (restated,) = ledger_access.load_statements(copy, "4w", ("node",), restated=True)
    book = sum(each.ticks for key, each in metered.items() if key.node != node)
    assert restated.fleet == (total * 3600 + book + 1800) // 3600
    assert restated.unbalanced == 0
    bill(file, store=copy, output="json")
    assert msgspec.json.decode(capsys.readouterr().out)["billed"] == f"{total / 10**6:.6f}"
