"""What ResourceSlices tell of a node: through the slices of the simulated fleet, which are those of NVIDIA's driver."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kgwe.kube.api import resources
from kgwe.kube.api.kgwe.gpunode import HealthState
from kgwe.kube.translate.node_builder import CLAIMS_LABEL
from kgwe.kube.translate.nodes import FleetReader
from kgwe.kube.translate.resource_slices import DeviceSlices, describe_node
from kgwe.local.fleet import gpunodes, models, resource_slices
from kgwe.model.simfleet import inventory
from kgwe.model.units import amounts
from kgwe.placement.fleet.taints import Toleration

XID_79 = gpunodes.Xid(2, 79, "2026-01-01T00:00:00Z")


def built(model: str = "dgx-h100", pool: str = "", faults: tuple[Any, ...] = ()) -> Any:
    nodes = inventory.expand_fleet(models.load(model), 40)
    node = next(each for each in nodes if not pool or each.pool.name == pool)
    return gpunodes.gpu_node(node, "uid", faults)


def slice_of(gpu_node: Any, generation: int = 1, **spec: Any) -> Any:
    body = resource_slices.build_manifest(gpu_node, generation)
    body["spec"] |= spec
    return msgspec.convert(body, resources.RESOURCE_SLICE.type)


def bare(name: str, **offers: str) -> Any:
    status = {
        "allocatable": {"cpu": "64", "memory": "1Ti", "pods": "110", **offers},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return msgspec.convert({"metadata": {"name": name}, "status": status}, resources.NODE.type)


def mig_pool() -> tuple[str, str]:
    """(model, pool) of a simulated node with cut cards."""
    for model in models.list_names():
        for pool in models.load(model).pools:
            if any(pool.layouts) and pool.mig_strategy != "single":
                return model, pool.name
    raise AssertionError("no fleet model has cut cards")


@pytest.mark.parametrize("model", ["dgx-h100", "l40s", "gb200-nvl72", "v100-cube"])
def test_cards_are_told_with_uuid_number_model_memory_and_family(model):
    truth = built(model)
    told = describe_node("n", slice_of(truth).spec.devices)
    for mine, theirs in zip(told.status.gpus, truth.status.gpus, strict=True):
        same = ("uuid", "index", "model", "memoryMiB", "architecture", "computeCapability")
        assert {name: getattr(mine, name) for name in same} == {name: getattr(theirs, name) for name in same}


def test_what_no_attribute_tells_stays_unknown():
    (card, *_) = describe_node("n", slice_of(built()).spec.devices).status.gpus
    assert (card.nvlink, card.pcie, card.numaNode) == (None, None, None)
    assert card.health.state == HealthState.UNKNOWN


def test_slices_of_a_cut_card_are_told_with_their_places():
    truth = built(*mig_pool())
    told = describe_node("n", slice_of(truth).spec.devices)
    for mine, theirs in zip(told.status.gpus, truth.status.gpus, strict=True):
        assert mine.uuid == theirs.uuid
        assert mine.mig.enabled == theirs.mig.enabled
        places = [(each.uuid, each.profile, each.start, each.size, each.memoryMiB) for each in mine.mig.instances]
        assert places == [
            (each.uuid, each.profile, each.start, each.size, each.memoryMiB) for each in theirs.mig.instances
        ]


def test_a_tainted_device_is_out_of_service():
    body = resource_slices.build_manifest(built())
    body["spec"]["devices"][3]["taints"] = [{"key": "gpu.nvidia.com/unhealthy", "effect": "NoSchedule"}]
    told = describe_node("n", msgspec.convert(body, resources.RESOURCE_SLICE.type).spec.devices)
    assert [card.index for card in told.status.gpus if card.health.state == HealthState.UNHEALTHY] == [3]


def test_slices_of_an_older_generation_count_no_longer():
    gpu_node = built()
    known = DeviceSlices()
    old = slice_of(gpu_node)
    known.set_slice("a", old)
    newer = slice_of(gpu_node, 2, devices=resource_slices.build_manifest(gpu_node)["spec"]["devices"][:3])
    assert known.set_slice("b", newer) == {gpu_node.metadata.name}
    found = known.devices_on(gpu_node.metadata.name)
    assert found is not None
    assert len(found.uuids) == 3
    assert gpu_node.status.gpus[5].uuid not in found.uuids
    known.set_slice("b", None)
    known.set_slice("a", None)
    assert known.devices_on(gpu_node.metadata.name) is None


def test_a_device_that_is_no_longer_offered_keeps_its_name_for_those_who_have_it():
    gpu_node = built()
    known = DeviceSlices()
    known.set_slice("a", slice_of(gpu_node))
    known.set_slice("a", slice_of(built(faults=(XID_79,)), 2))
    assert known.find_device(gpu_node.metadata.name, "gpu-2") == (gpu_node.metadata.name, gpu_node.status.gpus[2].uuid)
    known.set_slice("a", None)
    assert known.find_device(gpu_node.metadata.name, "gpu-5") == (gpu_node.metadata.name, gpu_node.status.gpus[5].uuid)


def test_slices_of_other_drivers_are_nothing_to_us():
    known = DeviceSlices()
    assert known.set_slice("a", slice_of(built(), driver="cpu.example.com")) == frozenset()


# --- beside Node and GPUNode ----------------------------------------------------------------------------


def test_a_node_with_slices_alone_has_its_cards_for_those_who_claim():
    gpu_node = built()
    reader = FleetReader()
    name = gpu_node.metadata.name
    reader.set_node(name, bare(name))
    assert list(reader.nodes()) == []
    assert reader.set_slice("s", slice_of(gpu_node))
    (node,) = reader.nodes()
    assert (node.usable, node.shape.model, node.shape.architecture) == (0xFF, "NVIDIA H100 80GB HBM3", "Hopper")
    assert node.labels[CLAIMS_LABEL] == "true"
    assert not node.shape.wiring.switch_links, "the wiring is not known"
    assert not any(Toleration("other", "Exists").tolerates(taint) for taint in node.taints)
    assert all(Toleration(CLAIMS_LABEL, "Exists").tolerates(taint) for taint in node.taints)
    assert dict(reader.cards(name).uuids) == {card.index: card.uuid for card in gpu_node.status.gpus}
    assert reader.set_slice("s", None)
    assert list(reader.nodes()) == []


def test_a_gpunode_is_believed_about_the_cards_and_the_slices_about_what_can_be_claimed():
    gpu_node, broken = built(), built(faults=(XID_79,))
    reader = FleetReader()
    name = gpu_node.metadata.name
    reader.set_node(name, bare(name))
    reader.set_slice("s", slice_of(broken))
    reader.set_gpu_node(name, gpu_node)
    (node,) = reader.nodes()
    assert node.shape.wiring.switch_links, "as the agent says"
    assert node.usable == 0xFF & ~(1 << 2), "the driver does not offer card 2"


def test_where_a_device_plugin_offers_the_cards_too_nobody_is_kept_away():
    gpu_node = built()
    reader = FleetReader()
    name = gpu_node.metadata.name
    reader.set_node(name, bare(name, **{amounts.GPU: "8"}))
    reader.set_gpu_node(name, gpu_node)
    (before,) = reader.nodes()
    reader.set_slice("s", slice_of(gpu_node))
    (node,) = reader.nodes()
    assert (node.taints, node.usable, node.shape) == (before.taints, before.usable, before.shape)
    assert node.labels == {**before.labels, CLAIMS_LABEL: "true"}


def test_slices_of_cut_cards_are_offered_to_those_who_claim():
    gpu_node = built(*mig_pool())
    reader = FleetReader()
    name = gpu_node.metadata.name
    reader.set_node(name, bare(name))
    reader.set_slice("s", slice_of(gpu_node))
    (node,) = reader.nodes()
    there = {device.index: len(device.mig.instances) for device in gpu_node.status.gpus if device.mig.enabled}
    assert {card: len(parts) for card, parts in node.cut.items()} == there
