"""promtool, and unit tests of rules in its format."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from kgwe.local.prometheus import binary
from kgwe.monitoring.rules import catalogue
from kgwe.monitoring.rules.types import Group, render_groups

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kgwe.monitoring.rules.types import Alert, Recording


def find() -> Path:
    """Return the program, or skip the test: nothing is built in tests."""
    found = binary.find_promtool()
    if found is None:
        pytest.skip("promtool is not on this machine; `kgwe local prometheus promtool` builds it")
    return found


def build_test(name: str, series: Sequence[tuple[str, str]], **checks: Any) -> dict[str, Any]:
    """Return a test with one sample per minute."""
    inputs = [{"series": each, "values": values} for each, values in series]
    return {"name": name, "interval": "1m", "input_series": inputs, **checks}


def run_tests(folder: Path, tests: Sequence[tuple[Alert, dict[str, Any]]]) -> str:
    """Run each test against its alert and the recorded series that the alert reads; return what fails, else nothing.

    All rules together would be evaluated for each test, which takes minutes.
    """
    files = []
    for number, (alert, test) in enumerate(tests):
        rules = folder / f"rules-{number}.yaml"
        rules.write_text(render_groups((Group("recorded", find_read(alert.expr)), Group("alerts", alerts=(alert,)))))
        content = {"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [test]}
        files.append(folder / f"test-{number}.yaml")
        files[-1].write_text(yaml.safe_dump(content, sort_keys=False))
    done = subprocess.run([find(), "test", "rules", *files], capture_output=True, text=True, check=False, timeout=300)
    failed = [line for line in (done.stdout + done.stderr).splitlines() if line.strip() and "SUCCESS" not in line]
    return "" if done.returncode == 0 else "\n".join(failed)


def find_read(expr: str) -> tuple[Recording, ...]:
    """Return the recorded series that an expression reads, in the order of the chart."""
    found = {each.record: each for each in catalogue.list_recordings() if each.record in expr}
    for each in list(found.values()):
        found |= {more.record: more for more in find_read(each.expr)}
    return tuple(each for each in catalogue.list_recordings() if each.record in found)
