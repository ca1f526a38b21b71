"""Settings: one clear line for what is wrong, before the process starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kgwe import errors
from kgwe.apps.optimizer import settings

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _without_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PROMETHEUS_URL", raising=False)


def test_defaults_are_those_of_the_documentation():
    made = settings.load()
    assert (made.grpc_bind_address, made.telemetry_buffer_size, made.model_update_s) == ("127.0.0.1:50051", 1000, 3600)
    assert (made.waste_interval_seconds, made.waste_window_seconds) == (30, 600)


def test_a_file_an_environment_and_a_flag_in_this_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "settings.yaml"
    path.write_text("modelUpdateInterval: 30m\nenableMLPredictions: false\nscrapeSeconds: 5\nstore: a.db\n")
    monkeypatch.setenv("KGWE_OPTIMIZER_SCRAPE_SECONDS", "7")
    monkeypatch.setenv("KGWE_OPTIMIZER_STORE", "b.db")
    made = settings.load(path, {"store": "c.db"})
    assert (made.model_update_s, made.enable_ml_predictions) == (1800, False)
    assert (made.scrape_seconds, made.store) == (7, "c.db")


def test_the_variable_of_other_tools_names_prometheus(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PROMETHEUS_URL", "http://a")
    assert settings.load().prometheus_url == "http://a"
    monkeypatch.setenv("KGWE_OPTIMIZER_PROMETHEUS_URL", "http://b")
    assert settings.load().prometheus_url == "http://b"
    assert settings.load(overrides={"prometheus_url": "http://c"}).prometheus_url == "http://c"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"model_update_interval": "soon"}, "modelUpdateInterval"),
        ({"model_update_interval": "0s"}, "modelUpdateInterval"),
        ({"scrape_seconds": 0}, "scrapeSeconds must be above 0"),
        ({"scrape_seconds": float("nan")}, "scrapeSeconds must be above 0"),
        ({"waste_interval_seconds": -1}, "wasteIntervalSeconds"),
        ({"waste_window_seconds": float("inf")}, "wasteWindowSeconds"),
        ({"telemetry_buffer_size": 0}, "telemetryBufferSize"),
        ({"waste_step_seconds": 900}, "wasteStepSeconds must not be longer"),
        ({"waste_underused_seconds": -1}, "wasteUnderusedSeconds"),
        ({"idle_after_seconds": float("nan")}, "idleAfterSeconds"),
        ({"idle_grace_seconds": -5}, "idleGraceSeconds"),
        ({"waste_formula": "magic"}, "wasteFormula"),
        ({"exporter_port": 0}, "exporterPort"),
        ({"exporter_port": 70000}, "exporterPort"),
        ({"tls_cert_file": "tls.crt"}, "go together"),
        ({"prices": {"L40S": -1}}, "prices.L40S"),
        ({"spot_prices": {"L40S": float("nan")}}, "spotPrices.L40S"),
        ({"prices": {"L40S": "cheap"}}, "prices"),
    ],
)
def test_a_bad_value_is_refused_with_its_key(overrides: dict[str, Any], message: str):
    with pytest.raises(errors.Permanent, match=message):
        settings.load(overrides=overrides)


def test_an_unknown_key_is_refused(tmp_path: Path):
    path = tmp_path / "settings.yaml"
    path.write_text("wasteWindow: 5\n")
    with pytest.raises(errors.Permanent, match="wasteWindow"):
        settings.load(path)
