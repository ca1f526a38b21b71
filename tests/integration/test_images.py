"""The image of the agent, built from Debian packages and wheels, runs as it is in a directory of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from kgwe.images import builder, recipe
from kgwe.images.layout import Layout
from kgwe.local.host.progress import Silent

CHECKOUT = Path(__file__).parents[2]
# Modules that load libraries of the base layer, and KGWE's own entry points.
_IMPORTS = "import ctypes, grpc, numpy, pynvml, sqlite3, ssl, zoneinfo; zoneinfo.ZoneInfo('Europe/Berlin')"


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")
@pytest.mark.skipif(not (shutil.which("apt-get") and Path("/usr/sbin/chroot").exists()), reason="needs Debian")
def test_the_image_of_the_agent_runs_in_a_chroot(tmp_path):
    chosen = recipe.find_recipe("kgwe-agent")
    built = builder.build_image(
        chosen, ["amd64"], source=CHECKOUT, target=tmp_path / "image.tar", registry="", progress=Silent()
    )
    root = tmp_path / "root"
    with Layout(built.path) as image:
        index = image.read_document(built.digest)
        manifest = image.read_document(index["manifests"][0]["digest"])
        for number, layer in enumerate(manifest["layers"]):
            packed = tmp_path / f"{number}.tar.gz"
            packed.write_bytes(image.read_blob(layer["digest"]))
            with tarfile.open(packed) as archive:
                archive.extractall(root, filter="fully_trusted")  # noqa: S202 # our own archive

    def run(*command: str) -> str:
        user = ["/usr/sbin/chroot", "--userspec=65532:65532", str(root)]
        done = subprocess.run(
            [*user, *command], env=chosen.environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run(*chosen.entrypoint, "--version").startswith("kgwe ")
    assert "Usage: kgwe agent" in run(*chosen.entrypoint, "agent", "--help")
    run("/usr/bin/python3", "-c", _IMPORTS)
    assert not list(root.rglob("*.pyc.*")), "no unfinished bytecode"
    assert list((root / "opt/kgwe/lib/kgwe").rglob("*.pyc")), "it starts without compiling"
