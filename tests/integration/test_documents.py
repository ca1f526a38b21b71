"""Every example is created on a real API server, and every complete manifest in the documentation is accepted by it."""

from __future__ import annotations

import asyncio
import re
import textwrap
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
import yaml
from tests.support.clusters import clients

from kgwe.local.demo import install
from kgwe.local.toolchain import binaries

if TYPE_CHECKING:
    from kgwe.local.cluster.cluster import LocalCluster

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^ *```yaml\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


def manifests_in(text: str) -> list[dict[str, Any]]:
    """Documents that name their kind and themselves."""
    read = [each for each in yaml.safe_load_all(text) if isinstance(each, dict)]
    return [each for each in read if {"apiVersion", "kind"} <= each.keys() and "name" in each.get("metadata", {})]


def manifests_of(document: Path) -> list[dict[str, Any]]:
    blocks = BLOCK.findall(document.read_text(encoding="utf-8"))
    return [manifest for block in blocks for manifest in manifests_in(textwrap.dedent(block))]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def installed(cluster: LocalCluster) -> LocalCluster:
    """A cluster with the kinds, rights and policies of `deploy/`."""
    async with clients.connect(cluster.kubeconfig) as client:
        await install.install(client)
    return cluster


async def kubectl(cluster: LocalCluster, *arguments: str, manifests: list[dict[str, Any]]) -> str:
    process = await asyncio.create_subprocess_exec(
        str(binaries.find().found["kubectl"].path), *arguments, "--kubeconfig", str(cluster.kubeconfig), "-f", "-",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate(yaml.safe_dump_all(manifests).encode())
    assert process.returncode == 0, output.decode()
    return output.decode()


async def test_every_example_is_created(installed: LocalCluster) -> None:
    namespace = f"examples-{uuid.uuid4().hex[:8]}"
    manifests = [manifest for path in EXAMPLES for manifest in manifests_in(path.read_text(encoding="utf-8"))]
    for manifest in manifests:
        manifest["metadata"].pop("namespace", None)
    room = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    await kubectl(installed, "create", manifests=[room])
    created = await kubectl(installed, "create", "--validate=strict", "-n", namespace, manifests=manifests)
    await kubectl(installed, "delete", "-n", namespace, manifests=manifests)
    await kubectl(installed, "delete", "--wait=false", manifests=[room])
    assert created.count(" created") == len(manifests)


async def test_every_manifest_in_the_documentation_is_accepted(installed: LocalCluster) -> None:
    manifests = [manifest for document in DOCUMENTS for manifest in manifests_of(document)]
    for manifest in manifests:
        manifest["metadata"].pop("namespace", None)
    arguments = ("create", "--dry-run=server", "--validate=strict", "-n", "default")
    accepted = await kubectl(installed, *arguments, manifests=manifests)
    assert accepted.count(" created (server dry run)") == len(manifests) > 0
