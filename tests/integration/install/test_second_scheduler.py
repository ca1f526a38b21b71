"""What the chart installs, at work: its settings, accounts, certificates and second kube-scheduler, as local processes.

There is no kubelet here, so the processes of the chart's pods run on this machine. They have the settings files, the
service accounts and the Secrets of the release; only addresses and paths are replaced.
"""

from __future__ import annotations

import base64
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.install import helm
from kgwe.local.cluster.cluster import service_account_kubeconfig
from kgwe.local.host import ports
from kgwe.local.host.assets import find_asset
from kgwe.local.toolchain import build

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kgwe.local.cluster.admin_api import Api
    from kgwe.local.cluster.cluster import LocalCluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SPACE = "kgwe-system"
_TLS = "/etc/kgwe/tls"


class Release:
    """The chart on a cluster, with its processes as sidecars."""

    def __init__(self, cluster: LocalCluster, api: Api, folder: Path) -> None:
        self.cluster, self.api, self.folder = cluster, api, folder
        self.port = ports.allocate(("extender", "metrics", "webhook", "webhook-metrics"))

    def read(self, name: str, file: str = "settings.yaml") -> dict[str, Any]:
        """Return a file of a ConfigMap of the release, with the paths of this machine."""
        text = self.api.request("GET", f"/api/v1/namespaces/{SPACE}/configmaps/{name}")["data"][file]
        found: dict[str, Any] = yaml.safe_load(text.replace(_TLS, str(self.folder / name)))
        return found

    def write(self, name: str, content: dict[str, Any]) -> Path:
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        return path

    def account(self, name: str) -> Path:
        return service_account_kubeconfig(self.cluster, SPACE, name, self.folder / f"{name}.kubeconfig")

    def save_secret(self, secret: str, folder: str) -> None:
        """Wait for a certificate, and write its files as the kubelet would."""
        path = f"/api/v1/namespaces/{SPACE}/secrets/{secret}"
        wait_for(f"Secret {secret} is filled", lambda: "tls.crt" in (self.api.request("GET", path).get("data") or {}))
        (self.folder / folder).mkdir()
        for name, text in self.api.request("GET", path)["data"].items():
            (self.folder / folder / name).write_bytes(base64.b64decode(text))

    def start(self, command: str, name: str, settings: dict[str, Any], **env: str) -> None:
        argv = [sys.executable, "-m", "kgwe.cli", command, "--kubeconfig", str(self.account(name))]
        self.cluster.start_sidecar(name, [*argv, "--config", str(self.write(name, settings))], env=env)


def wait_for(what: str, true: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            if true():
                return
        except (errors.Transient, errors.NotFound):
            pass
        time.sleep(0.1)
    pytest.fail(f"not within {PATIENCE_S} s: {what}")


@pytest.fixture
def release(cluster: LocalCluster, tmp_path: Path) -> Iterator[Release]:
    homes = {f"HELM_{name}_HOME": str(tmp_path / name) for name in ("CACHE", "CONFIG", "DATA")}
    tool = helm.Helm(helm.ensure_helm(4).path, cluster.kubeconfig, homes)
    options = ("--namespace", SPACE, "--create-namespace", "--set", "secondScheduler.enabled=true")
    tool.run("install", "kgwe", str(find_asset("charts/kgwe")), *options)
    with cluster.api() as api:
        try:
            yield Release(cluster, api, tmp_path)
        finally:
            for name in ("kgwe-webhook", "kgwe-scheduler", "kgwe-kube-scheduler"):
                cluster.stop_sidecar(name)
            tool.run("uninstall", "kgwe", "--namespace", SPACE)


def test_a_gang_is_placed_by_the_second_kube_scheduler(release: Release):
    api, port = release.api, release.port
    webhook = release.read("kgwe-webhook-settings") | {
        "certDir": str(release.folder / "webhook"),
        "bindAddress": f"127.0.0.1:{port['webhook']}",
        "metricsBindAddress": f"127.0.0.1:{port['webhook-metrics']}",
    }
    release.start("webhook", "kgwe-webhook", webhook)
    release.save_secret("kgwe-extender-tls", "kgwe-scheduler-settings")
    release.save_secret("kgwe-kube-scheduler-tls", "kgwe-kube-scheduler")

    pod = _find_pod(api)
    scheduler = release.read("kgwe-scheduler-settings") | {
        "extenderBindAddress": f"127.0.0.1:{port['extender']}",
        "metricsBindAddress": f"127.0.0.1:{port['metrics']}",
        "optimizerAddress": "",
    }
    release.start("scheduler", "kgwe-scheduler", scheduler, KGWE_POD_NAME=pod, KGWE_POD_NAMESPACE=SPACE)
    path = f"/api/v1/namespaces/{SPACE}/pods/{pod}"
    leads = ("metadata", "labels", "kgwe.nvidia.io/leader")
    wait_for(
        "the leader's pod has the label of its Service", lambda: _look_up(api.request("GET", path), leads) == "true"
    )

    config = release.read("kgwe-kube-scheduler", "config.yaml")
    (extender,) = config["extenders"]
    extender["tlsConfig"]["serverName"] = f"kgwe-scheduler.{SPACE}.svc"
    extender["urlPrefix"] = f"https://127.0.0.1:{port['extender']}"
    config["clientConnection"] = {"kubeconfig": str(release.account("kgwe-kube-scheduler"))}
    binary = build.ensure_binaries().find_binary("kube-scheduler")
    argv = [str(binary), f"--config={release.write('second', config)}", "--secure-port=0"]
    release.cluster.start_sidecar("kgwe-kube-scheduler", argv)

    for number in range(2):
        _create_node(api, f"second-{number}")
    spec = {"gpuRequirements": {"count": 4}, "gpusPerPod": 2}
    body = {"apiVersion": "kgwe.nvidia.io/v1", "kind": "GPUWorkload", "metadata": {"name": "second"}, "spec": spec}
    api.request("POST", "/apis/kgwe.nvidia.io/v1/namespaces/default/gpuworkloads", body)
    workload = "/apis/kgwe.nvidia.io/v1/namespaces/default/gpuworkloads/second"
    phases = {"Running", "Succeeded"}
    wait_for("the gang runs", lambda: _look_up(api.request("GET", workload), ("status", "phase")) in phases)
    pods = api.request("GET", "/api/v1/namespaces/default/pods")["items"]
    assert [each["spec"]["schedulerName"] for each in pods] == ["kgwe-scheduler"] * 2
    api.request("DELETE", workload)


def _find_pod(api: Api) -> str:
    path = f"/api/v1/namespaces/{SPACE}/pods?labelSelector=app.kubernetes.io/name%3Dkgwe-scheduler"
    wait_for("the Deployment has pods", lambda: api.request("GET", path)["items"])
    return str(api.request("GET", path)["items"][0]["metadata"]["name"])


def _create_node(api: Api, name: str) -> None:
    meta = {"name": name, "annotations": {"kwok.x-k8s.io/node": "fake"}, "labels": {"type": "kwok"}}
    api.request("POST", "/api/v1/nodes", {"metadata": meta})
    offers = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
    api.merge(f"/api/v1/nodes/{name}/status", {"status": {"capacity": offers, "allocatable": offers}})


def _look_up(tree: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        tree = (tree or {}).get(name)
    return tree
