"""The rendered chart without a cluster: network flows, settings of every process, and values files."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from tests.support.builders.seed_values import SEED
from tests.support.network_policies import End, Evaluator, Host, Pod

from kgwe import errors
from kgwe.apps.agent import settings as agent
from kgwe.apps.autoscaler import settings as autoscaler
from kgwe.apps.console import settings as console
from kgwe.apps.cost import settings as cost
from kgwe.apps.mig import settings as mig
from kgwe.apps.optimizer import settings as optimizer
from kgwe.apps.scheduler import settings as scheduler
from kgwe.apps.webhook import settings as webhook
from kgwe.install import helm
from kgwe.local.host.assets import find_asset

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

CHART = find_asset("charts/kgwe")
SPACE, NODES = "kgwe-system", "kgwe-node"
_ALL = ("--set", "console.enabled=true,autoscaler.enabled=true,webhook.enabled=true,networkPolicies.enabled=true")
_LOADERS = {
    "kgwe-agent": agent, "kgwe-autoscaler": autoscaler, "kgwe-console": console, "kgwe-cost-engine": cost,
    "kgwe-mig": mig, "kgwe-optimizer": optimizer, "kgwe-scheduler": scheduler, "kgwe-webhook": webhook,
}  # fmt: skip


@pytest.fixture(scope="module", params=[4, 3], ids=["helm4", "helm3"])
def tool(request: pytest.FixtureRequest) -> helm.Helm:
    return helm.Helm(helm.ensure_helm(request.param).path)


def render(tool: helm.Helm, *options: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(tool.render(CHART, *options)) if each]


PROCESSES = (
    "kgwe-scheduler", "kgwe-mig", "kgwe-optimizer", "kgwe-cost-engine", "kgwe-autoscaler", "kgwe-webhook",
    "kgwe-console",
)  # fmt: skip
PORTS = (53, 80, 443, 5432, 6443, 8080, 8443, 8888, 9090, 9400, 9443, 50051, 50052)
#: (from, to, port): the table of docs/install.md. Flows between ends outside of KGWE are not KGWE's.
FLOWS = {
    ("host", "kgwe-scheduler", 8888),
    ("host", "kgwe-webhook", 9443),
    ("kgwe-scheduler", "kgwe-optimizer", 50051),
    ("kgwe-console", "kgwe-optimizer", 50051),
    ("user", "kgwe-cost-engine", 8443),
    ("user", "kgwe-console", 8443),
    ("prometheus", "kgwe-cost-engine", 8443),
    ("prometheus", "kgwe-console", 8443),
    ("kgwe-console", "kgwe-cost-engine", 8443),
    ("kgwe-console", "kgwe-agent", 50052),
    ("kgwe-console", "host", 50052),
    ("prometheus", "kgwe-agent", 9400),
    *(("prometheus", name, 8080) for name in PROCESSES),
    *((name, "kgwe-agent", 9400) for name in ("kgwe-optimizer", "kgwe-cost-engine", "kgwe-autoscaler")),
    *((name, "host", 9400) for name in ("kgwe-optimizer", "kgwe-cost-engine", "kgwe-autoscaler")),
    *((name, "prometheus", 9090) for name in ("kgwe-optimizer", "kgwe-cost-engine", "kgwe-autoscaler", "kgwe-console")),
    *((name, "internet", 443) for name in ("kgwe-optimizer", "kgwe-cost-engine", "kgwe-autoscaler")),
    *((name, "host", port) for name in (*PROCESSES, "kgwe-agent") for port in (443, 6443)),
    ("kgwe-agent", "metadata", 80),
}


def make_ends(documents: list[dict[str, Any]]) -> list[End]:
    found: list[End] = [
        Host("host", "10.0.0.7"),
        Host("internet", "203.0.113.5"),
        Host("metadata", "169.254.169.254"),
        Pod("user", "team-a", {}),
        Pod("prometheus", "monitoring", {}),
    ]
    for each in documents:
        if each["kind"] in {"Deployment", "DaemonSet"}:
            template = each["spec"]["template"]
            listed = template["spec"]["containers"][0]["ports"]
            named = {port["name"]: port["containerPort"] for port in listed}
            meta = each["metadata"]
            found.append(Pod(meta["name"], meta["namespace"], template["metadata"]["labels"], named))
    return found


def test_exactly_the_flows_of_the_table_are_allowed(tool):
    documents = render(tool, *_ALL, "--set", "networkPolicies.hostCIDRs={10.0.0.0/24}")
    policies = [each for each in documents if each["kind"] == "NetworkPolicy"]
    evaluator = Evaluator(policies, {SPACE: {}, NODES: {}, "team-a": {}, "monitoring": {}, "kube-system": {}})
    ends = make_ends(documents)
    ours = {*PROCESSES, "kgwe-agent"}
    found = {
        (source.name, target.name, port)
        for source, target in itertools.permutations(ends, 2)
        if source.name in ours or target.name in ours
        for port in PORTS
        if evaluator.allows(source, target, port)
    }
    assert found - FLOWS == set()
    assert FLOWS - found == set()
    resolver = Pod("dns", "kube-system", {"k8s-app": "kube-dns"})
    assert all(evaluator.allows(each, resolver, 53, "UDP") for each in ends if each.name in ours)
    # A pod that an attacker starts in the namespace of KGWE reaches nothing.
    stranger = Pod("stranger", SPACE, {})
    assert not any(evaluator.allows(stranger, each, port) for each in ends for port in PORTS)


@pytest.mark.parametrize("values", [(), ("values-minimal.yaml",), ("values-production.yaml",), ("values-ha.yaml",)])
def test_every_process_accepts_its_settings(tool: helm.Helm, tmp_path: Path, values: tuple[str, ...]):
    options = [part for name in values for part in ("--values", str(CHART / name))]
    documents = render(tool, *options)
    assert load_settings(documents, tmp_path) >= {"kgwe-scheduler", "kgwe-webhook"}


def test_values_of_the_seeds_reach_the_processes(tool: helm.Helm, tmp_path: Path):
    path = tmp_path / "seed.yaml"
    path.write_text(yaml.safe_dump(SEED), encoding="utf-8")
    documents = render(tool, "--values", str(path), "--set", "webhook.enabled=true")
    load_settings(documents, tmp_path)
    settings = read_settings(documents)
    assert settings["kgwe-scheduler"]["leaseNamespace"] == "kube-system"
    assert settings["kgwe-scheduler"]["leaseDurationSeconds"] == 15
    assert settings["kgwe-mig"]["intervalSeconds"] == 300
    assert settings["kgwe-agent"]["telemetryIntervalSeconds"] == 5
    (hook,) = [each for each in documents if each["kind"] == "MutatingWebhookConfiguration"]
    assert hook["webhooks"][0]["failurePolicy"] == "Fail"
    # The signing key is where the Lease is.
    keys = {each["metadata"]["namespace"] for each in documents if each["metadata"]["name"] == "kgwe-decision-key"}
    assert keys == {"kube-system"}


def test_weights_that_do_not_add_up_are_refused(tool):
    with pytest.raises(errors.Permanent, match="make them add up to 100"):
        render(tool, "--set", "scheduler.config.topologyWeight=90")


def test_another_namespace_is_used_everywhere(tool):
    text = tool.render(CHART, *_ALL, namespace="gpu-platform")
    objects = [each for each in yaml.safe_load_all(text) if each and each["kind"] != "CustomResourceDefinition"]
    assert SPACE not in {each["metadata"].get("namespace") for each in objects}
    subjects = {each.get("namespace") for one in objects for each in one.get("subjects") or ()}
    assert subjects == {"gpu-platform", NODES}


def test_rendered_manifests_name_no_object_twice(tool):
    """kubectl and kustomize apply them as they are."""
    documents = render(tool, *_ALL, "--set", "namespace.create=true", "--set", "scheduler.config.strategy=pack")
    names = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in documents]
    assert sorted(map(str, names)) == sorted(set(map(str, names)))
    assert ("Namespace", None, SPACE) in names


def read_settings(documents: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        each["metadata"]["name"].removesuffix("-settings"): yaml.safe_load(each["data"]["settings.yaml"])
        for each in documents
        if each["kind"] == "ConfigMap" and "settings.yaml" in (each.get("data") or {})
    }


def load_settings(documents: list[dict[str, Any]], folder: Path) -> set[str]:
    """Load every settings file as its process does; it refuses keys that it does not know."""
    found = read_settings(documents)
    for name, content in found.items():
        path = folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        _LOADERS[name].load(path)
    return set(found)
