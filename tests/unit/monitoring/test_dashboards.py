"""Dashboards follow the rules of Grafana's JSON model that can be checked without Grafana."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kgwe.monitoring import __main__ as writer
from kgwe.monitoring import panels
from kgwe.monitoring.dashboards.catalogue import DASHBOARDS
from kgwe.monitoring.rules import catalogue

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "charts/kgwe/dashboards"
# Panel types of Grafana's core that are not deprecated.
TYPES = {"row", "stat", "gauge", "bargauge", "timeseries", "heatmap", "status-history", "table", "piechart", "text"}
# Unit ids of Grafana that are used here.
UNITS = {
    "short", "percent", "percentunit", "bytes", "watt", "celsius", "s", "ms", "ops", "currencyUSD", "bool_yes_no",
}  # fmt: skip
TITLES = {
    "GPU Cluster Overview", "GPU Cost Management", "kgwe-dashboard", "GPU Namespaces", "GPU Pods",
    "GPU Scheduling and Topology", "GPU MIG and Sharing", "GPU Waste", "GPU Autoscaler", "KGWE Health",
}  # fmt: skip


@pytest.fixture(params=sorted(DASHBOARDS))
def model(request):
    return json.loads((FOLDER / request.param).read_text(encoding="utf-8"))


def test_the_files_are_those_of_the_code():
    assert writer.find_stale(ROOT) == []


def test_a_changed_file_and_a_page_without_alert_are_reported(tmp_path):
    for path, text in writer.render_files().items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert writer.find_stale(tmp_path) == []
    (tmp_path / "charts/kgwe/rules/alerts.yaml").write_text("groups: []\n")
    (tmp_path / "docs/runbooks/NoSuchAlert.md").write_text("# NoSuchAlert\n")
    assert writer.find_stale(tmp_path) == ["charts/kgwe/rules/alerts.yaml", "docs/runbooks/NoSuchAlert.md"]


def test_all_dashboards_exist_and_the_overview_has_a_heat_map():
    assert {each.title for each in DASHBOARDS.values()} == TITLES
    kinds = {panel.kind for panel in DASHBOARDS["gpu-cluster-overview.json"].list_panels()}
    assert {"heatmap", "status-history"} <= kinds


def test_identity_and_version(model):
    assert re.fullmatch(r"[a-z0-9-]{1,40}", model["uid"])
    assert model["title"]
    assert model["schemaVersion"] == panels.SCHEMA_VERSION
    assert "id" not in model  # Grafana gives it
    assert "dashboard" not in model  # not wrapped as for the HTTP API: provisioning would refuse it


def test_panels_have_their_own_ids_and_places_within_the_grid(model):
    ids = [panel["id"] for panel in model["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in model["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= panels.COLUMNS
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


def test_panels_are_of_known_types_with_known_units(model):
    for panel in model["panels"]:
        assert panel["type"] in TYPES
        if panel["type"] not in {"row", "text"}:
            assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
            assert panel["targets"], panel["title"]


def test_queries_name_the_data_source_by_its_variable_and_have_their_own_letters(model):
    for panel in model["panels"]:
        letters = [target["refId"] for target in panel.get("targets", ())]
        assert len(letters) == len(set(letters))
        for target in panel.get("targets", ()):
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_variables_that_queries_use_are_defined(model):
    known = {each["name"] for each in model["templating"]["list"]} | {"__rate_interval", "__range"}
    for panel in model["panels"]:
        for target in panel.get("targets", ()):
            used = set(re.findall(r"\$(?:\{)?([a-z_]\w*)", re.sub(r'"\$1"', "", target["expr"])))
            assert used <= known, panel["title"]


def test_recorded_series_that_queries_read_exist():
    recorded = {each.record for each in catalogue.list_recordings()}
    texts = [query.expr for each in DASHBOARDS.values() for panel in each.list_panels() for query in panel.queries]
    texts += [each.expr for each in catalogue.list_alerts()]
    texts += [each.expr for each in catalogue.list_recordings()]
    read = {name for text in texts for name in re.findall(r"kgwe:[a-z_0-9]+:[a-z_0-9]+", text)}
    assert read == recorded
