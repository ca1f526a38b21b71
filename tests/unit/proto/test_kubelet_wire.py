"""The kubelet's protocols by their bytes: numbers and types of fields are what counts on the wire, not our names."""

from __future__ import annotations

import pytest

from kgwe.proto import deviceplugin_pb2 as plugin
from kgwe.proto import podresources_pb2 as pods


def field(number: int, content: bytes | str | int) -> bytes:
    """A field as it is sent: a varint below 128, or text or a message of less than 128 bytes."""
    if isinstance(content, int):
        return bytes((number << 3, content))
    data = content.encode() if isinstance(content, str) else content
    return bytes((number << 3 | 2, len(data))) + data


CASES = [
    (
        plugin.RegisterRequest(
            version="v1beta1",
            endpoint="a.sock",
            resource_name="nvidia.com/gpu",
            options=plugin.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True),
        ),
        field(1, "v1beta1") + field(2, "a.sock") + field(3, "nvidia.com/gpu") + field(4, field(1, 1) + field(2, 1)),
    ),
    (
        plugin.ListAndWatchResponse(
            devices=[
                plugin.Device(ID="G", health="Healthy", topology=plugin.TopologyInfo(nodes=[plugin.NUMANode(ID=1)]))
            ]
        ),
        field(1, field(1, "G") + field(2, "Healthy") + field(3, field(1, field(1, 1)))),
    ),
    (
        plugin.PreferredAllocationRequest(
            container_requests=[
                plugin.ContainerPreferredAllocationRequest(
                    available_deviceIDs=["a", "b"], must_include_deviceIDs=["a"], allocation_size=2
                )
            ]
        ),
        field(1, field(1, "a") + field(1, "b") + field(2, "a") + field(3, 2)),
    ),
    (
        plugin.PreferredAllocationResponse(
            container_responses=[plugin.ContainerPreferredAllocationResponse(deviceIDs=["a"])]
        ),
        field(1, field(1, "a")),
    ),
    (
        plugin.AllocateRequest(container_requests=[plugin.ContainerAllocateRequest(devices_ids=["a", "b"])]),
        field(1, field(1, "a") + field(1, "b")),
    ),
    (
        plugin.AllocateResponse(
            container_responses=[
                plugin.ContainerAllocateResponse(
                    envs={"K": "v"},
                    mounts=[plugin.Mount(container_path="/c", host_path="/h", read_only=True)],
                    devices=[plugin.DeviceSpec(container_path="/c", host_path="/h", permissions="rw")],
                    annotations={"k": "v"},
                    cdi_devices=[plugin.CDIDevice(name="x=y")],
                )
            ]
        ),
        field(
            1,
            field(1, field(1, "K") + field(2, "v"))
            + field(2, field(1, "/c") + field(2, "/h") + field(3, 1))
            + field(3, field(1, "/c") + field(2, "/h") + field(3, "rw"))
            + field(4, field(1, "k") + field(2, "v"))
            + field(5, field(1, "x=y")),
        ),
    ),
    (
        pods.GetPodResourcesRequest(pod_name="p", pod_namespace="n"),
        field(1, "p") + field(2, "n"),
    ),
    (
        pods.ContainerResources(
            name="c",
            devices=[pods.ContainerDevices(resource_name="r", device_ids=["a", "b"])],
            dynamic_resources=[
                pods.DynamicResource(
                    claim_name="c",
                    claim_namespace="n",
                    claim_resources=[
                        pods.ClaimResource(
                            cdi_devices=[pods.CDIDevice(name="x")],
                            driver_name="d",
                            pool_name="p",
                            device_name="g",
                            share_id="s",
                        )
                    ],
                )
            ],
        ),
        field(1, "c")
        + field(2, field(1, "r") + field(2, "a") + field(2, "b"))
        + field(
            5,
            field(2, "c")
            + field(3, "n")
            + field(4, field(1, field(1, "x")) + field(2, "d") + field(3, "p") + field(4, "g") + field(5, "s")),
        ),
    ),
    (
        pods.AllocatableResourcesResponse(devices=[pods.ContainerDevices(resource_name="r", device_ids=["a"])]),
        field(1, field(1, "r") + field(2, "a")),
    ),
]


@pytest.mark.parametrize(("message", "sent"), CASES, ids=[type(message).__name__ for message, _ in CASES])
def test_a_message_has_the_kubelets_bytes(message, sent):
    assert message.SerializeToString(deterministic=True) == sent
    assert type(message).FromString(sent) == message


def test_services_have_the_kubelets_names():
    found = {
        service.full_name: sorted(method.name for method in service.methods)
        for module in (plugin, pods)
        for service in module.DESCRIPTOR.services_by_name.values()
    }
    assert found == {
        "v1beta1.Registration": ["Register"],
        "v1beta1.DevicePlugin": [
            "Allocate",
            "GetDevicePluginOptions",
            "GetPreferredAllocation",
            "ListAndWatch",
            "PreStartContainer",
        ],
        "v1.PodResourcesLister": ["Get", "GetAllocatableResources", "List"],
    }
