"""What deploy/ adds to a cluster, on a real API server: warnings."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import pytest_asyncio
import yaml
from tests.integration.waiting import eventually

from kgwe.kube.client import KubeClient
from kgwe.local import certificates, install

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kgwe.local.cluster import LocalCluster

pytestmark = pytest.mark.cluster

EXAMPLES = Path(__file__).parents[2] / "examples"
PATHS = {"GPUBudget": "namespaces/default/gpubudgets", "AutoscalingPolicy": "autoscalingpolicies"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def installed(cluster: LocalCluster) -> LocalCluster:
    async with KubeClient.connect(cluster.kubeconfig) as client:
        await install.install(client)
    return cluster


@pytest.fixture
def http(installed: LocalCluster) -> Iterator[httpx2.Client]:
    """The administrator, with the headers of every reply."""
    files = installed.layout.certificates
    context = ssl.create_default_context(cafile=str(files.authority))
    admin = files.pair(certificates.ADMIN)
    context.load_cert_chain(admin.certificate, admin.key)
    with httpx2.Client(base_url=installed.api_url, verify=context, timeout=30, trust_env=False) as client:
        yield client


def example(name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(iter(yaml.safe_load_all((EXAMPLES / name).read_text(encoding="utf-8"))))
    return found


@pytest.mark.parametrize("file", ["budget.yaml", "autoscalingpolicy.yaml"])
async def test_creating_a_kind_that_no_controller_acts_on_prints_a_warning(http: httpx2.Client, file: str) -> None:
    manifest = example(file)
    where = f"/apis/kgwe.nvidia.io/v1/{PATHS[manifest['kind']]}"

    def warning() -> str:
        reply = http.post(where, json=manifest, params={"dryRun": "All"})
        assert reply.status_code == 201, reply.text
        return str(reply.headers.get("warning", ""))

    said = await eventually(warning)  # a policy takes effect a moment after it is stored
    assert f"no controller acts on a {manifest['kind']} yet" in said
