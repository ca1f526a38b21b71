"""Machines from files: drawn, as fleet models, and as what the driver does not tell."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ET

import pytest
from tests.support.machines import reference

from kgwe import errors
from kgwe.model.gpu import catalog, drawing, driver_data, fallback_wiring, machine_text
from kgwe.model.gpu.driver_data import Remote
from kgwe.model.gpu.pcie_tree import pcie_paths
from kgwe.model.gpu.topology import Relation, Slot, path_between
from kgwe.model.simfleet import model_file, suggestion

PAIRS = (
    "\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\n"
    "GPU0\t X \tPIX\tNODE\tSYS\tPIX\t0-3\t0\n"
    "GPU1\tPIX\t X \tNODE\tSYS\tPIX\t0-3\t0\n"
    "GPU2\tNODE\tNODE\t X \tSYS\tNODE\t0-3\t0\n"
    "GPU3\tSYS\tSYS\tSYS\t X \tSYS\t4-7\t1\n"
    "NIC0\tPIX\tPIX\tNODE\tSYS\t X \n"
    "\nNIC Legend:\n\n  NIC0: mlx5_0\n"
)
XML = """<system>
  <cpu numaid="0" affinity="0f">
    <pci busid="ffff:ff:01.0" class="0x060400">
      <pci busid="0000:10:1c.0" class="0x030200"><gpu dev="0" sm="80">
        <nvlink target="0000:20:1c.0" count="4" tclass="0x030200"/></gpu></pci>
      <pci busid="0000:20:1c.0" class="0x030200"><gpu dev="1" sm="80">
        <nvlink target="0000:10:1c.0" count="4" tclass="0x030200"/></gpu></pci>
    </pci>
  </cpu>
