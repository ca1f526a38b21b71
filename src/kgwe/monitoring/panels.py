"""Dashboards of Grafana as typed values, and their JSON. Pure.

Panels flow from left to right; a row title starts a new line. Only panel types of Grafana's core are used, and each
query names the data source by the variable `datasource`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

SCHEMA_VERSION: Final = 41
COLUMNS: Final = 24
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}

Kind = Literal["stat", "gauge", "bargauge", "timeseries", "heatmap", "status-history", "table", "piechart", "text"]


@dataclass(frozen=True, slots=True)
class Query:
    """A query of a panel. `legend` names series by labels, such as `{{node}}`."""

    expr: str
    legend: str = ""
    instant: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. `limits` are the thresholds of yellow and red; `falling`: low values are red."""

    title: str
    kind: Kind
    queries: tuple[Query, ...] = ()
    unit: str = "short"
    width: int = 6
    height: int = 8
    about: str = ""
    limits: tuple[float, float] | None = None
    falling: bool = False
    top: float | None = None
    stacked: bool = False
    text: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A titled group of panels."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """A list to choose from: the values of a label of a metric."""

    name: str
    metric: str
    label: str
    title: str


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One dashboard."""

    uid: str
    title: str
    about: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...] = ()
    tags: tuple[str, ...] = field(default=("kgwe", "gpu"))

    def list_panels(self) -> list[Panel]:
        return [panel for row in self.rows for panel in row.panels]


def build_json(dashboard: Dashboard) -> dict[str, Any]:
    """Return the dashboard in Grafana's JSON model, as provisioning reads it."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.about,
        "tags": list(dashboard.tags),
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "timepicker": {},
        "annotations": {"list": []},
        "links": [_LINK],
        "templating": {"list": [_SOURCE_VARIABLE, *map(_build_variable, dashboard.variables)]},
        "panels": _lay_out(dashboard.rows),
    }


_LINK: Final = {
    "type": "dashboards", "title": "KGWE", "tags": ["kgwe"], "asDropdown": True, "includeVars": False,
    "keepTime": True, "targetBlank": False, "icon": "external link", "tooltip": "", "url": "",
}  # fmt: skip
_SOURCE_VARIABLE: Final = {
    "type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus", "current": {},
    "hide": 0, "includeAll": False, "multi": False, "options": [], "refresh": 1, "regex": "", "skipUrlSync": False,
}  # fmt: skip


def _build_variable(variable: Variable) -> dict[str, Any]:
    query = f"label_values({variable.metric}, {variable.label})"
    return {
        "type": "query", "name": variable.name, "label": variable.title, "datasource": _SOURCE, "definition": query,
        "query": {"query": query, "refId": variable.name}, "refresh": 2, "sort": 1, "multi": True, "includeAll": True,
        "allValue": ".*", "current": {}, "hide": 0, "options": [], "regex": "", "skipUrlSync": False,
    }  # fmt: skip


def _lay_out(rows: tuple[Row, ...]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    top = 0
    for row in rows:
        place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
        found.append({"id": len(found) + 1, "type": "row", "title": row.title, "collapsed": False, "gridPos": place,
                      "panels": []})  # fmt: skip
        left, top, tallest = 0, top + 1, 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                left, top, tallest = 0, top + tallest, 0
            place = {"x": left, "y": top, "w": panel.width, "h": panel.height}
            found.append(_build_panel(panel, len(found) + 1, place))
            left, tallest = left + panel.width, max(tallest, panel.height)
        top += tallest
    return found


def _build_panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    built = {"id": number, "type": panel.kind, "title": panel.title, "description": panel.about, "gridPos": place}
    if panel.kind == "text":
        return {**built, "options": {"mode": "markdown", "content": panel.text}}
    targets = [_build_target(panel, query, chr(ord("A") + index)) for index, query in enumerate(panel.queries)]
    defaults: dict[str, Any] = {
        "unit": panel.unit, "thresholds": _build_thresholds(panel), "color": {"mode": _color_mode(panel)},
        "noValue": "no data", "custom": _CUSTOM[panel.kind] | _stacking(panel), "mappings": [],
    }  # fmt: skip
    if panel.top is not None:
        defaults |= {"min": 0, "max": panel.top}
    return {
        **built,
        "datasource": _SOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _OPTIONS[panel.kind],
    }


def _build_target(panel: Panel, query: Query, letter: str) -> dict[str, Any]:
    form = "table" if panel.kind == "table" else "time_series"
    is_instant = query.instant or panel.kind in {"table", "bargauge", "piechart"}
    return {
        "refId": letter, "datasource": _SOURCE, "expr": query.expr, "legendFormat": query.legend or "__auto",
        "format": form, "instant": is_instant, "range": not is_instant, "editorMode": "code",
    }  # fmt: skip


def _build_thresholds(panel: Panel) -> dict[str, Any]:
    first, middle, last = ("red", "yellow", "green") if panel.falling else ("green", "yellow", "red")
    steps: list[dict[str, Any]] = [{"color": first, "value": None}]
    if panel.limits is not None:
        low, high = panel.limits
        steps += [{"color": middle, "value": low}, {"color": last, "value": high}]
    return {"mode": "absolute", "steps": steps}


def _color_mode(panel: Panel) -> str:
    if panel.kind == "status-history":
        return "continuous-GrYlRd"
    return "thresholds" if panel.limits is not None else "palette-classic"


def _stacking(panel: Panel) -> dict[str, Any]:
    return {"stacking": {"mode": "normal", "group": "A"}, "fillOpacity": 40} if panel.stacked else {}


_REDUCE: Final = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_LEGEND: Final = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
_CUSTOM: Final[dict[Kind, dict[str, Any]]] = {
    "stat": {},
    "gauge": {},
    "bargauge": {},
    "timeseries": {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 10, "showPoints": "never", "spanNulls": False},
    "heatmap": {"hideFrom": {"legend": False, "tooltip": False, "viz": False}},
    "status-history": {"fillOpacity": 80, "lineWidth": 0},
    "table": {"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False},
    "piechart": {"hideFrom": {"legend": False, "tooltip": False, "viz": False}},
    "text": {},
}
_OPTIONS: Final[dict[Kind, dict[str, Any]]] = {
    "stat": {"reduceOptions": _REDUCE, "colorMode": "value", "graphMode": "area", "textMode": "auto"},
    "gauge": {"reduceOptions": _REDUCE, "showThresholdMarkers": True, "showThresholdLabels": False},
    "bargauge": {"reduceOptions": _REDUCE, "displayMode": "gradient", "orientation": "horizontal"},
    "timeseries": {"legend": _LEGEND, "tooltip": {"mode": "multi", "sort": "desc"}},
    "heatmap": {
        "calculate": True,
        "calculation": {"yBuckets": {"mode": "count", "value": "20"}},
        "cellGap": 1,
        "color": {"mode": "scheme", "scheme": "Spectral", "steps": 64, "reverse": True},
        "yAxis": {"axisPlacement": "left"},
        "legend": {"show": True},
        "tooltip": {"mode": "single", "showColorScale": True},
    },
    "status-history": {"showValue": "never", "rowHeight": 0.9, "colWidth": 0.9, "legend": _LEGEND,
                       "tooltip": {"mode": "single", "sort": "none"}},
    "table": {"showHeader": True, "cellHeight": "sm", "footer": {"show": False, "reducer": ["sum"], "fields": ""}},
    "piechart": {"reduceOptions": _REDUCE, "pieType": "donut", "displayLabels": ["name"], "legend": _LEGEND,
                 "tooltip": {"mode": "single", "sort": "none"}},
    "text": {},
}  # fmt: skip
