"""Files of pinned Go modules, such as CRDs of other systems: read from the registry, never stored in the project."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from kgwe.local.host import paths

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


def build_binary(module: str, package: str) -> Path:
    """Build a program of a module once and keep it; this takes minutes. Skip the test where that is not possible."""
    path, _, version = module.partition("@")
    made = paths.cache_root() / "test-bin" / f"{path.rpartition('/')[2]}-{version}"
    if made.exists():
        return made
    find_module(module)
    made.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "go.mod").write_text(f"module example.com/build\n\ngo 1.23.0\n\nrequire {path} {version}\n")
        coming = made.with_suffix(".part")
        command = ["go", "build", "-mod=mod", "-trimpath", "-ldflags", "-s -w", "-o", str(coming), f"{path}/{package}"]
        env = os.environ | {"GOTOOLCHAIN": "auto", "CGO_ENABLED": "0"}
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{module} could not be built: {done.stderr[-300:]}")
        coming.replace(made)
    return made