</system>
"""


def read_model(text: str) -> model_file.Fleet:
    return model_file.parse(text, where="suggested", include=str)


def machine_of(count: int, *, buses: bool = True) -> driver_data.Machine:
    cards = tuple(
        driver_data.Device(
            f"GPU-{number}", number, "NVIDIA A100-SXM4-80GB", 81920,
            Slot(f"00000000:{16 * (number + 1):02X}:1C.0" if buses else ""),
        )
        for number in range(count)
    )  # fmt: skip
    return driver_data.Machine("580.95.05", "13.0", cards)


@pytest.mark.parametrize("name", reference.NAMES)
def test_every_known_machine_can_be_drawn_and_becomes_a_fleet_model(name):
    entry = reference.machine(name)
    wiring = machine_text.parse_machine(reference.topo_text(entry, "\t"), model=reference.model(entry))
    text = drawing.to_text(wiring)
    assert all(f"GPU{number}" in text for number in range(len(wiring.slots)))
    picture = ET.fromstring(drawing.to_svg(wiring, "<machine>"))  # noqa: S314 -- our own
    circles = picture.findall("{http://www.w3.org/2000/svg}circle")
    assert len(circles) == len(wiring.slots)

    fleet = read_model(suggestion.to_yaml(wiring, name=name, gpu=reference.model(entry)))
    modelled = fleet.pools[0].machine.wiring
    cards = range(len(wiring.slots))
    assert [[modelled.nvlinks(a, b) for b in cards] for a in cards] == [
        [wiring.nvlinks(a, b) for b in cards] for a in cards
    ]
    for a in cards:
        for b in cards:
            if wiring.relation(a, b) not in (Relation.NVLINK, Relation.UNKNOWN):
                assert modelled.relation(a, b) == wiring.relation(a, b), (a, b)


def test_paths_are_found_from_relations():
    wiring = machine_text.parse_machine(PAIRS)
    gpus, nics = pcie_paths(wiring)
    assert gpus[0] == gpus[1] == nics[0]
    numa = [0, 0, 0, 1]
    found = [[path_between(gpus[a], numa[a], gpus[b], numa[b]) for b in range(4) if b != a] for a in range(4)]
    assert found == [[wiring.relation(a, b) for b in range(4) if b != a] for a in range(4)]


def test_a_machine_without_nvlink_is_drawn_with_its_network_card():
    text = drawing.to_text(machine_text.parse_machine(PAIRS))
    assert "NUMA node 0, CPUs 0-3" in text
    assert "rc0 / sw0: GPU0, GPU1, mlx5_0" in text
    assert "NVLink: none is known" in text


def test_the_gpu_of_a_model_is_guessed_from_its_links():
    assert suggestion.guess_gpu(machine_text.parse_machine(XML)).name == "A100-SXM4-80GB"
    assert suggestion.guess_gpu(machine_text.parse_machine(PAIRS)).name == "L40S"
    assert "a guess" in suggestion.to_yaml(machine_text.parse_machine(PAIRS), name="Mine Own!")
    assert read_model(suggestion.to_yaml(machine_text.parse_machine(PAIRS), name="Mine Own!")).name == "mine-own"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<system>\n<cpu>\n</system>", "NCCL topology, line 3"),
        (PAIRS.replace("GPU2\tNODE\tNODE", "GPU2\tNODE\tFAST"), "nvidia-smi topo -m, line 3"),
        ("hello", "no table of `nvidia-smi topo -m`"),
    ],
)
def test_errors_name_the_line(text, said):
    with pytest.raises(errors.Permanent, match=said):
        machine_text.parse_machine(text)


# --- fallback of discovery ------------------------------------------------------------------------------


def test_the_file_tells_what_the_driver_does_not():
    told = fallback_wiring.complete_wiring(machine_of(2), machine_text.parse_machine(XML))
    assert [card.slot.numa for card in told.devices] == [0, 0]
    assert [card.slot.cpus for card in told.devices] == ["0-3", "0-3"]
    assert told.devices[0].slot.pcie == told.devices[1].slot.pcie == ("rc0", "sw0")
    assert [len(card.links) for card in told.devices] == [4, 4]
    assert {link.remote for link in told.devices[0].links} == {Remote.GPU}
    assert {link.remote_bus for link in told.devices[0].links} == {"00000000:20:1C.0"}


def test_what_the_driver_says_is_not_changed():
    machine = machine_of(2)
    link = driver_data.Link(0, is_up=False, version=3, remote=Remote.SWITCH)
    first = dataclasses.replace(machine.devices[0], slot=Slot("00000000:10:1C.0", 7, "9", ("a", "b")), links=(link,))
    machine = dataclasses.replace(machine, devices=(first, machine.devices[1]))
    told = fallback_wiring.complete_wiring(machine, machine_text.parse_machine(XML))
    assert told.devices[0] == first
    assert told.devices[1].slot.numa == 0


def test_a_switch_and_direct_links_are_told_by_index_where_there_are_no_buses():
    text = "\tGPU0\tGPU1\nGPU0\tX\tNV4\nGPU1\tNV4\tX\n"
    described = machine_text.parse_machine(text, model=catalog.find_model("A100-SXM4-80GB"))
    told = fallback_wiring.complete_wiring(machine_of(2), described)
    assert {link.remote_bus for link in told.devices[1].links} == {"00000000:10:1C.0"}
    eight = "\t" + "\t".join(f"GPU{n}" for n in range(4)) + "\n"
    eight += "".join(f"GPU{a}\t" + "\t".join("X" if a == b else "NV12" for b in range(4)) + "\n" for a in range(4))
    switched = fallback_wiring.complete_wiring(
        machine_of(4), machine_text.parse_machine(eight, model=catalog.find_model("A100-SXM4-80GB"))
    )
    assert {link.remote for card in switched.devices for link in card.links} == {Remote.SWITCH}
    assert {len(card.links) for card in switched.devices} == {12}


def test_the_file_of_another_machine_is_refused():
    with pytest.raises(errors.Permanent, match="describes 2 GPUs, the driver sees 3"):
        fallback_wiring.complete_wiring(machine_of(3), machine_text.parse_machine(XML))
    other = XML.replace("0000:10:1c.0", "0000:11:1c.0")
    with pytest.raises(errors.Permanent, match=r"no GPU at 00000000:10:1C\.0"):
        fallback_wiring.complete_wiring(machine_of(2), machine_text.parse_machine(other))
