"""Files of pinned Go modules, such as CRDs of other systems: read from the registry, never stored in the project."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

#: ProvisioningRequest
AUTOSCALER_APIS = "k8s.io/autoscaler/cluster-autoscaler/apis@v0.0.0-20240830133931-adfbe7e45277"
#: CapacityBuffer
KARPENTER = "sigs.k8s.io/karpenter@v1.15.0"
JOB_SET = "sigs.k8s.io/jobset@v0.10.1"
KUEUE = "sigs.k8s.io/kueue@v0.10.1"
LWS = "sigs.k8s.io/lws@v0.7.0"


@functools.cache
def find_module(module: str) -> Path:
    """Return the directory of a module; skip the test where Go or its registry cannot be reached."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("Go is not installed")
    try:
        done = subprocess.run(
            [go, "mod", "download", "-json", module],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd="/",
            # A module may ask for a newer Go than the one installed.
            env=os.environ | {"GOTOOLCHAIN": "auto"},
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{module} could not be downloaded in time")
    found = json.loads(done.stdout or "{}")
    if done.returncode or "Dir" not in found:
        pytest.skip(f"{module} could not be downloaded: {found.get('Error', done.stderr)[:200]}")
    return Path(found["Dir"])


def read_file(module: str, path: str) -> str:
    return (find_module(module) / path).read_text(encoding="utf-8")
