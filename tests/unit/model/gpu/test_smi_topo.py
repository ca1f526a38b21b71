"""Reading `nvidia-smi topo -m`, clean and mangled."""

from __future__ import annotations

import re

import pytest
from tests.support.machines import reference

from kgwe import errors
from kgwe.model.gpu import catalog, smi_topo
from kgwe.model.gpu.topology import Relation

SMALL = (
    "\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tNV4\tPIX\t0-23,48-71\t0\t\tN/A\n"
    "GPU1\tNV4\t X \tPIX\t24-47,72-95\t1\t\tN/A\n"
    "mlx5_0\tPIX\tPIX\t X \n"
    "\nLegend:\n\n  X    = Self\n"
)


@pytest.mark.parametrize("name", reference.NAMES)
@pytest.mark.parametrize("gap", ["\t", "    "], ids=["tabs", "spaces"])
def test_every_known_machine_is_read_back_as_it_was_printed(name, gap):
    entry = reference.machine(name)
    wiring = smi_topo.parse_smi_topology(reference.topo_text(entry, gap), model=reference.model(entry))
    assert wiring.matrix() == entry["link"]
    assert [slot.numa for slot in wiring.slots] == entry["numa_of_gpu"]
    assert [slot.cpus for slot in wiring.slots] == entry["cpu_affinity_of_gpu"]
    nics = {
        nic.name: [str(wiring.nic_relation(i, card)) for card in range(len(wiring.slots))]
        for i, nic in enumerate(wiring.nics)
    }
    assert nics == entry["nic_link"]


@pytest.mark.parametrize("name", reference.NAMES)
def test_a_switch_is_told_from_direct_links(name):
    entry = reference.machine(name)
    switched = {"A100": 12, "H100": 18, "B200": 18}
    links = next((count for word, count in switched.items() if word in entry["gpu"]), 0)
    assert smi_topo.parse_smi_topology(reference.topo_text(entry)).switch_links == links


def test_four_cards_that_could_all_be_wired_directly_are():
    rows = [["GPU0", "X", "NV4", "NV4", "NV4"]]
    rows += [[f"GPU{i}", *["X" if i == j else "NV4" for j in range(4)]] for i in range(1, 4)]
    text = "\n".join(["  GPU0 GPU1 GPU2 GPU3", *map(" ".join, rows)])
    wiring = smi_topo.parse_smi_topology(text)
    assert wiring.switch_links == 0
    assert wiring.peers(0) == {1: 4, 2: 4, 3: 4}
    assert wiring.slots[0].numa is None


def test_a_link_down_below_a_switch_is_one_cards_loss():
    cells = [["X" if i == j else "NV17" if 2 in (i, j) else "NV18" for j in range(4)] for i in range(4)]
    text = "\n".join(["\tGPU0\tGPU1\tGPU2\tGPU3", *[f"GPU{i}\t" + "\t".join(row) for i, row in enumerate(cells)]])
    wiring = smi_topo.parse_smi_topology(text)
    assert wiring.switch_links == 18
    assert wiring.links_down == (0, 0, 1, 0)
    assert wiring.matrix() == cells


def test_the_model_tells_the_generation():
    assert smi_topo.parse_smi_topology(SMALL, model=catalog.find_model("A30")).nvlink_version == 3
    assert smi_topo.parse_smi_topology(SMALL).nvlink_version == 0


def test_underlines_prompts_and_a_missing_legend_do_no_harm():
    text = "$ nvidia-smi topo -m\n\x1b[4m" + SMALL.replace("\nLegend:\n\n  X    = Self\n", "").replace("NV4", " NV4  ")
    text = text.replace("GPU NUMA ID\n", "GPU NUMA ID\x1b[0m\n")
    assert smi_topo.parse_smi_topology(text) == smi_topo.parse_smi_topology(SMALL)


def test_windows_line_ends_and_trailing_blanks_do_no_harm():
    assert smi_topo.parse_smi_topology(SMALL.replace("\n", "  \r\n")) == smi_topo.parse_smi_topology(SMALL)


def test_network_cards_get_their_names_from_the_legend():
    text = SMALL.replace("mlx5_0", "NIC0") + "\nNIC Legend:\n\n  NIC0: mlx5_bond_0\n"
    assert [nic.name for nic in smi_topo.parse_smi_topology(text).nics] == ["mlx5_bond_0"]


def test_two_cards_one_switch_from_one_network_card_share_the_switch():
    wiring = smi_topo.parse_smi_topology(SMALL)
    assert wiring.relation(0, 1) is Relation.NVLINK
    assert wiring.pcie_relation(0, 1) is Relation.PIX
    further = smi_topo.parse_smi_topology(SMALL.replace("NV4\t X \tPIX", "NV4\t X \tPXB"))
    assert further.pcie_relation(0, 1) is Relation.PXB
    assert smi_topo.parse_smi_topology(SMALL.replace("PIX", "NODE")).pcie_relation(0, 1) is Relation.SYS


