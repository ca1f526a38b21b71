"""The advisor beside a default kube-scheduler, with rights to read and no others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec
import pytest
import yaml
from tests.support.clusters import clients, commands
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.kube.client import manifests
from kgwe.local.cluster.cluster import service_account_kubeconfig
from kgwe.local.fleet import apply, models
from kgwe.local.host import ports

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kgwe.kube.api.resources import Resource
    from kgwe.kube.client.client import KubeClient
    from kgwe.local.cluster.cluster import LocalCluster

RIGHTS = Path(__file__).parents[2] / "deploy" / "advisor.yaml"
USER = "system:serviceaccount:kgwe-system:kgwe-advisor"
READS = {"get", "list", "watch"}


@pytest.fixture(scope="module")
def advised(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> tuple[LocalCluster, Path]:
    """A cluster without anything of KGWE's but what tells wiring, and the advisor's own kubeconfig."""
    asyncio.run(_prepare(cluster))
    path = tmp_path_factory.mktemp("advisor") / "kubeconfig"
    return cluster, service_account_kubeconfig(cluster, "kgwe-system", "kgwe-advisor", path)


async def _prepare(cluster: LocalCluster) -> None:
    async with clients.connect(cluster.kubeconfig) as client:
        await apply.apply_fleet(client, models.load("dgx-h100"), 8)
        await manifests.apply_manifest(client, manifests.load_manifests(RIGHTS))


@pytest.fixture
async def client(advised: tuple[LocalCluster, Path]) -> AsyncIterator[KubeClient]:
    async with clients.connect(advised[0].kubeconfig) as found:
        yield found
        kinds: tuple[Resource[Any], ...] = (resources.JOB, resources.POD)
        for kind in kinds:
            for each in await found.list(kind, "default"):
                with contextlib.suppress(errors.NotFound):
                    await found.delete(kind, each.metadata.name, "default", grace_s=0)


def job(name: str, pods: int, gpus: int, nodes: list[str]) -> dict[str, Any]:
    """An Indexed Job whose pods a default kube-scheduler can only put on these nodes, one on each."""
    here = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": nodes}]}
    apart = {"labelSelector": {"matchLabels": {"job-name": name}}, "topologyKey": "kubernetes.io/hostname"}
    spread = {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **apart}
    return {
        "metadata": {"name": name},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "completionMode": "Indexed",
            "template": {
                "metadata": {"annotations": {"kgwe.nvidia.io/simulated-duration": "1h"}},
                "spec": {
                    "restartPolicy": "Never",
                    "topologySpreadConstraints": [spread],
                    "affinity": {
                        "nodeAffinity": {
                            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": here}]
                        }
                    },
                    "containers": [{"name": "m", "image": "x", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}],
                },
            },
        },
    }


async def until_bound(client: KubeClient, count: int) -> dict[str, str]:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            pods = await client.list(resources.POD, "default")
            bound = {pod.metadata.name: pod.spec.nodeName for pod in pods if pod.spec.nodeName}
            if len(bound) == count:
                return bound
            await asyncio.sleep(0.1)


async def leaves(client: KubeClient) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for node in await client.list(resources.NODE):
        found.setdefault(node.metadata.labels["fabric.topograph.run/tier-0"], []).append(node.metadata.name)
    return found


async def advise(kubeconfig: Path, *more: str) -> Any:
    code, out, err = await commands.kgwe("advise", "--kubeconfig", str(kubeconfig), *more)
    assert (code, err) == (0, "")
    return msgspec.json.decode(out) if "--json" in more else out


def writes_of(cluster: LocalCluster, user: str) -> list[str]:
    """What the user tried to write, as the API server's audit log tells."""
    lines = [json.loads(line) for line in cluster.audit_log.read_text().splitlines()]
    return [f"{line['verb']} {line['requestURI']}" for line in lines if line["user"]["username"] == user]


def test_the_rights_have_no_verb_that_writes() -> None:
    rules = [
        rule
        for document in yaml.safe_load_all(RIGHTS.read_text())
        for rule in document.get("rules", ())
        if document["kind"] in ("ClusterRole", "Role")
    ]
    assert rules
    assert {verb for rule in rules for verb in rule["verbs"]} <= READS
    assert not any("*" in rule["resources"] or "secrets" in rule["resources"] for rule in rules)


