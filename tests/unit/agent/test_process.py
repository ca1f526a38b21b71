"""What runs on every node must stay small."""

from __future__ import annotations

import subprocess
import sys

# Everything that is on by default, and nothing that is not needed for it.
_PARTS = "main settings health.monitor health.node_condition mig.reconfigurer metrics.wiring devices.wiring"


def test_the_agent_does_without_what_is_large():
    modules = ", ".join(f"kgwe.apps.agent.{name}" for name in _PARTS.split())
    code = f"""
import sys
from kgwe.apps.agent import __main__ as process
process.exclude_unused_modules()
import {modules}, kgwe.kube.client.client, kgwe.hardware.nvml.driver, kgwe.telemetry.logs
names = {{"numpy", "prometheus_client", "cyclopts", "pygments", "lightkube.models.core_v1"}}
large = names & set(sys.modules)
sys.exit(f"loaded: {{large}}" if large else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_is_left_out_is_not_missed(tmp_path):
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(
        """
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
"""
    )
    code = f"""
import asyncio
from kgwe.apps.agent import __main__ as process
process.exclude_unused_modules()
from kgwe import errors
from kgwe.kube.client.client import KubeClient
async def connect(path):
    async with KubeClient.connect(path) as client:
        await client.request("GET", "/version")
for path, error in (({str(kubeconfig)!r}, errors.Transient), ("/nowhere", errors.Permanent)):
    try:
        asyncio.run(connect(path))
    except error as exc:
        print(exc)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    refused, missing = done.stdout.splitlines()
    assert "cannot reach the cluster at https://127.0.0.1:1 (connection refused)" in refused
    assert "reading kubeconfig" in missing
