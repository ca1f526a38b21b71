"""Settings: precedence, errors that name the key, and that the manifest only says what the agent understands."""

from __future__ import annotations

import msgspec
import pytest

from kgwe import errors
from kgwe.apps.agent import settings
from kgwe.kube.client import manifests
from kgwe.local.host import assets


def test_flag_beats_environment_beats_file_beats_default(tmp_path, monkeypatch):
    path = tmp_path / "settings.yaml"
    path.write_text("nodeName: from-file\nlogLevel: error\ntelemetryIntervalSeconds: 7\n")
    monkeypatch.setenv("KGWE_AGENT_LOG_LEVEL", "warning")
    monkeypatch.setenv("KGWE_AGENT_TELEMETRY_INTERVAL_SECONDS", "9")
    loaded = settings.load(path, {"log_level": "debug", "standalone": None})
    assert (loaded.node, loaded.telemetry_interval_seconds, loaded.log_level) == ("from-file", 9.0, "debug")
    assert (loaded.grpc_bind_address, loaded.exporter_bind_address) == (":50052", ":9400")
    assert (loaded.discovery_interval_seconds, loaded.standalone) == (30.0, False)


def test_the_node_is_told_by_the_environment_of_the_pod(monkeypatch):
    monkeypatch.setenv("NODE_NAME", "n7")
    assert settings.load().node == "n7"


@pytest.mark.parametrize("pieces", [0, 2, 32])
def test_cards_are_shared_by_as_many_as_is_said(monkeypatch, pieces):
    monkeypatch.setenv("KGWE_AGENT_DEVICE_PLUGIN_REPLICAS", str(pieces))
    assert settings.load().device_plugin_replicas == pieces


def test_lists_are_given_with_commas(monkeypatch):
    monkeypatch.setenv("KGWE_AGENT_TLS_WRITERS", "a,b")
    assert settings.load().tls_writers == ("a", "b")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nodename: x", "nodename"),
        ("telemetryIntervalSeconds: often", "telemetryIntervalSeconds"),
        ("telemetryIntervalSeconds: 0", "must be greater than 0"),
        ("tlsCertFile: /x", "must be set together"),
        ("devicePluginReplicas: 1", "devicePluginReplicas must be 0 or 2 to 32, not 1"),
        ("devicePluginReplicas: 33", "must be 0 or 2 to 32"),
        ("devicePluginReplicas: -2", "must be 0 or 2 to 32"),
        ("- a", "expected a mapping"),
        ("a: [", "cannot read settings"),
    ],
)
def test_a_bad_file_is_refused_and_the_error_says_where(tmp_path, text, says):
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    with pytest.raises(errors.Permanent, match=says):
        settings.load(path)


def test_the_manifest_says_what_the_agent_understands():
    documents = manifests.load_manifests(assets.find_asset("deploy/agent.yaml"))
    (daemons,) = [each for each in documents if each["kind"] == "DaemonSet"]
    pod = daemons["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    known = {settings.ENV_PREFIX + field.name.upper() for field in msgspec.structs.fields(settings.Settings)}
    given = {each["name"] for each in container["env"]}
    assert {name for name in given if name.startswith(settings.ENV_PREFIX)} <= known
    assert pod["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    defaults = settings.Settings()
    assert defaults.grpc_bind_address == f":{ports['grpc']}"
    assert defaults.exporter_bind_address == f":{ports['metrics']}"
    mounted = {each["mountPath"] for each in container["volumeMounts"]}
    host = next(each["value"] for each in container["env"] if each["name"] == "KGWE_AGENT_HOST_ROOT")
    assert {f"{host}/sys", f"{host}/proc", f"{host}{defaults.kubelet_folder}/pod-resources"} <= mounted
    assert {each["name"] for each in pod["volumes"]} == {each["name"] for each in container["volumeMounts"]}