async def test_a_gang_torn_apart_is_found_and_told_how_it_could_be(
    advised: tuple[LocalCluster, Path], client: KubeClient
) -> None:
    cluster, kubeconfig = advised
    before = writes_of(cluster, USER)
    one, other = list((await leaves(client)).values())[:2]
    await client.create(resources.JOB, job("torn", 2, 4, [one[0], other[0]]), "default")
    bound = await until_bound(client, 2)
    assert set(bound.values()) == {one[0], other[0]}

    report = await advise(kubeconfig, "--json")
    (worst,) = report["worst"]
    assert (worst["name"], worst["scheduler"], worst["gpus"]) == ("job default/torn", "default-scheduler", 8.0)
    assert (worst["actual"]["leaves"], worst["best"]["leaves"], worst["extraLeaves"]) == (2, 1, 1)
    assert worst["lostGbPerS"] > 0
    assert worst["best"]["nodes"] == 1
    assert report["totals"]["lostGbPerS"] == worst["lostGbPerS"]
    text = await advise(kubeconfig)
    assert "gangs span 2 leaves; 1 would be enough" in text
    assert "job default/torn (8 GPUs)" in text
    # Nothing of it was moved, and nothing written.
    assert await until_bound(client, 2) == bound
    assert writes_of(cluster, USER) == before


async def test_watching_judges_what_is_placed_and_forgets_what_ends(
    advised: tuple[LocalCluster, Path], client: KubeClient
) -> None:
    cluster, kubeconfig = advised
    before = writes_of(cluster, USER)
    port = ports.allocate(("metrics",))["metrics"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kgwe.cli", "advise", "--watch", "--json", "--kubeconfig", str(kubeconfig),
        "--metrics-bind-address", f"127.0.0.1:{port}", stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        await until_metric(port, "process_start_time_seconds", lambda value: value > 0)
        await until_ready(port)
        one, other = list((await leaves(client)).values())[:2]
        await client.create(resources.JOB, job("torn", 2, 4, [one[0], other[0]]), "default")
        line = msgspec.json.decode(await asyncio.wait_for(process.stdout.readline(), PATIENCE_S))
        assert (line["name"], line["extraLeaves"]) == ("job default/torn", 1), line
        label = '{scheduler="default-scheduler"}'
        lost = await until_metric(port, f"kgwe_advisor_regret_gb_per_s{label}", lambda value: value > 0)
        assert lost == pytest.approx(line["lostGbPerS"])
        assert await metric(port, f"kgwe_advisor_regret_leaves{label}") == 1
        worse = 'kgwe_advisor_placements_total{outcome="worse",scheduler="default-scheduler"}'
        assert await metric(port, worse) == 1

        await client.delete(resources.JOB, "torn", "default")
        await until_metric(port, f"kgwe_advisor_running{label}", lambda value: value == 0)
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), PATIENCE_S)
    assert process.returncode == 0
    assert writes_of(cluster, USER) == before


async def test_the_account_may_not_write(advised: tuple[LocalCluster, Path]) -> None:
    body = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "m", "image": "x"}]}}
    async with clients.connect(advised[1]) as limited:
        with pytest.raises(errors.Permanent, match="forbidden"):
            await limited.create(resources.POD, body, "default")
        # Tried, and so in the audit log: it would have been seen.
        assert writes_of(advised[0], USER)
        with pytest.raises(errors.Permanent, match="forbidden"):
            await limited.request("GET", "/api/v1/namespaces/kube-system/secrets")


# --- metrics --------------------------------------------------------------------------------------------


async def metric(port: int, name: str) -> float:
    async with httpx2.AsyncClient(timeout=PATIENCE_S) as http:
        try:
            text = (await http.get(f"http://127.0.0.1:{port}/metrics")).text
        except httpx2.TransportError:
            return 0.0
    return next((float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(f"{name} ")), 0.0)


async def until_metric(port: int, name: str, true: Any) -> float:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            value = await metric(port, name)
            if true(value):
                return value
            await asyncio.sleep(0.1)


async def until_ready(port: int) -> None:
    async with asyncio.timeout(PATIENCE_S), httpx2.AsyncClient(timeout=PATIENCE_S) as http:
        while True:
            if (await http.get(f"http://127.0.0.1:{port}/readyz")).is_success:
                return
            await asyncio.sleep(0.1)
