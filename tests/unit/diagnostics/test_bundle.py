"""A bundle has what explains a problem, and no secrets."""

from __future__ import annotations

import json
import stat
import tarfile
from typing import TYPE_CHECKING, cast

from kgwe import errors
from kgwe.apps.diagnostics import bundle
from kgwe.telemetry.redaction import REDACTED

if TYPE_CHECKING:
    from kgwe.kube.client.client import KubeClient

SECRET = "s3cr3t"  # noqa: S105 - must not appear
POD = {
    "metadata": {
        "name": "kgwe-scheduler-0",
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": f'{{"x": "{SECRET}"}}'},
        "managedFields": [{"manager": SECRET}],
    },
    "spec": {
        "containers": [
            {
                "name": "scheduler",
                "env": [
                    {"name": "DB", "value": SECRET},
                    {"name": "REF", "valueFrom": {"secretKeyRef": {"name": "db"}}},
                ],
                "command": ["run", "--aws-secret-access-key", SECRET, "-u", f"user:{SECRET}"],
                "args": ["--password", SECRET, f"WANDB_API_KEY={SECRET}"],
                "livenessProbe": {"httpGet": {"httpHeaders": [{"name": "X-Auth-Key", "value": SECRET}]}},
                "ports": [{"name": "metrics", "containerPort": 8080}],
            }
        ]
    },
}


class Server:
    """Answers by path; other paths are forbidden."""

    def __init__(self, answers):
        self.answers = answers

    async def request(self, method, path, params=None):  # noqa: ARG002 - as the client
        assert method == "GET"
        if path not in self.answers:
            raise errors.Permanent(f"GET {path}: forbidden")
        return self.answers[path].encode()


async def collect(tmp_path):
    pods = "/api/v1/namespaces/kgwe-system/pods"
    server = Server({
        "/version": '{"gitVersion": "v1.36.3"}',
        pods: json.dumps({"items": [POD]}),
        f"{pods}/kgwe-scheduler-0/log": f"started\npassword={SECRET}\n",
        f"{pods}/kgwe-scheduler-0:8080/proxy/metrics": "kgwe_scheduler_leader 1\n",
        f"{pods}/kgwe-scheduler-0:8080/proxy/readyz": "ok\n",
    })  # fmt: skip
    found = await bundle.collect(cast("KubeClient", server), ["kgwe-system"])
    path = tmp_path / "bundle.tar.gz"
    found.write(path, {"kgwe": "0.1.0", "at_s": 1})
    with tarfile.open(path) as archive:
        streams = {each.name: archive.extractfile(each) for each in archive.getmembers()}
        files = {name: stream.read().decode() for name, stream in streams.items() if stream is not None}
    return path, files


async def test_a_bundle_has_logs_metrics_status_and_versions(tmp_path):
    _, files = await collect(tmp_path)
    folder = "kgwe-debug/kgwe-system/kgwe-scheduler-0/scheduler"
    assert "started" in files[f"{folder}.log"]
    assert files[f"{folder}.metrics"] == "kgwe_scheduler_leader 1\n"
    assert files[f"{folder}.readyz"] == "ok\n"
    assert "v1.36.3" in files["kgwe-debug/cluster/version.yaml"]
    manifest = json.loads(files["kgwe-debug/manifest.json"])
    assert manifest["kgwe"] == "0.1.0"
    assert "forbidden" in manifest["missing"]["objects/nodes.core.yaml"]


async def test_a_bundle_has_no_secrets_and_only_its_owner_reads_it(tmp_path):
    path, files = await collect(tmp_path)
    assert not any(SECRET in text for text in files.values())
    assert REDACTED in files["kgwe-debug/kgwe-system/pods.yaml"]
    assert "secretKeyRef" in files["kgwe-debug/kgwe-system/pods.yaml"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_secrets_and_configmaps_are_not_read():
    read = {kind.plural for kind in (*bundle._CLUSTER, *bundle._NAMESPACED, *bundle._OWN)}
    assert not read & {"secrets", "configmaps"}
