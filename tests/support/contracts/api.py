"""What controllers rely on in an API server. Each function takes a client and an empty namespace.

`MemoryApi` and a real API server keep all of it, so a test of a decision may run on the one in memory.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.kube.api.resources import Resource
from kgwe.kube.client.client import JSON_PATCH, STRATEGIC_MERGE_PATCH
from kgwe.kube.client.informer import Informer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kgwe.kube.client.client import KubeClient

CONFIG_MAP: Resource[dict[str, Any]] = Resource(
    "", "v1", "configmaps", "ConfigMap", namespaced=True, type=dict[str, Any]
)
PODS: Resource[dict[str, Any]] = Resource("", "v1", "pods", "Pod", namespaced=True, type=dict[str, Any])


def config_map(name: str, **meta: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **meta}, "data": {"a": "1"}}


def pod(name: str) -> dict[str, Any]:
    """A pod that no scheduler looks at."""
    containers = [{"name": "main", "image": "example.com/main:1"}]
    return {"metadata": {"name": name}, "spec": {"containers": containers, "schedulerName": "none"}}


async def _eventually(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await true():  # noqa: ASYNC110 -- no event says so
            await asyncio.sleep(0.05)


async def _exists(client: KubeClient, resource: Resource[Any], name: str, namespace: str) -> bool:
    try:
        await client.get(resource, name, namespace)
    except errors.NotFound:
        return False
    return True


async def creating_twice_is_refused_as_such(client: KubeClient, namespace: str) -> None:
    await client.create(CONFIG_MAP, config_map("a"), namespace)
    with pytest.raises(errors.AlreadyExists):
        await client.create(CONFIG_MAP, config_map("a"), namespace)


async def absent_objects_are_not_found(client: KubeClient, namespace: str) -> None:
    with pytest.raises(errors.NotFound):
        await client.get(CONFIG_MAP, "absent", namespace)
    with pytest.raises(errors.NotFound):
        await client.patch(CONFIG_MAP, "absent", {"data": {}}, namespace)
    with pytest.raises(errors.NotFound):
        await client.delete(CONFIG_MAP, "absent", namespace)


async def namesakes_differ_in_uid(client: KubeClient, namespace: str) -> None:
    first = await client.create(CONFIG_MAP, config_map("a"), namespace)
    await client.delete(CONFIG_MAP, "a", namespace)
    second = await client.create(CONFIG_MAP, config_map("a"), namespace)
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    with pytest.raises(errors.Conflict):
        await client.delete(CONFIG_MAP, "a", namespace, uid=first["metadata"]["uid"])
    await client.delete(CONFIG_MAP, "a", namespace, uid=second["metadata"]["uid"])


async def a_stale_version_is_a_conflict(client: KubeClient, namespace: str) -> None:
    old = await client.create(CONFIG_MAP, config_map("a"), namespace)
    await client.patch(CONFIG_MAP, "a", {"data": {"a": "2"}}, namespace)
    version = {"metadata": {"resourceVersion": old["metadata"]["resourceVersion"]}}
    with pytest.raises(errors.Conflict):
        await client.patch(CONFIG_MAP, "a", {**version, "data": {"a": "3"}}, namespace)
    with pytest.raises(errors.Conflict):
        await client.replace(CONFIG_MAP, "a", {**old, "data": {"a": "3"}}, namespace)
    assert (await client.get(CONFIG_MAP, "a", namespace))["data"] == {"a": "2"}


async def a_write_to_another_uid_is_refused(client: KubeClient, namespace: str) -> None:
    made = await client.create(CONFIG_MAP, config_map("a"), namespace)
    other = "00000000-0000-0000-0000-000000000000"
    with pytest.raises(errors.Permanent):  # Invalid: an object's UID does not change
        await client.patch(CONFIG_MAP, "a", {"metadata": {"uid": other}, "data": {"a": "2"}}, namespace)
    with pytest.raises(errors.Conflict):
        await client.replace(CONFIG_MAP, "a", {**made, "metadata": {**made["metadata"], "uid": other}}, namespace)


async def a_merge_patch_adds_changes_and_removes(client: KubeClient, namespace: str) -> None:
    await client.create(CONFIG_MAP, config_map("a", labels={"x": "1", "y": "2"}), namespace)
    patch = {"metadata": {"labels": {"x": None, "z": "3"}}, "data": {"b": "2"}}
    made = await client.patch(CONFIG_MAP, "a", patch, namespace)
    assert made["metadata"]["labels"] == {"y": "2", "z": "3"}
    assert made["data"] == {"a": "1", "b": "2"}


async def a_strategic_merge_keeps_other_conditions(client: KubeClient, namespace: str) -> None:
    made = await client.create(PODS, pod("p"), namespace)
    uid = made["metadata"]["uid"]

    async def write(kind: str, status: str, uid: str = uid) -> dict[str, Any]:
        body = {"metadata": {"uid": uid}, "status": {"conditions": [{"type": kind, "status": status}]}}
        return await client.patch(PODS, "p", body, namespace, subresource="status", kind=STRATEGIC_MERGE_PATCH)

    for kind, status in (("example.com/A", "True"), ("example.com/B", "True"), ("example.com/A", "False")):
        made = await write(kind, status)
    ours = [each for each in made["status"]["conditions"] if each["type"].startswith("example.com/")]
    assert {each["type"]: each["status"] for each in ours} == {"example.com/A": "False", "example.com/B": "True"}
    with pytest.raises(errors.Permanent):
        await write("example.com/A", "True", uid="of-another")


async def a_json_patch_tests_before_it_writes(client: KubeClient, namespace: str) -> None:
    await client.create(CONFIG_MAP, config_map("a"), namespace)
    write = {"op": "replace", "path": "/data/a", "value": "2"}
    with pytest.raises(errors.Permanent):
        await client.patch(
            CONFIG_MAP, "a", [{"op": "test", "path": "/data/a", "value": "no"}, write], namespace, kind=JSON_PATCH
        )
    made = await client.patch(
        CONFIG_MAP, "a", [{"op": "test", "path": "/data/a", "value": "1"}, write], namespace, kind=JSON_PATCH
    )
    assert made["data"] == {"a": "2"}


async def a_write_that_changes_nothing_keeps_the_version(client: KubeClient, namespace: str) -> None:
    made = await client.create(CONFIG_MAP, config_map("a"), namespace)
    same = await client.patch(CONFIG_MAP, "a", {"data": {"a": "1"}}, namespace)
    assert same["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


async def status_is_written_only_through_its_subresource(client: KubeClient, namespace: str) -> None:
    await client.create(PODS, pod("p"), namespace)
    condition = [{"type": "example.com/seen", "status": "True"}]
    made = await client.patch(PODS, "p", {"status": {"message": "no"}}, namespace)
    assert "message" not in made.get("status", {})
    made = await client.patch(PODS, "p", {"status": {"conditions": condition}}, namespace, subresource="status")
    assert [each["type"] for each in made["status"]["conditions"]] == ["example.com/seen"]


async def a_finalizer_keeps_what_is_deleted(client: KubeClient, namespace: str) -> None:
    await client.create(CONFIG_MAP, config_map("a", finalizers=["example.com/wait"]), namespace)
    await client.delete(CONFIG_MAP, "a", namespace)
    kept = await client.get(CONFIG_MAP, "a", namespace)
    assert kept["metadata"]["deletionTimestamp"]
    await client.delete(CONFIG_MAP, "a", namespace)
    await client.patch(CONFIG_MAP, "a", {"metadata": {"finalizers": []}}, namespace)
    assert not await _exists(client, CONFIG_MAP, "a", namespace)


async def what_is_owned_goes_with_its_owner(client: KubeClient, namespace: str) -> None:
    owner = await client.create(CONFIG_MAP, config_map("owner"), namespace)
    ref = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    await client.create(CONFIG_MAP, config_map("owned", ownerReferences=[ref]), namespace)
    await client.create(CONFIG_MAP, config_map("free"), namespace)
    await client.delete(CONFIG_MAP, "owner", namespace)

    async def is_collected() -> bool:
        return not await _exists(client, CONFIG_MAP, "owned", namespace)

    await _eventually(is_collected)
    assert await _exists(client, CONFIG_MAP, "free", namespace)


async def lists_select_by_label_and_name(client: KubeClient, namespace: str) -> None:
    for name, labels in (("a", {"x": "1"}), ("b", {"x": "2"}), ("c", {})):
        await client.create(CONFIG_MAP, config_map(name, labels=labels), namespace)

    async def names(**selector: str) -> list[str]:
        found = await client.list(CONFIG_MAP, namespace, **selector)
        return [each["metadata"]["name"] for each in found if each["metadata"]["name"] in {"a", "b", "c"}]

    assert await names(labelSelector="x=1") == ["a"]
    assert await names(labelSelector="x") == ["a", "b"]
    assert await names(labelSelector="!x") == ["c"]
    assert await names(labelSelector="x,x!=1") == ["b"]
    assert await names(fieldSelector="metadata.name=b") == ["b"]


async def a_pod_is_bound_once(client: KubeClient, namespace: str) -> None:
    made = await client.create(PODS, pod("p"), namespace)
    assert not made["spec"].get("nodeName")
    binding = {"metadata": {"name": "p"}, "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"}}
    await client.create(resources.BINDING, binding, namespace, name="p", subresource="binding")
    assert (await client.get(PODS, "p", namespace))["spec"]["nodeName"] == "n1"
    with pytest.raises(errors.Conflict):
        await client.create(resources.BINDING, binding, namespace, name="p", subresource="binding")


async def an_informer_sees_every_change(client: KubeClient, namespace: str) -> None:
    await client.create(resources.LEASE, {"metadata": {"name": "before"}, "spec": {}}, namespace)
    informer = Informer(client, resources.LEASE, namespace=namespace)
    running = asyncio.create_task(informer.run())
    try:
        async with asyncio.timeout(PATIENCE_S):
            await informer.synced.wait()
        assert set(informer.store) == {f"{namespace}/before"}
        await client.create(resources.LEASE, {"metadata": {"name": "after"}, "spec": {}}, namespace)
        await client.patch(resources.LEASE, "after", {"spec": {"holderIdentity": "me"}}, namespace)
        await client.delete(resources.LEASE, "before", namespace)

        async def is_seen() -> bool:
            found = informer.store.get(f"{namespace}/after")
            return len(informer.store) == 1 and found is not None and found.spec.holderIdentity == "me"

        await _eventually(is_seen)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def a_watch_with_a_selector_loses_what_no_longer_matches(client: KubeClient, namespace: str) -> None:
    lease = {"metadata": {"name": "a", "labels": {"x": "1"}}, "spec": {}}
    await client.create(resources.LEASE, lease, namespace)
    informer = Informer(client, resources.LEASE, namespace=namespace, label_selector="x=1")
    running = asyncio.create_task(informer.run())

    async def is_there() -> bool:
        return bool(informer.store)

    async def is_gone() -> bool:
        return not informer.store

    try:
        await _eventually(is_there)
        await client.patch(resources.LEASE, "a", {"metadata": {"labels": {"x": "2"}}}, namespace)
        await _eventually(is_gone)
        await client.patch(resources.LEASE, "a", {"metadata": {"labels": {"x": "1"}}}, namespace)
        await _eventually(is_there)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


CONTRACT: tuple[Callable[[KubeClient, str], Awaitable[None]], ...] = (
    creating_twice_is_refused_as_such,
    absent_objects_are_not_found,
    namesakes_differ_in_uid,
    a_stale_version_is_a_conflict,
    a_write_to_another_uid_is_refused,
    a_merge_patch_adds_changes_and_removes,
    a_strategic_merge_keeps_other_conditions,
    a_json_patch_tests_before_it_writes,
    a_write_that_changes_nothing_keeps_the_version,
    status_is_written_only_through_its_subresource,
    a_finalizer_keeps_what_is_deleted,
    what_is_owned_goes_with_its_owner,
    lists_select_by_label_and_name,
    a_pod_is_bound_once,
    an_informer_sees_every_change,
    a_watch_with_a_selector_loses_what_no_longer_matches,
)
