"""The client of the kubelet's pod-resources socket."""

from __future__ import annotations

import pytest
from tests.support.fakes import kubelet as bed
from tests.support.fakes.kubelet import GPU, Kubelet, pod

from kgwe import errors
from kgwe.hardware.kubelet import podresources
from kgwe.hardware.kubelet.podresources import PodResources
from kgwe.model.devices.holdings import ClaimDevice, ContainerDevices, PodDevices
from kgwe.proto import podresources_pb2 as pb


@pytest.fixture
async def kubelet():
    with bed.folder() as root:
        made = Kubelet(root)
        await made.start()
        yield made
        await made.stop()


@pytest.fixture
async def client(kubelet):
    made = PodResources(kubelet.socket, deadline_s=2)
    yield made
    await made.close()


def give(kubelet: Kubelet, name: str, *ids: str) -> None:
    made = pod(name, len(ids))
    kubelet.pods[made.metadata.key] = made
    if ids:
        kubelet.given[made.metadata.key, "c0"] = {GPU: ids}


async def test_pods_and_what_they_hold(kubelet, client):
    give(kubelet, "a", "GPU-0", "GPU-1")
    give(kubelet, "idle")
    listed = await client.list()
    assert listed[0] == PodDevices("team", "a", (ContainerDevices("c0", ((GPU, ("GPU-0", "GPU-1")),)),))
    assert listed[1] == PodDevices("team", "idle", (ContainerDevices("c0"),))


async def test_one_pod(kubelet, client):
    give(kubelet, "a", "GPU-0")
    assert (await client.get("team", "a")).ids(GPU) == ("GPU-0",)
    with pytest.raises(errors.Transient, match="not found"):
        await client.get("team", "b")


async def test_what_there_is(kubelet, client):
    kubelet.devices[GPU] = {"GPU-0": "Healthy", "GPU-1": "Unhealthy", "GPU-2": "Healthy"}
    assert await client.list_allocatable() == {GPU: ("GPU-0", "GPU-2")}


async def test_a_kubelet_that_restarts_is_found_again_at_once(kubelet, client):
    give(kubelet, "a", "GPU-0")
    await client.list()
    await kubelet.stop()
    with pytest.raises(errors.Transient):
        await client.list()
    await kubelet.start()
    assert len(await client.list()) == 1


async def test_no_kubelet_at_all():
    with bed.folder() as root:
        client = PodResources(root / "none.sock", deadline_s=1)
        with pytest.raises(errors.Transient):
            await client.list()
        await client.close()


async def test_a_kubelet_that_does_not_answer_is_given_up_at_the_deadline(kubelet, client):
    kubelet.may_answer.clear()
    with pytest.raises(errors.Transient, match="DEADLINE_EXCEEDED"):
        await client.list(deadline_s=0.2)
    kubelet.may_answer.set()


async def test_more_than_the_limit_is_refused_and_the_next_answer_is_heard(kubelet, client):
    give(kubelet, "a", *(f"GPU-{'x' * 4000}-{i}" for i in range(5000)))
    with pytest.raises(errors.Transient, match="RESOURCE_EXHAUSTED"):
        await client.list()
    give(kubelet, "a", "GPU-0")
    assert (await client.list())[0].ids(GPU) == ("GPU-0",)


def test_claims_of_a_container():
    message = pb.PodResources(name="a", namespace="team")
    container = message.containers.add(name="c")
    claim = container.dynamic_resources.add(claim_name="gpus", claim_namespace="team")
    device = claim.claim_resources.add(driver_name="gpu.nvidia.com", pool_name="n1", device_name="gpu-3")
    device.cdi_devices.add(name="k8s.gpu.nvidia.com/claim=abc-gpu-3")
    (read,) = podresources._decode_pod(message).containers
    cdi = ("k8s.gpu.nvidia.com/claim=abc-gpu-3",)
    assert read.claims == (ClaimDevice("team/gpus", "gpu.nvidia.com", "n1", "gpu-3", cdi),)


def test_the_wire_is_the_kubelets():
    """Bytes as a kubelet of 1.36 sends them: field numbers are the protocol, names are not."""
    sent = b"\n'\n\x01a\x12\x04team\x1a\x1c\n\x01c\x12\x17\n\x0envidia.com/gpu\x12\x05GPU-0"
    (only,) = pb.ListPodResourcesResponse.FromString(sent).pod_resources
    assert podresources._decode_pod(only) == PodDevices("team", "a", (ContainerDevices("c", ((GPU, ("GPU-0",)),)),))
