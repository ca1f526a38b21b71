"""Values of the chart: every key is described and checked, and the keys of the seeds are among them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from tests.support.builders.seed_values import SEED

from kgwe.install import chart_files, values_schema, values_text
from kgwe.local.host.assets import find_asset

CHART = find_asset("charts/kgwe")
TEXT = (CHART / "values.yaml").read_text(encoding="utf-8")
VALIDATOR = jsonschema_rs.validator_for(json.loads(values_schema.render(TEXT)))


def find_problems(values: dict[str, Any]) -> list[str]:
    return [f"{'.'.join(map(str, each.instance_path))}: {each.message}" for each in VALIDATOR.iter_errors(values)]


def test_every_key_has_a_description():
    entries = values_text.parse_values(TEXT)
    groups = {entry.dotted for entry in entries if entry.is_group and entry.path[-1] not in values_text.OBJECTS}
    assert [entry.dotted for entry in entries if not entry.about and entry.dotted not in groups] == []


@pytest.mark.parametrize("name", ["values.yaml", "values-minimal.yaml", "values-production.yaml", "values-ha.yaml"])
def test_the_values_files_are_valid(name):
    assert find_problems(yaml.safe_load((CHART / name).read_text(encoding="utf-8"))) == []


def test_the_keys_of_the_seeds_are_accepted():
    assert find_problems(SEED) == []


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"schedulr": {}}, "schedulr"),
        ({"scheduler": {"replicas": 3}}, "scheduler: .*replicas"),
        ({"scheduler": {"replicaCount": "3"}}, "scheduler.replicaCount: .*integer"),
        ({"scheduler": {"settings": {"workrs": 3}}}, "scheduler.settings: .*workrs"),
        ({"scheduler": {"settings": {"workers": "many"}}}, "scheduler.settings.workers: "),
        ({"controller": {"leaderElection": {"leaseDuration": "soon"}}}, "controller.leaderElection.leaseDuration: "),
        ({"webhook": {"failurePolicy": "Perhaps"}}, "webhook.failurePolicy: .*Ignore"),
        ({"agent": {"config": {"grpcPort": 99999}}}, "agent.config.grpcPort: .*65535"),
        ({"costEngine": {"config": {"defaultCurrency": "EUR"}}}, "costEngine.config.defaultCurrency: .*USD"),
    ],
)
def test_a_wrong_value_is_refused_with_its_path(values, says):
    problems = find_problems(values)
    assert len(problems) == 1
    assert re.search(says, problems[0])


def test_the_reference_lists_every_key():
    text = values_text.render_reference(TEXT)
    assert "| `scheduler.replicaCount` | `2` | Replicas." in text
    assert '| `agent.nodeSelector` | `{"nvidia.com/gpu.present": "true"}` |' in text


def test_the_controller_has_its_own_account_and_may_not_bind():
    root = Path(__file__).parents[3]
    documents = list(yaml.safe_load_all(chart_files.build_files(root)["kgwe/files/controller.yaml"]))
    assert {each["metadata"]["name"] for each in documents if each["kind"] == "ServiceAccount"} == {"kgwe-controller"}
    rules = [rule for each in documents for rule in each.get("rules", ())]
    assert not [rule for rule in rules if "pods/binding" in rule["resources"]]
    # It takes turns with a scheduler, so it has the same Lease and the same key.
    named = {name for rule in rules for name in rule.get("resourceNames", ())}
    assert {"kgwe-scheduler", "kgwe-decision-key"} <= named


def test_generated_files_of_removed_sources_are_found():
    assert chart_files.is_generated("kgwe/files/gone.yaml")
    assert not chart_files.is_generated("kgwe/templates/agent.yaml")
