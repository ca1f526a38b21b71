"""The script that writes the shipped coefficients."""

from __future__ import annotations

import importlib.util
import json
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.machines.reference import reference

from kgwe.forecast import coefficients

if TYPE_CHECKING:
    from types import ModuleType

_SCRIPT = Path(__file__).parents[3] / "scripts" / "fit_interference.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fit_interference", _SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_shipped_file_is_what_the_script_writes(script, tmp_path):
    data = reference("sharing", "gavel_colocation_throughputs.json").parents[1]
    shipped = json.loads(resources.files("kgwe.forecast").joinpath(coefficients.FILE).read_text())
    written = tmp_path / "coefficients.json"
    assert script.main(["--data", str(data), "--date", shipped["date"], "--output", str(written)]) == 0
    assert json.loads(written.read_text()) == shipped


def test_no_data_that_may_not_be_redistributed_is_read():
    assert "lucid" not in _SCRIPT.read_text().lower()


def test_the_slowdown_of_saturated_jobs_is_found(script):
    names = {size: f"('Net (batch size {size})', 1)" for size in (16, 32)}
    rates = {names[16]: 20.0, names[32]: 10.0}
    table = {
        name: {"null": rate, **{other: [rate / 2, rates[other] / 2] for other in rates}} for name, rate in rates.items()
    }
    assert script.fit_sharing(table) == {"offset": [0.0], "sensitivity": [0.0, 1.0, 0.0], "intensity": [1.0, 0.0]}
