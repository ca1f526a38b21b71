"""A gated pod is given its place by a replacement: what comes of it is what a merge patch makes of the same pod."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.builders.many_pods import GATE, MANY

from kgwe import errors
from kgwe.apps.scheduler.pods import pinner
from kgwe.cluster.workload import placement_annotations
from kgwe.kube.api import resources
from kgwe.kube.api.resources import Resource
from kgwe.kube.client.informer import Informer
from kgwe.kube.client.replace import ProtobufReplacer
from kgwe.kube.transport import protobuf_patch
from kgwe.placement.live.holding import Holding

if TYPE_CHECKING:
    from kgwe.kube.client.client import KubeClient

pytestmark = pytest.mark.cluster

WHOLE: Resource[Any] = Resource("", "v1", "pods", "Pod", namespaced=True, type=dict[str, Any])
GATED = [manifest for manifest in MANY if GATE in manifest["spec"].get("schedulingGates", ())]


def seat(pod: Any) -> dict[str, Any]:
    return pinner.pin_patch(pod, "owner", 1, Holding("n1", gpus=0xF0))


def comparable(pod: dict[str, Any], name: str) -> dict[str, Any]:
    """Without what differs between twins, and without what kube-scheduler says of them meanwhile."""
    rest = copy.deepcopy(pod)
    del rest["status"]
    meta = rest["metadata"]
    for field in ("name", "uid", "resourceVersion", "creationTimestamp"):
        del meta[field]
    meta["managedFields"] = [entry for entry in meta["managedFields"] if entry.get("subresource") != "status"]
    for entry in meta["managedFields"]:
        del entry["time"]
    assert pod["metadata"]["name"] == name
    return rest


async def twins(client: KubeClient, namespace: str, manifest: dict[str, Any]) -> tuple[str, str]:
    names = []
    for number in (1, 2):
        twin = copy.deepcopy(manifest)
        twin["metadata"]["name"] += f"-{number}"
        # Its name is made up by the server, which would tell them apart.
        twin["spec"]["automountServiceAccountToken"] = False
        await client.create(resources.POD, twin, namespace)
        names.append(twin["metadata"]["name"])
    return names[0], names[1]


async def known(client: KubeClient, namespace: str, watching: Any) -> Informer[Any]:
    informer = Informer(client, resources.POD, namespace=namespace, keep=placement_annotations.is_gated)
    async with watching(informer) as seen:
        await seen.synced()
    return informer


@pytest.mark.parametrize("manifest", GATED, ids=lambda manifest: manifest["metadata"]["name"])
async def test_nothing_but_its_place_changes_in_a_pod(client, namespace, watching, manifest):
    ours, theirs = await twins(client, namespace, manifest)
    before = await client.get(WHOLE, ours, namespace)
    informer = await known(client, namespace, watching)
    one, other = (informer.store[f"{namespace}/{name}"] for name in (ours, theirs))
    pods = ProtobufReplacer(client, resources.POD, informer.bytes_of)

    await pods.merge(one, seat(one))
    await client.patch(resources.POD, theirs, seat(other), namespace)

    assert pods.replaced == 1
    replaced = await client.get(WHOLE, ours, namespace)
    assert comparable(replaced, ours) == comparable(await client.get(WHOLE, theirs, namespace), theirs)
    assert replaced["metadata"]["annotations"][placement_annotations.SEAT_ANNOTATION] == "owner/1"
    assert GATE not in replaced["spec"].get("schedulingGates", [])
    assert replaced["metadata"]["uid"] == before["metadata"]["uid"]


async def test_what_somebody_wrote_meanwhile_is_kept(client, namespace, watching):
    await client.create(resources.POD, GATED[0], namespace)
    informer = await known(client, namespace, watching)
    (pod,) = informer.store.values()
    name = pod.metadata.name
    await client.patch(resources.POD, name, {"metadata": {"labels": {"new": "yes"}}}, namespace)
    pods = ProtobufReplacer(client, resources.POD, informer.bytes_of)

    await pods.merge(pod, seat(pod))

    assert pods.replaced == 0
    after = await client.get(resources.POD, name, namespace)
    assert after.metadata.labels == {"new": "yes"}
    assert after.metadata.annotations[placement_annotations.SEAT_ANNOTATION] == "owner/1"
    assert not placement_annotations.is_gated(after)


async def test_a_namesake_is_not_given_the_place_of_another(client, namespace, watching):
    await client.create(resources.POD, GATED[0], namespace)
    informer = await known(client, namespace, watching)
    (pod,) = informer.store.values()
    name = pod.metadata.name
    await client.delete(resources.POD, name, namespace, grace_s=0)
    await client.create(resources.POD, GATED[0], namespace)
    whole = protobuf_patch.merge_patch(resources.POD, informer.bytes_of(pod), seat(pod))

    with pytest.raises(errors.Conflict):
        await client.replace_message(resources.POD, name, whole, namespace)
    with pytest.raises(errors.KgweError):
        await ProtobufReplacer(client, resources.POD, informer.bytes_of).merge(pod, seat(pod))

    assert placement_annotations.is_gated(await client.get(resources.POD, name, namespace))
