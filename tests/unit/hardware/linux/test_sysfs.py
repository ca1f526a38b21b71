"""Places in the PCIe tree, from trees as Linux shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgwe.hardware.linux import sysfs
from kgwe.model.gpu.topology import Nic

if TYPE_CHECKING:
    from pathlib import Path


def add(root: Path, path: str, **facts: str) -> Path:
    folder = root / "devices" / path
    folder.mkdir(parents=True)
    for name, value in facts.items():
        (folder / name).write_text(f"{value}\n")
    devices = root / "bus/pci/devices"
    devices.mkdir(parents=True, exist_ok=True)
    (devices / folder.name).symlink_to(folder)
    return folder


def add_nic(device: Path, root: Path, name: str, rate: str) -> None:
    folder = device / "infiniband" / name
    (folder / "ports/1").mkdir(parents=True)
    (folder / "ports/1/rate").write_text(rate)
    (folder / "device").symlink_to(device)
    (root / "class/infiniband").mkdir(parents=True, exist_ok=True)
    (root / "class/infiniband" / name).symlink_to(folder)


def test_a_card_behind_a_switch(tmp_path: Path) -> None:
    add(tmp_path, "pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:00.0/0000:1a:00.0")
    assert sysfs.device_path(tmp_path, "00000000:1A:00.0") == ("pci0000:17", "0000:18:00.0")


def test_cards_of_one_switch_share_it_and_not_its_ports(tmp_path: Path) -> None:
    for port, card in (("19:00.0", "1a:00.0"), ("19:01.0", "1b:00.0")):
        add(tmp_path, f"pci0000:17/0000:17:01.0/0000:18:00.0/0000:{port}/0000:{card}")
    assert sysfs.device_path(tmp_path, "0000:1a:00.0") == sysfs.device_path(tmp_path, "0000:1b:00.0")


def test_a_switch_below_a_switch(tmp_path: Path) -> None:
    add(tmp_path, "pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:00.0/0000:1a:00.0/0000:1b:04.0/0000:1c:00.0")
    assert sysfs.device_path(tmp_path, "0000:1c:00.0") == ("pci0000:17", "0000:18:00.0", "0000:1a:00.0")


def test_a_card_on_a_root_port_and_one_of_a_virtual_machine(tmp_path: Path) -> None:
    add(tmp_path, "pci0008:00/0008:00:00.0/0008:01:00.0")
    add(tmp_path, "pci0000:00/0000:00:1e.0")
    assert sysfs.device_path(tmp_path, "00000008:01:00.0") == ("pci0008:00",)
    assert sysfs.device_path(tmp_path, "00000000:00:1E.0") == ("pci0000:00",)


def test_numa_and_cpus(tmp_path: Path) -> None:
    add(tmp_path, "pci0000:17/0000:1a:00.0", numa_node="1", local_cpulist="56-111,168-223")
    add(tmp_path, "pci0000:17/0000:1b:00.0", numa_node="-1", local_cpulist="0-3")
    assert sysfs.read_numa_node(tmp_path, "00000000:1A:00.0") == 1
    assert sysfs.read_cpus(tmp_path, "00000000:1A:00.0") == "56-111,168-223"
    assert sysfs.read_numa_node(tmp_path, "00000000:1B:00.0") is None


def test_network_cards_in_their_order_without_virtual_ones(tmp_path: Path) -> None:
    for number, name in enumerate(("mlx5_10", "mlx5_9", "mlx5_2")):
        device = add(tmp_path, f"pci0000:17/0000:17:01.0/0000:{number:02}:00.0", numa_node="0")
        add_nic(device, tmp_path, name, "400 Gb/sec (4X NDR)\n")
    virtual = add(tmp_path, "pci0000:17/0000:17:01.0/0000:04:00.1")
    (virtual / "physfn").symlink_to("../0000:02:00.0")
    add_nic(virtual, tmp_path, "mlx5_3", "400 Gb/sec (4X NDR)\n")
    path = ("pci0000:17",)
    assert sysfs.list_nics(tmp_path) == tuple(Nic(name, 400, 0, path) for name in ("mlx5_2", "mlx5_9", "mlx5_10"))


def test_what_is_not_there_is_not_known(tmp_path: Path) -> None:
    assert sysfs.device_path(tmp_path, "00000000:1A:00.0") == ()
    assert sysfs.read_numa_node(tmp_path, "") is None
    assert sysfs.read_cpus(tmp_path, "nonsense") == ""
    assert sysfs.read_class(tmp_path, "00000000:1A:00.0") is None
    assert sysfs.list_nics(tmp_path) == ()
