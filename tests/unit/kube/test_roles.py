"""deploy/roles.yaml names every kind: one that is added must be given to its readers."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from kgwe.kube.crd import definitions

ROLES: dict[str, Any] = {
    each["metadata"]["name"]: each
    for each in yaml.safe_load_all((Path(__file__).parents[3] / "deploy/roles.yaml").read_text(encoding="utf-8"))
}
READ = {"get", "list", "watch"}


def verbs(role: str, group: str, resource: str) -> set[str]:
    found = [rule for rule in ROLES[role]["rules"] if group in rule["apiGroups"] and resource in rule["resources"]]
    return {verb for rule in found for verb in rule["verbs"]}


@pytest.mark.parametrize("kind", definitions.KINDS, ids=lambda kind: kind.definition.name)
def test_every_kind_has_its_readers(kind):
    of = kind.definition
    reader, other = ("kgwe-view", "kgwe-cluster-viewer") if of.namespaced else ("kgwe-cluster-viewer", "kgwe-view")
    assert verbs(reader, of.group, of.plural) == READ
    assert not verbs(other, of.group, of.plural)
    written = verbs("kgwe-edit", of.group, of.plural)
    assert bool(written) is (of.kind == "GPUWorkload")
    assert not verbs("kgwe-edit", of.group, f"{of.plural}/status"), "only the scheduler writes a status"


def test_the_roles_add_to_those_of_kubernetes():
    def added_to(role: str) -> set[str]:
        return {key.rpartition("-")[2] for key in ROLES[role]["metadata"].get("labels", {})}

    assert added_to("kgwe-view") == {"view"}
    assert added_to("kgwe-edit") == {"edit", "admin"}
    assert not added_to("kgwe-cluster-viewer"), "it is bound by name"
