"""The informer against a real API server, undisturbed and cut off."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pytest
from tests.support.builders import configmaps
from tests.support.builders.configmaps import ConfigMap
from tests.support.clusters import clients
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.kube.api.meta import ObjectMeta  # noqa: TC001 - msgspec resolves the annotation at run time
from kgwe.kube.api.resources import Resource
from kgwe.kube.client.informer import Informer
from kgwe.local.cluster.cluster import service_account_kubeconfig

if TYPE_CHECKING:
    from kgwe.kube.client.client import KubeClient

pytestmark = pytest.mark.cluster


CONFIG_MAP = configmaps.IN_JSON
# The control plane puts a ConfigMap of its own into every namespace.
OURS = {"labelSelector": "test=informer"}


@pytest.fixture(autouse=True, params=[configmaps.IN_JSON, configmaps.IN_PROTOBUF], ids=["json", "protobuf"])
def encoding(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test in each."""
    monkeypatch.setattr(request.module, "CONFIG_MAP", request.param)


async def create(client: KubeClient, namespace: str, name: str, **data: str) -> ConfigMap:
    body = {"metadata": {"name": name, "labels": {"test": "informer"}}, "data": data}
    return await client.create(CONFIG_MAP, body, namespace)


def informer(client: KubeClient, namespace: str, resource: Resource[Any] | None = None, **how: Any) -> Informer[Any]:
    return Informer(client, resource or CONFIG_MAP, namespace=namespace, label_selector=OURS["labelSelector"], **how)


# --- undisturbed ----------------------------------------------------------------------------------------


async def test_a_list_in_tiny_pages_is_complete(client, namespace, watching):
    names = [f"m{number}" for number in range(7)]
    for name in names:
        await create(client, namespace, name)

    async with watching(informer(client, namespace, page_size=2)) as seen:
        await seen.synced()

        assert sorted(seen.words) == [f"new {name}" for name in names]
        assert set(seen.informer.store) == {f"{namespace}/{name}" for name in names}
        assert seen.informer.version != ""


async def test_each_change_is_reported_once_and_in_order(client, namespace, watching):
    async with watching(informer(client, namespace)) as seen:
        await seen.synced()
        await create(client, namespace, "a", size="1")
        await client.patch(CONFIG_MAP, "a", {"data": {"size": "2"}}, namespace)
        await client.patch(CONFIG_MAP, "a", {"data": {"size": "2"}}, namespace)  # changes nothing
        await client.delete(CONFIG_MAP, "a", namespace)
        await create(client, namespace, "b")
        await seen.until("new a", "changed a", "gone a", "new b")

        first, second, third, _ = seen.changes
        assert first.new.data == {"size": "1"}
        assert (second.old.data, second.new.data) == ({"size": "1"}, {"size": "2"})
        assert third.old.data == {"size": "2"}
        assert list(seen.informer.store) == [f"{namespace}/b"]
        assert (seen.informer.lists, seen.informer.watches) == (1, 1)


async def test_an_object_that_leaves_the_selection_is_gone_and_comes_back_new(client, namespace, watching):
    async with watching(informer(client, namespace)) as seen:
        await seen.synced()
        await create(client, namespace, "a")
        await client.patch(CONFIG_MAP, "a", {"metadata": {"labels": {"test": "other"}}}, namespace)
        await client.patch(CONFIG_MAP, "a", {"metadata": {"labels": {"test": "informer"}}}, namespace)

        await seen.until("new a", "gone a", "new a")


async def test_resync_returns_with_everything_written_before_it(client, namespace, watching):
    async with watching(informer(client, namespace)) as seen:
        await seen.synced()
        for number in range(20):
            await create(client, namespace, f"m{number}")
            async with asyncio.timeout(PATIENCE_S):
                await seen.informer.resync()
            assert f"{namespace}/m{number}" in seen.informer.store
        assert sorted(seen.words) == sorted(f"new m{number}" for number in range(20))


class Sized(msgspec.Struct, frozen=True):
    size: Literal["small", "large"] = "small"


class SizedMap(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    data: Sized = Sized()


async def test_an_object_we_cannot_read_hides_no_other_and_is_seen_to_go(client, namespace, watching):
    strict: Resource[Any] = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True, type=SizedMap)
    await create(client, namespace, "a", size="small")
    await create(client, namespace, "bad", size="enormous")
    await create(client, namespace, "c", size="large")

    async with watching(informer(client, namespace, strict)) as seen:
        await seen.synced()
        assert sorted(seen.words) == ["new a", "new c"]
        assert seen.informer.skipped == 1
        # A readable one becomes unreadable: it stays as it was, through a list too, until it is deleted.
        await client.patch(CONFIG_MAP, "a", {"data": {"size": "enormous"}}, namespace)
        async with asyncio.timeout(PATIENCE_S):
            await seen.informer.resync()
        assert seen.informer.store[f"{namespace}/a"].data.size == "small"
        await client.delete(CONFIG_MAP, "a", namespace)
        await client.patch(CONFIG_MAP, "bad", {"data": {"size": "small"}}, namespace)

        await seen.until(*sorted(["new a", "new c"], key=seen.words.index), "gone a", "new bad")


