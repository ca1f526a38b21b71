"""The informer through the worst: the API server killed, and history compacted away under its feet (HTTP 410)."""

from __future__ import annotations

import asyncio
import ssl
import uuid
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec
import pytest
import pytest_asyncio
from tests.support.builders import configmaps
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient
from kgwe.kube.client.informer import Informer
from kgwe.kube.transport.http1 import LineSplitter
from kgwe.local.cluster import certificates, components

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kgwe.local.cluster.cluster import LocalCluster

pytestmark = pytest.mark.cluster

LABEL = "test=outage"


CONFIG_MAP = configmaps.IN_JSON


@pytest.fixture(autouse=True, params=[configmaps.IN_JSON, configmaps.IN_PROTOBUF], ids=["json", "protobuf"])
def encoding(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test in each."""
    monkeypatch.setattr(request.module, "CONFIG_MAP", request.param)


@pytest_asyncio.fixture(loop_scope="session")
async def near(breakable: LocalCluster) -> AsyncIterator[KubeClient]:
    async with KubeClient.connect(breakable.kubeconfig, field_manager="near") as client:
        yield client


@pytest_asyncio.fixture(loop_scope="session")
async def place(near: KubeClient) -> str:
    """A namespace that goes away with the module, in its own time."""
    name = f"test-outage-{uuid.uuid4().hex[:8]}"
    await near.create(resources.NAMESPACE, {"metadata": {"name": name}})
    return name


async def create(client: KubeClient, namespace: str, *names: str) -> None:
    for name in names:
        body = {"metadata": {"name": name, "labels": {"test": "outage"}}}
        await client.create(CONFIG_MAP, body, namespace)


async def compact(cluster: LocalCluster) -> None:
    """Have etcd forget everything but the present."""
    files = cluster.layout.certificates
    context = ssl.create_default_context(cafile=str(files.authority))
    pair = files.pair(certificates.ETCD_CLIENT)
    context.load_cert_chain(pair.certificate, pair.key)
    url = f"https://127.0.0.1:{cluster.state().ports[components.ETCD]}"

    def forget() -> None:
        # In a thread: httpx2's asyncio transport now and then leaves a socket open behind TLS.
        with httpx2.Client(base_url=url, verify=context, trust_env=False, timeout=PATIENCE_S) as etcd:
            answer = etcd.post("/v3/kv/range", json={"key": "eA=="})
            revision = answer.raise_for_status().json()["header"]["revision"]
            etcd.post("/v3/kv/compaction", json={"revision": revision, "physical": True}).raise_for_status()

    await asyncio.to_thread(forget)


async def crash(cluster: LocalCluster) -> None:
    """SIGKILL the API server and start it again."""
    await asyncio.to_thread(cluster.kill, components.APISERVER)
    await asyncio.to_thread(cluster.restart, components.APISERVER)


async def watch_from(client: KubeClient, namespace: str, version: str) -> dict[str, Any]:
    """The first thing that a watch from this version says."""
    params = {"watch": "true", "resourceVersion": version, "timeoutSeconds": "5"}
    async with client.stream(CONFIG_MAP.path(namespace=namespace), params=params, read_timeout_s=10) as response:
        lines = LineSplitter()
        async for chunk in response.aiter_bytes():
            for line in lines.feed(chunk):
                event: dict[str, Any] = msgspec.json.decode(line)
                return event
    return {}


async def test_an_api_server_killed_and_started_again_costs_no_change(breakable, near, place, watching):
    await create(near, place, "kept", "edited", "deleted")
    async with watching(Informer(near, CONFIG_MAP, namespace=place, label_selector=LABEL)) as seen:
        await seen.synced()
        assert sorted(seen.words) == ["new deleted", "new edited", "new kept"]
        seen.changes.clear()

        await crash(breakable)
        await near.patch(CONFIG_MAP, "edited", {"data": {"size": "2"}}, place)
        await create(near, place, "added")
        await near.delete(CONFIG_MAP, "deleted", place)

        # Whether it could resume or had to list, and whichever write the list already contained.
        async with asyncio.timeout(PATIENCE_S):
            await seen.informer.resync()
        assert sorted(seen.words) == ["changed edited", "gone deleted", "new added"]


async def test_history_compacted_away_is_made_up_for_by_comparing(breakable, near, place, far_from, watching):
    await create(near, place, "kept", "edited", "deleted", "replaced")
    async with far_from(breakable) as (proxy, far):
        informer = Informer(far, CONFIG_MAP, namespace=place, label_selector=LABEL)
        async with watching(informer) as seen:
            await seen.synced()
            seen.changes.clear()
            held = informer.version

            proxy.cut()
            await near.patch(CONFIG_MAP, "edited", {"data": {"size": "2"}}, place)
            await near.delete(CONFIG_MAP, "deleted", place)
            await near.delete(CONFIG_MAP, "replaced", place)
            await create(near, place, "replaced", "added")
            await compact(breakable)
            await crash(breakable)  # or the server would answer from its own memory
            refusal = await watch_from(near, place, held)
            assert (refusal["type"], refusal["object"]["code"]) == ("ERROR", 410)
            proxy.mend()
            informer._wake.set()  # or the test would sit out the back-off

            # Deletions first, then what the list has, by name.
            await seen.until(
                "gone deleted", "new added", "changed edited", "gone replaced", "new replaced", within_s=60
            )
            assert informer.lists == 2
            await create(near, place, "afterwards")
            await seen.until(*seen.words[:5], "new afterwards")


async def test_a_list_whose_version_is_compacted_between_two_pages_is_still_complete(breakable, near, place, watching):
    names = [f"m{number}" for number in range(6)]
    await create(near, place, *names)
    expired: list[str] = []
    async with KubeClient.connect(breakable.kubeconfig) as client:
        ask = client.request

        async def forget_between_pages(method: str, path: str, **kwargs: Any) -> bytes:
            if "continue" in (kwargs.get("params") or {}) and not expired:
                await near.patch(CONFIG_MAP, "m5", {"data": {"size": "2"}}, place)
                await crash(breakable)
                await compact(breakable)
            try:
                return await ask(method, path, **kwargs)
            except errors.Expired as exc:
                expired.append(str(exc))
                raise

        client.request = forget_between_pages  # type: ignore[method-assign]
        async with watching(Informer(client, CONFIG_MAP, namespace=place, label_selector=LABEL, page_size=2)) as seen:
            await seen.synced(within_s=120)

            assert expired
            assert sorted(seen.words) == [f"new {name}" for name in names]
            assert seen.informer.store[f"{place}/m5"].data == {"size": "2"}
            found: list[Any] = await client.list(CONFIG_MAP, place, labelSelector=LABEL)
            assert len(found) == 6
