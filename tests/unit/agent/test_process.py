"""What runs on every node must stay small."""

from __future__ import annotations

import subprocess
import sys

# Everything that is on by default, and nothing that is not needed for it.
_PARTS = "main health health_node cutter exporting devices settings"


def test_the_agent_does_without_what_is_large():
    modules = ", ".join(f"kgwe.apps.agent.{name}" for name in _PARTS.split())
    code = f"""
import sys
sys.modules["rich"] = None
import {modules}, kgwe.kube.client, kgwe.hardware.nvml, kgwe.telemetry.logs
large = {{"numpy", "uvicorn", "prometheus_client", "cyclopts", "pygments"}} & set(sys.modules)
sys.exit(f"loaded: {{large}}" if large else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