async def test_a_kind_not_installed_yet_is_waited_for_and_its_removal_is_seen(client, watching):
    group = f"i{uuid.uuid4().hex[:8]}.example.com"
    widget: Resource[Any] = Resource(group, "v1", "widgets", "Widget", namespaced=False, type=ConfigMap)
    definition: dict[str, Any] = {
        "metadata": {"name": f"widgets.{group}"},
        "spec": {
            "group": group,
            "scope": "Cluster",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                }
            ],
        },
    }
    async with watching(Informer(client, widget)) as seen:
        async with asyncio.timeout(PATIENCE_S):
            while not seen.informer._failures:  # noqa: ASYNC110 - refused at least once
                await asyncio.sleep(0.01)
        assert not seen.informer.has_synced
        await client.create(resources.CRD, definition)
        try:
            await seen.synced()
            await client.create(widget, {"apiVersion": f"{group}/v1", "kind": "Widget", "metadata": {"name": "w"}})
            await seen.until("new w")
        finally:
            await client.delete(resources.CRD, definition["metadata"]["name"])
        await seen.until("new w", "gone w")


# --- cut off --------------------------------------------------------------------------------------------


async def test_what_happened_while_cut_off_is_reported_afterwards(client, far_client, proxy, namespace, watching):
    for name in ("kept", "changed", "deleted", "replaced"):
        await create(client, namespace, name, size="1")
    async with watching(informer(far_client, namespace)) as seen:
        await seen.synced()
        seen.changes.clear()

        proxy.cut()
        await client.patch(CONFIG_MAP, "changed", {"data": {"size": "2"}}, namespace)
        await client.delete(CONFIG_MAP, "deleted", namespace)
        await client.delete(CONFIG_MAP, "replaced", namespace)
        replacement = await create(client, namespace, "replaced", size="3")
        await create(client, namespace, "added")
        proxy.mend()

        await seen.until("changed changed", "gone deleted", "gone replaced", "new replaced", "new added")
        assert seen.changes[3].new.metadata.uid == replacement.metadata.uid
        assert seen.informer.lists == 1  # the server still had the history


async def test_a_connection_that_went_silent_is_given_up_and_replaced(client, far_client, proxy, namespace, watching):
    async with watching(informer(far_client, namespace, inactivity_s=1.0)) as seen:
        await create(client, namespace, "before")
        await seen.until("new before")

        proxy.freeze()
        proxy.mend()  # for connections made from now on; those frozen stay so
        await create(client, namespace, "after")

        await seen.until("new before", "new after", within_s=60)
        assert seen.informer.lists == 1


async def test_a_silent_watch_is_not_mistaken_for_a_dead_one_when_nothing_happens(client, namespace, watching):
    """Taken up again from the same version: nothing lost, nothing told twice, nothing listed."""
    await create(client, namespace, "a")
    async with watching(informer(client, namespace, inactivity_s=0.2)) as seen:
        await seen.synced()
        async with asyncio.timeout(PATIENCE_S):
            while seen.informer.watches < 4:  # noqa: ASYNC110 - a counter
                await asyncio.sleep(0.02)
        await create(client, namespace, "b")

        await seen.until("new a", "new b")
        assert seen.informer.lists == 1


async def test_an_informer_without_rights_is_filled_once_they_are_granted(
    cluster, client, namespace, tmp_path, watching
):
    account: Resource[Any] = Resource("", "v1", "serviceaccounts", "ServiceAccount", namespaced=True, type=dict)
    binding: Resource[Any] = Resource(
        "rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", namespaced=True, type=dict
    )
    await client.create(account, {"metadata": {"name": "reader"}}, namespace)
    await create(client, namespace, "a")
    path = service_account_kubeconfig(cluster, namespace, "reader", tmp_path / "reader")
    async with clients.connect(path) as reader:
        with pytest.raises(errors.Permanent, match="forbidden"):
            await reader.list(CONFIG_MAP, namespace)
        async with watching(informer(reader, namespace)) as seen:
            async with asyncio.timeout(PATIENCE_S):
                while not seen.informer._failures:  # noqa: ASYNC110 - refused at least once
                    await asyncio.sleep(0.01)
            body = {
                "metadata": {"name": "readers"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
                "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": namespace}],
            }
            await client.create(binding, body, namespace)

            await seen.until("new a")