def test_what_is_not_said_stays_unknown():
    text = "  GPU0 GPU1 CPU Affinity NUMA Affinity\nGPU0 X N/A N/A N/A\nGPU1 N/A X N/A 0-1\n"
    wiring = smi_topo.parse_smi_topology(text)
    assert wiring.relation(0, 1) is Relation.UNKNOWN
    assert [(slot.numa, slot.cpus) for slot in wiring.slots] == [(None, ""), (None, "")]


def test_old_drivers_say_soc_for_sys():
    assert smi_topo.parse_smi_topology("  GPU0 GPU1\nGPU0 X SOC\nGPU1 SOC X").relation(0, 1) is Relation.SYS


def test_one_card_is_a_machine_too():
    assert smi_topo.parse_smi_topology("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-7\t0\n").matrix() == [["X"]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no line begins with GPU0"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "no line begins with GPU0"),
        ("\x00\xff\n" * 5, "no line begins with GPU0"),
        (SMALL.replace("NV4", "NV" + "9" * 5000), "line 2: GPU0 to GPU1"),
        (SMALL.replace("NV4", "NVX"), "line 2: GPU0 to GPU1: 'NVX' is no kind of link"),
        (SMALL.replace("GPU1\tNV4\t X ", "GPU1\tNV2\t X "), "line 2: GPU0 to GPU1 is NV4, the other way round NV2"),
        (SMALL.replace("GPU1\tNV4\t X \tPIX\t24-47,72-95\t1\t\tN/A\n", ""), "line 1: no row for GPU1"),
        (SMALL.replace("GPU1\tNV4\t X \tPIX\t24-47,72-95\t1\t\tN/A", "GPU1\tNV4"), "line 3: GPU1 has 1 cells"),
        (SMALL.replace("24-47,72-95", "everywhere"), "line 3: GPU1: CPU Affinity 'everywhere'"),
        (SMALL.replace("\tGPU0\tGPU1\tmlx5_0", "\tGPU0\tGPU0\tmlx5_0"), "line 1: GPU0 stands twice"),
        (SMALL.replace("GPU1\tNV4\t X ", "GPU0\tNV4\t X "), "line 3: GPU0 has a second row"),
        (SMALL.replace("NV4", "NV\u0664"), "line 2: GPU0 to GPU1: 'NV\u0664' is no kind of link"),
        (SMALL.replace("GPU1", "GPU\u0661"), "line 1: 'GPU\u0661' is not the name of a GPU or NIC"),
        (SMALL.replace("24-47", "\u0662-47"), "line 3: GPU1: CPU Affinity '\u0662-47,72-95' is not a list"),
        ("\t".join(f"GPU{i}" for i in range(577)), "line 1: 577 GPUs and NICs in one machine; at most 576 are allowed"),
        (SMALL.replace(" X \tNV4", "PIX\tNV4"), "line 2: GPU0 to GPU0 is 'PIX'; X is for a GPU and itself"),
    ],
)
def test_a_bad_table_is_refused_with_its_line(text, message):
    with pytest.raises(errors.Permanent, match=re.escape(message)):
        smi_topo.parse_smi_topology(text)


@pytest.mark.parametrize(
    ("cells", "cpus", "numa"),
    [
        ("\t1\t\tN/A", "", 1),
        ("\t\t\tN/A", "", None),
        ("24-47\t\t\tN/A", "24-47", None),
        ("24-47\t1\t\t", "24-47", 1),
        ("24-47", "24-47", None),
    ],
    ids=["no CPUs", "neither", "no NUMA node", "no GPU NUMA ID", "nothing more"],
)
def test_an_empty_affinity_cell_does_not_shift_the_others(cells, cpus, numa):
    wiring = smi_topo.parse_smi_topology(SMALL.replace("24-47,72-95\t1\t\tN/A", cells))
    assert (wiring.slots[1].cpus, wiring.slots[1].numa) == (cpus, numa)
    assert (wiring.slots[0].cpus, wiring.slots[0].numa) == ("0-23,48-71", 0)


def test_without_tabs_a_row_with_an_empty_cell_tells_no_affinity():
    wiring = smi_topo.parse_smi_topology(SMALL.replace("24-47,72-95\t1\t\tN/A", "\t1\t\tN/A").expandtabs())
    assert (wiring.slots[1].cpus, wiring.slots[1].numa) == ("", None)
    assert (wiring.slots[0].cpus, wiring.slots[0].numa) == ("0-23,48-71", 0)
