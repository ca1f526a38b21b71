"""The files the components read, and the arguments they are started with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from kgwe.errors import Permanent
from kgwe.local.cluster import component_config, components
from kgwe.local.cluster.components import Layout
from kgwe.local.toolchain.binaries import TOOLS, Binaries, Found, Source

LAYOUT = Layout(Path("/state/one"))
PORTS = {name: 20000 + i for i, name in enumerate(components.PORTS)}
BINARIES = Binaries({name: Found(Path("/bin", name), tool.version, Source.CACHE) for name, tool in TOOLS.items()})

STAGES = [yaml.safe_load(text) for text in component_config.stage_files().values()]


def scheduler(text: str | None) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(
        component_config.scheduler_configuration(text, kubeconfig=Path("/state/scheduler.yaml"))
    )
    return document


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage["metadata"]["name"])
def test_a_stage_selects_something_and_is_named_like_its_file(stage: dict[str, Any]):
    assert (stage["apiVersion"], stage["kind"]) == ("kwok.x-k8s.io/v1alpha1", "Stage")
    assert f"{stage['metadata']['name']}.yaml" in component_config.stage_files()
    assert stage["spec"]["resourceRef"]["kind"] in {"Pod", "Node"}
    assert stage["spec"]["selector"]
    for expression in stage["spec"]["selector"].get("matchExpressions", []):
        assert bool(expression.get("values")) is (expression["operator"] in {"In", "NotIn"})


def test_the_life_of_pods_and_nodes_is_covered():
    assert {stage["metadata"]["name"] for stage in STAGES} == {
        *("pod-run", "pod-finish", "pod-freeze", "pod-terminate", "pod-delete"),
        *("node-start", "node-heartbeat", "node-down"),
    }


def test_a_frozen_pod_is_left_alone_by_every_other_stage():
    key = '.metadata.annotations["kgwe.nvidia.io/simulated-fault"]'
    for stage in STAGES:
        if stage["spec"]["resourceRef"]["kind"] == "Pod" and stage["metadata"]["name"] != "pod-freeze":
            assert {"key": key, "operator": "DoesNotExist"} in stage["spec"]["selector"]["matchExpressions"]


def test_kwok_reads_its_options_and_every_stage():
    options, *stages = yaml.safe_load_all(component_config.kwok_configuration())

    assert options["kind"] == "KwokConfiguration"
    assert options["options"]["manageNodesWithAnnotationSelector"] == "kwok.x-k8s.io/node=fake"
    assert stages == STAGES


def test_the_scheduler_gets_its_connection_and_no_election_by_default():
    document = scheduler(None)

    assert document["clientConnection"]["kubeconfig"] == "/state/scheduler.yaml"
    assert document["leaderElection"] == {"leaderElect": False}


def test_what_the_caller_says_about_the_scheduler_is_kept_but_not_where_the_cluster_is():
    document = scheduler(
        """
        clientConnection: {qps: 7, kubeconfig: /elsewhere}
        extenders: [{urlPrefix: "http://127.0.0.1:8080", filterVerb: filter}]
        """
    )

    assert document["extenders"][0]["filterVerb"] == "filter"
    assert document["clientConnection"] == {
        "qps": 7,
        "burst": component_config.CLIENT_BURST,
        "kubeconfig": "/state/scheduler.yaml",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("a: [", "not valid YAML", id="not YAML"),
        pytest.param("- a", "not a mapping", id="a list"),
        pytest.param("", "empty", id="nothing"),
        pytest.param("kind: Pod", "has kind Pod", id="another kind"),
    ],
)
def test_a_bad_scheduler_configuration_is_refused(text: str, message: str):
    with pytest.raises(Permanent, match=message):
        scheduler(text)


def test_the_audit_log_keeps_bindings_whole_and_drops_reads_before_anything_else_is_considered():
    policy = yaml.safe_load(component_config.audit_policy())

    first, second, *_, last = policy["rules"]
    assert first["level"] == "Request"
    assert "pods/binding" in first["resources"][0]["resources"]
    assert second == {"level": "None", "verbs": ["get", "list", "watch"]}
    assert last == {"level": "Metadata"}


@pytest.mark.parametrize("name", components.NAMES)
def test_every_component_listens_on_loopback_only_and_with_tls(name: str):
    component = components.build_component(name, LAYOUT, PORTS, BINARIES, components.NO_FEATURES)

    flags = dict(argument.removeprefix("--").split("=", 1) for argument in component.argv[1:])
    assert component.argv[0] == f"/bin/{name}"
    assert {"tls-cert-file", "cert-file"} & set(flags)
    addresses = [value for flag, value in flags.items() if "bind-address" in flag or "listen" in flag]
    assert all("127.0.0.1" in address for address in addresses or [flags["server-address"]])
    assert components.health_url(name, PORTS).startswith(f"https://127.0.0.1:{PORTS[name]}/")


def test_features_of_kubernetes_are_told_to_those_who_have_them():
    features = components.Features(("GangScheduling=true", "GenericWorkload=true"), ("scheduling.k8s.io/v1alpha2",))
    said = {
        name: {argument for argument in argv if argument.startswith(("--feature-gates", "--runtime-config"))}
        for name in components.NAMES
        if (argv := components.build_component(name, LAYOUT, PORTS, BINARIES, features).argv)
    }
    gates = "--feature-gates=GangScheduling=true,GenericWorkload=true"
    assert said == {
        components.ETCD: set(),
        components.APISERVER: {gates, "--runtime-config=scheduling.k8s.io/v1alpha2=true"},
        components.CONTROLLER_MANAGER: {gates},
        components.SCHEDULER: {gates},
        components.KWOK: set(),
    }


def test_every_identity_and_every_file_stays_in_the_directory_of_the_cluster():
    for name in components.NAMES:
        for argument in components.build_component(name, LAYOUT, PORTS, BINARIES, components.NO_FEATURES).argv[1:]:
            _, _, value = argument.partition("=")
            assert not value.startswith("/") or value.startswith("/state/one/")
