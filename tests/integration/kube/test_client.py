"""The client against a real API server: refusals, conflicts, server-side apply, giving up and coming back."""

from __future__ import annotations

import asyncio
import gc
import random
import warnings
from typing import Any

import msgspec
import pytest
import uvloop
import yaml
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.kube.api.meta import ObjectMeta  # noqa: TC001 - msgspec resolves the annotation at run time
from kgwe.kube.api.resources import Resource
from kgwe.kube.client import client as kube_client
from kgwe.kube.client import manifests
from kgwe.kube.client.client import KubeClient, retry_conflict
from kgwe.kube.client.informer import Informer
from kgwe.kube.translate import podspec

pytestmark = pytest.mark.cluster

CONFIG_MAP: Resource[Any] = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True, type=dict[str, Any])


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": data}


# --- refusals -------------------------------------------------------------------------------------------


async def test_absence_is_not_found_for_every_verb(client, namespace):
    calls = [
        client.get(CONFIG_MAP, "nobody", namespace),
        client.patch(CONFIG_MAP, "nobody", {"data": {}}, namespace),
        client.delete(CONFIG_MAP, "nobody", namespace),
        client.create(CONFIG_MAP, config_map("a"), "no-such-namespace"),
    ]
    for call in calls:
        with pytest.raises(errors.NotFound):
            await call


async def test_a_taken_name_is_told_from_a_lost_race(client, namespace):
    stored = await client.create(CONFIG_MAP, config_map("a"), namespace)
    with pytest.raises(errors.AlreadyExists):
        await client.create(CONFIG_MAP, config_map("a"), namespace)

    await client.patch(CONFIG_MAP, "a", {"data": {"by": "somebody else"}}, namespace)
    stale = {"metadata": {"name": "a", "resourceVersion": stored["metadata"]["resourceVersion"]}}
    for write in (client.replace(CONFIG_MAP, "a", stale, namespace), client.patch(CONFIG_MAP, "a", stale, namespace)):
        with pytest.raises(errors.Conflict) as caught:
            await write
        assert not isinstance(caught.value, errors.AlreadyExists)


async def test_deletion_tied_to_a_uid_spares_a_namesake(client, namespace):
    first = await client.create(CONFIG_MAP, config_map("a"), namespace)
    await client.delete(CONFIG_MAP, "a", namespace, uid=first["metadata"]["uid"])
    second = await client.create(CONFIG_MAP, config_map("a"), namespace)

    with pytest.raises(errors.Conflict):
        await client.delete(CONFIG_MAP, "a", namespace, uid=first["metadata"]["uid"])

    assert (await client.get(CONFIG_MAP, "a", namespace))["metadata"]["uid"] == second["metadata"]["uid"]


async def test_a_refusal_keeps_the_servers_own_words(client, namespace):
    with pytest.raises(errors.Permanent, match=r"Not_A_Name.*lowercase RFC 1123"):
        await client.create(CONFIG_MAP, config_map("Not_A_Name"), namespace)


async def test_a_token_nobody_knows_is_worth_another_try_because_tokens_rotate(cluster, tmp_path):
    document = yaml.safe_load(cluster.kubeconfig.read_text())
    document["users"][0]["user"] = {"token": "a.b.c"}
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(document))

    async with KubeClient.connect(path) as stranger:
        with pytest.raises(errors.Transient, match="Unauthorized"):
            await stranger.list(resources.NAMESPACE)


# --- conflicts ------------------------------------------------------------------------------------------


async def test_writers_who_read_again_after_a_conflict_lose_no_update(client, namespace):
    await client.create(CONFIG_MAP, config_map("counter", n="0"), namespace)
    together = asyncio.Barrier(6)
    lost = 0

    async def increment() -> None:
        nonlocal lost
        stored = await client.get(CONFIG_MAP, "counter", namespace)
        if stored["data"]["n"] == "0":
            await together.wait()  # all have read before the first writes
        stored["data"]["n"] = str(int(stored["data"]["n"]) + 1)
        try:
            await client.replace(CONFIG_MAP, "counter", stored, namespace)
        except errors.Conflict:
            lost += 1
            raise

    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(retry_conflict(increment, attempts=30) for _ in range(6)))

    assert (await client.get(CONFIG_MAP, "counter", namespace))["data"]["n"] == "6"
    assert lost >= 5


# --- server-side apply ----------------------------------------------------------------------------------


async def test_apply_creates_then_changes_nothing_when_nothing_changed(client, namespace):
    first = await client.apply(CONFIG_MAP, config_map("a", x="1"), namespace)
    again = await client.apply(CONFIG_MAP, config_map("a", x="1"), namespace)
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]

    changed = await client.apply(CONFIG_MAP, config_map("a", y="2"), namespace)

    assert changed["data"] == {"y": "2"}  # what we no longer name is no longer there


async def test_apply_respects_fields_of_others_unless_it_insists(client, far_client, namespace):
    await client.apply(CONFIG_MAP, config_map("a", x="near"), namespace)

    with pytest.raises(errors.Conflict, match=r'conflict with "near".*\.data\.x'):
        await far_client.apply(CONFIG_MAP, config_map("a", x="far"), namespace, force=False)
    assert (await client.get(CONFIG_MAP, "a", namespace))["data"] == {"x": "near"}

    await far_client.apply(CONFIG_MAP, config_map("a", x="far"), namespace)
    merged = await client.apply(CONFIG_MAP, config_map("a", y="near"), namespace)
    assert merged["data"] == {"x": "far", "y": "near"}


