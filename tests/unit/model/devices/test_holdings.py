"""What pods hold, in numbers, and where it is not what was planned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kgwe.model.devices import holdings
from kgwe.model.devices.assignment import DeviceSet
from kgwe.model.devices.holdings import ClaimDevice, ContainerDevices, DeviceNames, Holdings, PodDevices
from kgwe.model.gpu.driver_data import Device, Instance, Machine, MigState
from kgwe.model.gpu.topology import Slot

NAMES = DeviceNames({"GPU-0": 0, "GPU-1": 1, "GPU-2": 2}, {"MIG-a": (2, 0), "MIG-b": (2, 4)})


def pod(*ids: str, resource: str = "nvidia.com/gpu", claims: tuple[ClaimDevice, ...] = ()) -> PodDevices:
    return PodDevices("team", "a", (ContainerDevices("main", ((resource, ids),), claims),))


def test_names_are_those_of_the_driver():
    cut = MigState(is_capable=True, is_enabled=True, instances=(Instance("MIG-a", 1, "3g.40gb", 4, 4, 40_000),))
    half_made = MigState(is_capable=True, is_enabled=True, instances=(Instance("", 1, "3g.40gb", 0, 4, 40_000),))
    machine = Machine(
        "",
        "",
        (Device("GPU-0", 0, "H100", 80_000, Slot(""), mig=cut), Device("GPU-1", 1, "H100", 1, Slot(""), mig=half_made)),
    )
    assert DeviceNames.from_machine(machine) == DeviceNames({"GPU-0": 0, "GPU-1": 1}, {"MIG-a": (0, 4)})


class TestTaken:
    def test_cards_and_slices_of_all_containers(self):
        both = PodDevices(
            "team",
            "a",
            (
                ContainerDevices("main", (("nvidia.com/gpu", ("GPU-0",)), ("nvidia.com/mig-3g.40gb", ("MIG-b",)))),
                ContainerDevices("side", (("nvidia.com/gpu", ("GPU-1",)),)),
            ),
        )
        assert holdings.read_holdings(both, NAMES) == Holdings(DeviceSet(0b11, ((2, 4),)))

    def test_replicas_are_shares(self):
        ids = ("GPU-1::3", "GPU-1::0")
        named = holdings.read_holdings(pod(*ids, resource="nvidia.com/gpu.shared"), NAMES)
        assert named == Holdings(DeviceSet(0b10), replicas=2)
        assert holdings.read_holdings(pod(*ids), NAMES) == replace(named, is_named=False), (
            "they go by the name of whole cards"
        )

    def test_an_id_nobody_knows_is_said(self):
        assert holdings.read_holdings(pod("GPU-9", "GPU-0"), NAMES) == Holdings(DeviceSet(0b1), strangers=("GPU-9",))

    def test_devices_of_claims_by_their_cdi_name_or_by_what_the_driver_calls_them(self):
        by_cdi = ClaimDevice("team/c", "gpu.nvidia.com", "n1", "gpu-0", ("k8s.gpu.nvidia.com/claim=GPU-2",))
        by_name = ClaimDevice("team/c", "gpu.nvidia.com", "n1", "gpu-1", ("k8s.gpu.nvidia.com/claim=x-gpu-1",))
        unknown = ClaimDevice("team/c", "nic.example", "n1", "nic-1")
        claimed = pod(claims=(by_cdi, by_name, unknown))
        assert holdings.read_holdings(claimed, NAMES, {"gpu-1": "GPU-1"}) == Holdings(DeviceSet(0b110))

    def test_names_of_nvidias_driver_tell_minor_number_and_place(self):
        names = DeviceNames(NAMES.gpus, NAMES.slices, {7: 1, 3: 2})
        devices = ("gpu-7", "gpu-3-mig-9-4-4", "gpu-3-mig-9-2-2", "gpu-0", "nonsense")
        claimed = pod(claims=tuple(ClaimDevice("team/c", "gpu.nvidia.com", "n1", each) for each in devices))
        assert holdings.read_holdings(claimed, names) == Holdings(DeviceSet(0b10, ((2, 4),)))
        others = pod(claims=(ClaimDevice("team/c", "gpu.example.com", "n1", "gpu-7"),))
        assert holdings.read_holdings(others, names) == Holdings()

    def test_other_plugins_are_left_out(self):
        mixed = PodDevices(
            "t", "a", (ContainerDevices("m", (("rdma/hca", ("mlx5_0",)), ("nvidia.com/gpu", ("GPU-0",)))),)
        )
        (only,) = holdings.filter_resources([mixed], ("nvidia.com/",))
        assert holdings.read_holdings(only, NAMES) == Holdings(DeviceSet(0b1))


@pytest.mark.parametrize(
    ("one", "other", "do"),
    [
        ("GPU-0", "GPU-0", True),
        ("GPU-0::1", "GPU-0::1", True),
        ("GPU-0", "GPU-0::1", True),
        ("GPU-0::0", "GPU-0::1", False),
        ("GPU-0", "GPU-1::0", False),
        ("MIG-a", "MIG-b", False),
    ],
)
def test_a_card_held_whole_and_its_pieces_clash(one, other, do):
    assert holdings.devices_conflict(one, other) == holdings.devices_conflict(other, one) == do


class TestDifferences:
    def test_none_where_pods_hold_what_was_planned(self):
        plans = {"t/a": DeviceSet(0b11), "t/b": DeviceSet(slices=((2, 4),))}
        truth = {
            "t/a": Holdings(DeviceSet(0b11)),
            "t/b": Holdings(DeviceSet(slices=((2, 4),))),
            "t/c": Holdings(DeviceSet(0b100)),
        }
        assert holdings.find_differences(plans, truth) == ()

    def test_a_pod_on_its_way_to_its_devices_does_not_differ(self):
        assert holdings.find_differences({"t/a": DeviceSet(0b11)}, {"t/a": Holdings(DeviceSet(0b10))}) == ()

    def test_other_cards_than_planned(self):
        (found,) = holdings.find_differences({"t/a": DeviceSet(0b11)}, {"t/a": Holdings(DeviceSet(0b110))})
        assert (found.pod, found.reason) == ("t/a", "OtherDevices")
        assert found.message == "planned GPU 0, GPU 1, holds GPU 1, GPU 2"

    def test_several_may_hold_pieces_of_a_card(self):
        truth = {name: Holdings(DeviceSet(0b10), replicas=1) for name in ("t/a", "t/b", "t/c")}
        assert holdings.find_differences({"t/a": DeviceSet(0b10), "t/b": DeviceSet(0b10)}, truth) == ()

    def test_a_piece_of_another_card_than_planned(self):
        truth = {"t/a": Holdings(DeviceSet(0b10), replicas=1), "t/b": Holdings(DeviceSet(0b10), replicas=1)}
        (found,) = holdings.find_differences({"t/a": DeviceSet(0b01), "t/b": DeviceSet(0b10)}, truth)
        assert (found.pod, found.reason, found.message) == ("t/a", "OtherDevices", "planned GPU 0, holds GPU 1")

    def test_a_device_two_pods_have(self):
        found = holdings.find_differences({}, {"t/a": Holdings(DeviceSet(0b10)), "t/b": Holdings(DeviceSet(0b11))})
        assert [(each.pod, each.reason) for each in found] == [("t/a", "HeldTwice"), ("t/b", "HeldTwice")]
        assert found[0].message == "GPU 1 is held by t/b too"

    def test_ids_nobody_knows(self):
        (found,) = holdings.find_differences({}, {"t/a": Holdings(strangers=("GPU-9",))})
        assert found.reason == "UnknownDevices"
