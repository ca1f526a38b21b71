"""Writes about a workload: once, with the version they were decided on, and not on top of one not yet seen."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.support.builders.objects import workload

from kgwe.apps.scheduler.workloads.writer import StatusWriter
from kgwe.cluster.workload.workload import from_kgwe, from_warp
from kgwe.kube.api.kgwe.warp import WarpGPUWorkload, WarpGPUWorkloadSpec
from kgwe.kube.api.meta import ObjectMeta


class Client:
    """Stores as the API server does: a new version for a change, the same for none."""

    def __init__(self, version: str = "2") -> None:
        self.version = version
        self.patches: list[tuple[dict[str, Any], str | None]] = []

    async def patch(self, _resource, _name, body, _namespace, *, subresource=None):
        self.patches.append((body, subresource))
        return SimpleNamespace(metadata=ObjectMeta(name="w", uid="u", resourceVersion=self.version))


def writer(client):
    events: Any = SimpleNamespace(record=lambda _: None)
    made: Any = StatusWriter(client, events)
    return made


@pytest.fixture
def made():
    return from_kgwe(workload())


def seen(made, version):
    return replace(made, meta=msgspec.structs.replace(made.meta, resourceVersion=version))


async def test_a_status_carries_the_version_it_was_decided_on(made):
    client = Client()
    assert await writer(client).write_status(made, replace(made.status, phase="Running"))
    body = {"metadata": {"resourceVersion": "1"}, "status": {"phase": "Running"}}
    assert client.patches == [(body, "status")]


async def test_nothing_is_decided_on_a_view_from_before_our_last_write(made):
    write = writer(Client())
    assert not write.is_behind(made)
    await write.write_status(made, replace(made.status, phase="Running"))
    assert write.is_behind(made)
    assert not write.is_behind(seen(made, "2"))
    assert not write.is_behind(made), "asked once with the new view, the old write is forgotten"


async def test_a_write_that_changed_nothing_makes_nobody_wait(made):
    write = writer(Client(version="1"))
    await write.write_status(made, replace(made.status, phase="Running"))
    assert not write.is_behind(made)


async def test_what_we_wrote_is_no_news_when_the_watch_shows_it_once(made):
    write = writer(Client())
    await write.write_status(made, replace(made.status, phase="Running"))
    assert write.is_echo(seen(made, "2"))
    assert not write.is_echo(seen(made, "2"))


async def test_what_others_wrote_on_top_is_news(made):
    write = writer(Client())
    await write.write_status(made, replace(made.status, phase="Running"))
    assert not write.is_echo(seen(made, "3"))


async def test_what_we_wrote_is_news_to_who_was_turned_away_meanwhile(made):
    write = writer(Client())
    await write.write_status(made, replace(made.status, phase="Running"))
    assert write.is_behind(made)
    assert not write.is_echo(seen(made, "2"))


@pytest.mark.parametrize("name", ["kgwe.nvidia.io/finalizer", "gpu.warp.dev/finalizer"])
async def test_a_finalizer_of_an_earlier_release_is_removed(made, name):
    client = Client()
    if name.startswith("gpu.warp.dev"):
        spec = WarpGPUWorkloadSpec(modelName="m", gpuCount=1)
        made = from_warp(WarpGPUWorkload(metadata=ObjectMeta(name="w", uid="u", resourceVersion="1"), spec=spec))
    old = replace(made, meta=msgspec.structs.replace(made.meta, finalizers=("mine", name)))
    assert await writer(client).remove_finalizer(old)
    assert client.patches == [({"metadata": {"resourceVersion": "1", "finalizers": ["mine"]}}, None)]
    assert not await writer(client).remove_finalizer(made)
    assert len(client.patches) == 1