async def test_manifests_are_applied_in_order_and_twice_is_the_same_as_once(client, namespace, tmp_path):
    path = tmp_path / "manifests.yaml"
    path.write_text(
        yaml.safe_dump_all(
            [
                {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "worker"}},
                {
                    "apiVersion": "rbac.authorization.k8s.io/v1",
                    "kind": "Role",
                    "metadata": {"name": "worker"},
                    "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}],
                },
            ]
        )
    )

    first = await manifests.apply_manifest(client, manifests.load_manifests(path), namespace=namespace)
    again = await manifests.apply_manifest(client, manifests.load_manifests(path), namespace=namespace)

    assert [document["kind"] for document in first] == ["ServiceAccount", "Role"]
    versions = [[document["metadata"]["resourceVersion"] for document in each] for each in (first, again)]
    assert versions[0] == versions[1]


@pytest.mark.parametrize(("version", "kind"), [("nowhere.example/v1", "Thing"), ("v1", "Thing"), ("apps/v9", "Job")])
async def test_a_kind_nobody_serves_is_named(client, version, kind):
    with pytest.raises(errors.NotFound, match=f"does not serve {kind} of {version}"):
        await manifests.apply_manifest(client, [{"apiVersion": version, "kind": kind, "metadata": {"name": "a"}}])


async def test_json_patches_are_carried_out_in_full_or_not_at_all(client, namespace):
    await client.create(CONFIG_MAP, config_map("a", x="1"), namespace)
    good = [{"op": "test", "path": "/data/x", "value": "1"}, {"op": "replace", "path": "/data/x", "value": "2"}]
    await client.patch(CONFIG_MAP, "a", good, namespace, kind=kube_client.JSON_PATCH)

    with pytest.raises(errors.Permanent):
        await client.patch(CONFIG_MAP, "a", good, namespace, kind=kube_client.JSON_PATCH)

    assert (await client.get(CONFIG_MAP, "a", namespace))["data"] == {"x": "2"}


# --- the network ----------------------------------------------------------------------------------------


async def test_a_cut_connection_is_transient_and_the_next_call_after_it_works(far_client, proxy, namespace):
    await far_client.create(CONFIG_MAP, config_map("a"), namespace)
    proxy.cut()
    with pytest.raises(errors.Transient):
        await far_client.get(CONFIG_MAP, "a", namespace)
    proxy.mend()

    assert (await far_client.get(CONFIG_MAP, "a", namespace))["metadata"]["name"] == "a"


async def test_an_address_where_nobody_listens_is_transient(cluster, tmp_path):
    document = yaml.safe_load(cluster.kubeconfig.read_text())
    document["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(document))

    async with KubeClient.connect(path) as lost:
        with pytest.raises(errors.Transient, match=r"cannot reach the cluster at https://127.0.0.1:1 "):
            await lost.list(resources.NAMESPACE)


async def test_calls_given_up_at_any_moment_leave_no_socket_behind_and_the_pool_usable(cluster):
    """Cancelled while connecting, shaking hands, asking or reading: sockets are closed, slots given back."""
    luck = random.Random(11)
    gc.collect()
    with warnings.catch_warnings(record=True) as leaks:
        warnings.simplefilter("always", ResourceWarning)
        for _ in range(15):
            async with KubeClient.connect(cluster.kubeconfig) as client:
                calls: list[asyncio.Future[Any]] = [asyncio.ensure_future(client.list(resources.POD)) for _ in range(4)]
                calls.append(asyncio.ensure_future(Informer(client, resources.POD).run()))
                await asyncio.sleep(luck.random() * 0.05)
                for call in calls:
                    call.cancel()
                await asyncio.gather(*calls, return_exceptions=True)
                async with asyncio.timeout(PATIENCE_S):
                    await client.list(resources.NODE)
            gc.collect()
    assert [str(leak.message) for leak in leaks] == []


class Named(msgspec.Struct):
    metadata: ObjectMeta


NAMED = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True, type=Named)


async def use_everything(kubeconfig: Any, namespace: str, name: str) -> None:
    async with KubeClient.connect(kubeconfig) as client:
        informer = Informer(client, NAMED, namespace=namespace)
        running = asyncio.ensure_future(informer.run())
        try:
            async with asyncio.timeout(PATIENCE_S):
                await informer.synced.wait()
                await client.create(CONFIG_MAP, config_map(name), namespace)
                await informer.resync()
                assert f"{namespace}/{name}" in informer.store
                await asyncio.gather(*(client.list(CONFIG_MAP, namespace) for _ in range(20)))
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
async def test_it_works_on_either_event_loop(cluster, namespace, loop):
    def run() -> None:
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(use_everything(cluster.kubeconfig, namespace, "seen"))

    await asyncio.to_thread(run)


# --- what is stored can be read -------------------------------------------------------------------------


async def test_every_quantity_the_server_stores_can_be_counted_with(client, namespace):
    texts = [
        "1",
        "0",
        "0.5",
        "500m",
        "1e3",
        "1E3",
        "1e30",
        "1e-3",
        "8Ei",
        "12E",
        "9223372036854775808",
        "1n",
        "1.5Gi",
        "5.",
    ]
    names = ["cpu", "memory", "ephemeral-storage", "nvidia.com/gpu", "example.com/foo", "kubernetes.io/batch-cpu"]
    read = 0
    for name in names:
        for text in texts:
            resource = {"requests": {name: text}, "limits": {name: text}}
            pod = {
                "metadata": {"name": "q"},
                "spec": {"containers": [{"name": "c", "image": "i", "resources": resource}]},
            }
            path = resources.POD.path(namespace=namespace)
            try:
                reply = await client.request("POST", path, body=pod, params={"dryRun": "All"})
            except errors.Permanent:
                continue  # the server would not store it either
            stored = kube_client._decode(reply, resources.POD.type, path)
            assert podspec.sum_requests(stored.spec)["pods"] == 1
            read += 1
    assert read > 50
