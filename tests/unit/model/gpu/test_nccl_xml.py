"""Reading NCCL topology files, shipped and dumped."""

from __future__ import annotations

import re

import pytest
from tests.support.machines import reference

from kgwe import errors
from kgwe.model.gpu import bandwidth, nccl_xml
from kgwe.model.gpu.topology import Relation

GPU = '<pci busid="0000:{bus}:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">{inside}</pci>'


def card(bus: str, dev: int, *links: tuple[str, int, str], sm: int = 80) -> str:
    inside = "".join(f'<nvlink target="{target}" count="{count}" tclass="{kind}"/>' for target, count, kind in links)
    return GPU.format(bus=bus, inside=f'<gpu dev="{dev}" sm="{sm}" rank="{dev}">{inside}</gpu>')


def system(*cpus: str) -> str:
    inside = [f'<cpu numaid="{i}" affinity="0000000f,f0000000">{text}</cpu>' for i, text in enumerate(cpus)]
    return '<?xml version="1.0"?>\n<system version="1">\n' + "\n".join(inside) + "\n</system>"


def test_the_p4d_file_shows_pairs_of_cards_with_a_network_card_each():
    wiring = nccl_xml.parse_nccl_xml(reference.reference("topology", "nccl-xml", "aws-p4d-24xl-topo.xml").read_text())
    assert len(wiring.slots) == 8
    assert wiring.slots[0].bus == "00000000:10:1C.0"
    assert [slot.cpus for slot in wiring.slots] == ["0-23,48-71"] * 4 + ["24-47,72-95"] * 4
    assert wiring.matrix()[0] == ["X", "PIX", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS"]
    assert [bandwidth.find_nearest_nics(wiring, card) for card in range(8)] == [
        (0,),
        (0,),
        (1,),
        (1,),
        (2,),
        (2,),
        (3,),
        (3,),
    ]
    assert wiring.pcie_gb_per_s == pytest.approx(15.75, abs=0.01)


def test_the_ndv5_file_gives_every_card_a_network_card_of_its_own():
    wiring = nccl_xml.parse_nccl_xml(reference.reference("topology", "nccl-xml", "azure-ndv5-topo.xml").read_text())
    assert [bandwidth.find_nearest_nics(wiring, card) for card in range(8)] == [(i,) for i in range(8)]
    assert [slot.numa for slot in wiring.slots] == [0] * 4 + [1] * 4
    assert wiring.pcie_gb_per_s == pytest.approx(63, abs=0.1)


def test_nvlinks_from_a_card_to_itself_join_nothing():
    wiring = nccl_xml.parse_nccl_xml(reference.reference("topology", "nccl-xml", "azure-ncv4-topo.xml").read_text())
    assert [slot.numa for slot in wiring.slots] == [0, 1, 2, 3]
    assert wiring.matrix()[0] == ["X", "SYS", "SYS", "SYS"]
    assert [(nic.name, nic.gbit_per_s) for nic in wiring.nics] == [("eth0", 100)]
    assert wiring.pcie_gb_per_s == 0


def test_a_file_without_gpus_is_refused_with_the_way_out():
    text = reference.reference("topology", "nccl-xml", "aws-p5.48xl-topo.xml").read_text()
    with pytest.raises(errors.Permanent, match=r"no GPU in the file.*NCCL_TOPO_DUMP_FILE"):
        nccl_xml.parse_nccl_xml(text)


def test_direct_links_and_their_generation_are_read():
    link = ("0000:20:00.0", 4, "0x030200")
    back = ("0000:10:00.0", 4, "0x030200")
    wiring = nccl_xml.parse_nccl_xml(system(card("10", 0, link) + card("20", 1, back)))
    assert wiring.mesh == ((0, 1, 4),)
    assert wiring.nvlink_version == 3
    assert wiring.slots[0].cpus == "28-35"
    slow = nccl_xml.parse_nccl_xml(system(card("10", 0, link, sm=86) + card("20", 1, back, sm=86)))
    assert bandwidth.pair_gb_per_s(slow, 0, 1) == 112.5


def test_links_into_a_switch_reach_everyone():
    def into(count: int) -> tuple[str, int, str]:
        return ("0000:d0:00.0", count, "0x068000")

    wiring = nccl_xml.parse_nccl_xml(system(card("10", 0, into(18), sm=90), card("20", 1, into(16), sm=90)))
    assert wiring.switch_links == 18
    assert wiring.links_down == (0, 2)
    assert wiring.nvlink_version == 4


def test_cards_are_numbered_as_cuda_does():
    wiring = nccl_xml.parse_nccl_xml(system(card("10", 1) + card("20", 0)))
    assert [slot.bus for slot in wiring.slots] == ["00000000:20:00.0", "00000000:10:00.0"]


def test_switches_below_switches_are_told_from_one_switch():
    inner = '<pci busid="0000:{0}:00.0" class="0x060400">{1}</pci>'
    left = inner.format("02", card("10", 0) + card("11", 1))
    right = inner.format("03", card("12", 2) + '<pci busid="0000:13:00.0" class="0x020700"/>')
    wiring = nccl_xml.parse_nccl_xml(system(inner.format("01", left + right), card("20", 3)))
    assert wiring.matrix()[0] == ["X", "PIX", "PXB", "SYS"]
    assert [wiring.nic_relation(0, i) for i in range(4)] == [Relation.PXB, Relation.PXB, Relation.PIX, Relation.SYS]


def test_a_numa_node_that_is_not_known_stays_so():
    wiring = nccl_xml.parse_nccl_xml(f'<system><cpu numaid="-1">{card("10", 0)}{card("20", 1)}</cpu></system>')
    assert wiring.relation(0, 1) is Relation.UNKNOWN


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: no element found"),
        ("GPU0 GPU1", "line 1: syntax error"),
        ("<system>\n<cpu>\n</system>", "line 3: mismatched tag"),
        ("<topology/>", "line 1: the file begins with <topology>"),
        ("<system/>", "no GPU in the file"),
        (system(card("zz", 0)), "line 3: pci busid='0000:zz:00.0' is not a bus id"),
        (system(card("10", 0), card("10", 1)), "line 3: two devices at 00000000:10:00.0"),
        (system(card("10", 0)).replace('sm="80"', 'sm="new"'), "line 3: gpu sm='new' is not a number"),
        (
            system(card("10", 0)).replace('link_width="16"', 'link_width="-4"'),
            "pci link_width='-4' is not a number from 0",
        ),
        (system(card("10", 0)).replace("0000000f,", "xyz,"), "line 3: cpu affinity='xyzf0000000'"),
        (
            system(card("10", 0)).replace('sm="80"', 'sm="\u0668\u0660"'),
            "line 3: gpu sm='\u0668\u0660' is not a number",
        ),
        (system(card("10", 0)).replace("0000000f,", "\u0663,"), "line 3: cpu affinity='\u0663f0000000'"),
        (system(card("10", 0)).replace("0000000f,", "a5" * 5000), "is not a hexadecimal mask"),
        (system(card("10", 0) + "<net/>" * 577), "578 devices in one machine; at most 576 are allowed"),
        ("<system>" + "<a/>" * 70_000 + "</system>", "more than 65536 elements"),
        ('<!DOCTYPE a [<!ENTITY b "bb">]>\n<system>&b;</system>', "line 1: a document type has no place"),
        ("<system>" + "<cpu>" * 100 + "</cpu>" * 100 + "</system>", "more than 64 elements inside each other"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(text, message):
    with pytest.raises(errors.Permanent, match=re.escape(message)):
        nccl_xml.parse_nccl_xml(text)


def test_a_gpu_with_an_element_per_rank_has_its_links_once():
    links = [("0000:d0:00.0", 9, "0x068000"), ("0000:d1:00.0", 9, "0x068000")]
    once = system(card("10", 0, *links, sm=90), card("20", 1, *links, sm=90))
    start, end = once.index("<gpu"), once.index("</gpu>") + len("</gpu>")
    ranks = once[:end] + once[start:end] + once[end:]
    assert ranks.count("<gpu") == 3
    assert nccl_xml.parse_nccl_xml(once).switch_links == 18
    assert nccl_xml.parse_nccl_xml(ranks) == nccl_xml.parse_nccl_xml(once)
