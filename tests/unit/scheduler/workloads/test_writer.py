"""Writes about a workload: once, with the version they were decided on, and not on top of one not yet seen."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.support.builders.objects import workload
from tests.support.fakes.memory_api import MemoryApi

from kgwe import errors
from kgwe.apps.scheduler.workloads.writer import StatusWriter
from kgwe.cluster.workload.workload import Workload, from_kgwe, from_warp
from kgwe.kube.api.kgwe.warp import WarpGPUWorkload, WarpGPUWorkloadSpec
from kgwe.kube.api.meta import ObjectMeta
from kgwe.kube.client.client import KubeClient


def store(api: MemoryApi, made: Workload, **fields: Any) -> None:
    """Store the workload; as the first object it gets version 1, which `made` has too."""
    meta = {"name": made.meta.name, "finalizers": list(made.meta.finalizers)}
    spec = {"gpuRequirements": {"count": 1}, "modelName": "m", "gpuCount": 1}
    path = made.kind.resource.path(namespace=made.meta.namespace)
    api.call("POST", path, {"metadata": meta, "spec": spec, **fields})


def stored(api: MemoryApi, made: Workload) -> dict[str, Any]:
    return api.call("GET", made.kind.resource.path(namespace=made.meta.namespace, name=made.meta.name))


def writer(api: MemoryApi) -> StatusWriter:
    events: Any = SimpleNamespace(record=lambda _: None)
    return StatusWriter(KubeClient(api), events)


@pytest.fixture
def api(made):
    api = MemoryApi()
    store(api, made)
    return api


@pytest.fixture
def made():
    return from_kgwe(workload())


def seen(made, version):
    return replace(made, meta=msgspec.structs.replace(made.meta, resourceVersion=version))


async def test_a_status_is_written_only_over_the_version_it_was_decided_on(api, made):
    write = writer(api)
    assert await write.write_status(made, replace(made.status, phase="Running"))
    assert stored(api, made)["status"] == {"phase": "Running"}
    assert not await write.write_status(made, made.status), "nothing to write"
    with pytest.raises(errors.Conflict):
        await write.write_status(made, replace(made.status, phase="Failed"))


async def test_nothing_is_decided_on_a_view_from_before_our_last_write(api, made):
    write = writer(api)
    assert not write.is_behind(made)
    await write.write_status(made, replace(made.status, phase="Running"))
    assert write.is_behind(made)
    assert not write.is_behind(seen(made, "2"))
    assert not write.is_behind(made), "asked once with the new view, the old write is forgotten"


async def test_a_write_that_changed_nothing_makes_nobody_wait(made):
    api = MemoryApi()
    store(api, made, status={"phase": "Running"})
    write = writer(api)
    await write.write_status(made, replace(made.status, phase="Running"))
    assert not write.is_behind(made)


async def test_what_we_wrote_is_no_news_when_the_watch_shows_it_once(api, made):
    write = writer(api)
    await write.write_status(made, replace(made.status, phase="Running"))
    assert write.is_echo(seen(made, "2"))
    assert not write.is_echo(seen(made, "2"))


async def test_what_others_wrote_on_top_is_news(api, made):
    write = writer(api)
    await write.write_status(made, replace(made.status, phase="Running"))
    assert not write.is_echo(seen(made, "3"))


async def test_what_we_wrote_is_news_to_who_was_turned_away_meanwhile(api, made):
    write = writer(api)
    await write.write_status(made, replace(made.status, phase="Running"))
    assert write.is_behind(made)
    assert not write.is_echo(seen(made, "2"))


@pytest.mark.parametrize("name", ["kgwe.nvidia.io/finalizer", "gpu.warp.dev/finalizer"])
async def test_a_finalizer_of_an_earlier_release_is_removed(made, name):
    if name.startswith("gpu.warp.dev"):
        spec = WarpGPUWorkloadSpec(modelName="m", gpuCount=1)
        meta = ObjectMeta(name="w", namespace="team", uid="u", resourceVersion="1")
        made = from_warp(WarpGPUWorkload(metadata=meta, spec=spec))
    old = replace(made, meta=msgspec.structs.replace(made.meta, finalizers=("mine", name)))
    api = MemoryApi()
    store(api, old)
    assert await writer(api).remove_finalizer(old)
    assert stored(api, old)["metadata"]["finalizers"] == ["mine"]
    assert not await writer(api).remove_finalizer(made)
    assert len(api.requests) == 1
