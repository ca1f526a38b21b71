"""Read NCCL's description of a machine: NCCL_TOPO_FILE as clouds ship it, or NCCL_TOPO_DUMP_FILE as NCCL writes it.

    <system>
      <cpu numaid="0" affinity="0000ffff">
        <pci busid="ffff:ff:01.0" class="0x060400">                     a PCIe switch
          <pci busid="0000:10:1c.0" class="0x030200" link_speed="8 GT/s" link_width="16">
            <gpu dev="0" sm="80"><nvlink target="0000:20:1c.0" count="4" tclass="0x030200"/></gpu>
          </pci>
          <pci busid="0000:10:1b.0" class="0x020000"><nic><net name="mlx5_0" speed="100000"/></nic></pci>
        </pci>
      </cpu>
    </system>

GPUs are numbered as `dev` says, where it does, else in the order of the file. NCCL merges all host bridges of a
NUMA node, so devices there that share no switch count as NODE, the worse of the two things it can mean. A file
for NCCL_TOPO_FILE usually leaves NVLink to be discovered: then no NVLink is known here either, and NVLinks that
lead from a GPU to itself (as in Azure's NCv4 file) join nothing.
"""

from __future__ import annotations

import re
import xml.parsers.expat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.model.gpu.topology import MAX_DEVICES, Nic, Slot, Wiring

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kgwe.model.gpu.topology import PciePath

_GPU_CLASSES: Final = ("0x0302", "0x0300")
_NIC_CLASSES: Final = ("0x0200", "0x0207")
_SWITCH_CLASS: Final = "0x0680"
_BUS: Final = re.compile(r"([0-9a-fA-F]{4}|[0-9a-fA-F]{8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")
_SPEED: Final = re.compile(r"(\d+(?:\.\d+)?) GT/s", re.ASCII)
_CPU_MASK: Final = re.compile(r"(0[xX])?[0-9a-fA-F]{1,4096}")

# Compute capability (times ten) from which on GPUs have this generation of NVLink.
_NVLINK_VERSION: Final = ((100, 5), (90, 4), (80, 3), (70, 2), (60, 1))
# GeForce-class Ampere, A40 and A10: links of NVLink 3 at 14.06 GB/s instead of 25.
_SM_OF_SLOW_LINKS: Final = 86
_SLOW_LINK_GB_PER_S: Final = 14.0625

# Bytes per transfer and lane: 128 of 130 bits carry data from PCIe 3 on, 8 of 10 before.
_PCIE3_GT_PER_S: Final = 8.0
_PCIE3_YIELD: Final = 128 / 130 / 8
_PCIE1_YIELD: Final = 0.8 / 8

_MBIT_PER_GBIT: Final = 1000
_MOST_DEPTH: Final = 64
_MOST_ELEMENTS: Final = 1 << 16


@dataclass
class _Element:
    tag: str
    attributes: dict[str, str]
    line: int
    children: list[_Element] = field(default_factory=list)

    def find_all(self, tag: str) -> Iterator[_Element]:
        """Elements of this name below, but not inside a further PCI device."""
        for child in self.children:
            if child.tag == tag:
                yield child
            if child.tag != "pci":
                yield from child.find_all(tag)

    def integer(self, name: str, default: int) -> int:
        """An attribute as a number, never below its default."""
        text = self.attributes.get(name, "")
        if not text:
            return default
        try:
            number = int(text, 0) if text.isascii() else default - 1
        except ValueError:
            number = default - 1
        if number < default:
            raise _syntax_error(self.line, f"{self.tag} {name}={text!r} is not a number from {default} up")
        return number


@dataclass(frozen=True)
class _Device:
    element: _Element
    numa: int | None
    cpus: str
    pcie: PciePath

    @property
    def bus(self) -> str:
        return _long_bus(self.element)


def parse_nccl_xml(text: str) -> Wiring:
    """The wiring that an NCCL topology file describes."""
    root = _tree(text)
    if root.tag != "system":
        raise _syntax_error(root.line, f"the file begins with <{root.tag}>, an NCCL topology with <system>")
    devices = list(_devices(root))
    gpus = _gpus(devices)
    switch, down, mesh = _nvlinks(gpus)
    sm = min((gpu.integer("sm", 0) for device in gpus for gpu in device.element.find_all("gpu")), default=0)
    linked = bool(switch or mesh)
    return Wiring(
        slots=tuple(Slot(device.bus, device.numa, device.cpus, device.pcie) for device in gpus),
        nvlink_version=next((version for least, version in _NVLINK_VERSION if sm >= least), 0) if linked else 0,
        switch_links=switch,
        mesh=mesh,
        nics=tuple(_nics(devices)),
        links_down=down,
        link_gb_per_s=_SLOW_LINK_GB_PER_S if linked and sm == _SM_OF_SLOW_LINKS else 0.0,
        pcie_gb_per_s=_slot_gb_per_s(gpus),
    )


# --- XML ------------------------------------------------------------------------------------------------


def _tree(text: str) -> _Element:
    """The elements with the lines they begin on; document types, which can make a small file explode, are refused."""
    top = _Element("", {}, 0)
    stack = [top]
    elements = 0
    parser = xml.parsers.expat.ParserCreate()

    def start(tag: str, attributes: dict[str, str]) -> None:
        if len(stack) > _MOST_DEPTH:
            raise _syntax_error(parser.CurrentLineNumber, f"more than {_MOST_DEPTH} elements inside each other")
        nonlocal elements
        elements += 1
        if elements > _MOST_ELEMENTS:
            raise _syntax_error(parser.CurrentLineNumber, f"more than {_MOST_ELEMENTS} elements")
        element = _Element(tag, attributes, parser.CurrentLineNumber)
        stack[-1].children.append(element)
        stack.append(element)

    def doctype(*_: object) -> None:
        raise _syntax_error(parser.CurrentLineNumber, "a document type has no place in an NCCL topology; remove it")

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: stack.pop()
    parser.StartDoctypeDeclHandler = doctype
    try:
        parser.Parse(text, True)  # noqa: FBT003 - expat takes it by position
    except xml.parsers.expat.ExpatError as exc:
        raise _syntax_error(exc.lineno, xml.parsers.expat.errors.messages[exc.code]) from exc
    return top.children[0]


# --- devices --------------------------------------------------------------------------------------------


def _devices(root: _Element) -> Iterator[_Device]:
    """Every PCI device and every NIC without one, with its place."""
    for cpu in root.children:
        if cpu.tag != "cpu":
            continue
        number = cpu.integer("numaid", -1)
        cpus = _cpu_list(cpu)
        for child in cpu.children:
            yield from _walk(child, None if number < 0 else number, cpus, ())


def _walk(element: _Element, numa: int | None, cpus: str, path: PciePath) -> Iterator[_Device]:
    if element.tag != "pci":
        yield _Device(element, numa, cpus, path)
        return
    if all(child.tag != "pci" for child in element.children):
        # A device of its own below the CPU: its host bridge has no name, so it goes by the device's.
        yield _Device(element, numa, cpus, path or (f"bridge-{_long_bus(element)}",))
        return
    name = _long_bus(element)
    here = (*path, name) if path else (f"bridge-{name}", name)
    for child in element.children:
        yield from _walk(child, numa, cpus, here)


def _gpus(devices: Sequence[_Device]) -> list[_Device]:
    found = [device for device in devices if _is_gpu(device.element)]
    if not found:
        raise errors.Permanent(
            "NCCL topology: no GPU in the file (some clouds' files list switches and NICs only);"
            " dump a whole one on the machine with NCCL_TOPO_DUMP_FILE"
        )
    if len(devices) > MAX_DEVICES:
        raise errors.Permanent(
            f"NCCL topology: {len(devices)} devices in one machine; at most {MAX_DEVICES} are allowed"
        )
    buses = [device.bus for device in found]
    for device in found:
        if buses.count(device.bus) > 1:
            raise _syntax_error(device.element.line, f"two devices at {device.bus}")
    numbers = [next((gpu.integer("dev", -1) for gpu in device.element.find_all("gpu")), -1) for device in found]
    if min(numbers) >= 0 and len(set(numbers)) == len(numbers):
        return [device for _, device in sorted(zip(numbers, found, strict=True), key=lambda pair: pair[0])]
    return found


def _is_gpu(element: _Element) -> bool:
    return element.tag == "pci" and (
        element.attributes.get("class", "").startswith(_GPU_CLASSES) or any(element.find_all("gpu"))
    )


def _nics(devices: Sequence[_Device]) -> Iterator[Nic]:
    for device in devices:
        element = device.element
        nets = [element] if element.tag == "net" else list(element.find_all("net"))
        for net in nets:
            gbit = net.integer("speed", 0) // _MBIT_PER_GBIT
            yield Nic(net.attributes.get("name", ""), gbit, device.numa, device.pcie)
        if not nets and element.tag == "pci" and element.attributes.get("class", "").startswith(_NIC_CLASSES):
            yield Nic(device.bus, 0, device.numa, device.pcie)


def _nvlinks(gpus: Sequence[_Device]) -> tuple[int, tuple[int, ...], tuple[tuple[int, int, int], ...]]:
    """(links into the NVSwitch, how many of them each GPU lacks, direct links)."""
    index = {gpu.bus: i for i, gpu in enumerate(gpus)}
    up = [_links_into_switch(gpu.element) for gpu in gpus]
    direct: dict[tuple[int, int], int] = {}
    for a, gpu in enumerate(gpus):
        for link in gpu.element.find_all("nvlink"):
            if not _leads_to_switch(link) and (b := index.get(_long_bus(link, "target"))) is not None and b != a:
                pair = (min(a, b), max(a, b))
                direct[pair] = max(direct.get(pair, 0), link.integer("count", 0))
    if any(up):
        down = tuple(max(up) - own for own in up)
        return max(up), down if any(down) else (), ()
    return 0, (), tuple((a, b, count) for (a, b), count in sorted(direct.items()) if count)


def _links_into_switch(device: _Element) -> int:
    """NVLinks of one GPU into the switch.

    A GPU that several ranks use has one `<gpu>` per rank, and each lists the same links: they count once.
    """
    listed = [sum(_switch_links(gpu)) for gpu in device.find_all("gpu")]
    return max(listed, default=0) or sum(_switch_links(device))


def _switch_links(element: _Element) -> Iterator[int]:
    return (link.integer("count", 0) for link in element.find_all("nvlink") if _leads_to_switch(link))


def _leads_to_switch(link: _Element) -> bool:
    return link.attributes.get("tclass", "").startswith(_SWITCH_CLASS)


def _slot_gb_per_s(gpus: Sequence[_Device]) -> float:
    """The slowest GPU's slot; 0 when one of them is not known."""
    rates = []
    for gpu in gpus:
        speed = _SPEED.match(gpu.element.attributes.get("link_speed", ""))
        rate = float(speed[1]) if speed else 0.0
        width = gpu.element.integer("link_width", 0)
        rates.append(rate * width * (_PCIE3_YIELD if rate >= _PCIE3_GT_PER_S else _PCIE1_YIELD))
    return min(rates)


# --- texts ----------------------------------------------------------------------------------------------


def _long_bus(element: _Element, name: str = "busid") -> str:
    """`0000:1b:00.0` as the driver prints it: `00000000:1B:00.0`."""
    text = element.attributes.get(name, "")
    match = _BUS.fullmatch(text)
    if match is None:
        raise _syntax_error(element.line, f"{element.tag} {name}={text!r} is not a bus id such as 0000:1b:00.0")
    return f"{match[1]:0>8}:{match[2]}:{match[3]}.{match[4]}".upper()


def _cpu_list(cpu: _Element) -> str:
    """`00000000,0000ff0f` as `0-3,8-15`."""
    text = cpu.attributes.get("affinity", "").replace(",", "")
    if not text:
        return ""
    if not _CPU_MASK.fullmatch(text):
        raise _syntax_error(cpu.line, f"cpu affinity={text[:64]!r} is not a hexadecimal mask")
    bits = int(text, 16)
    ranges: list[str] = []
    position = 0
    while bits:
        skip = (bits & -bits).bit_length() - 1
        bits >>= skip
        position += skip
        run = (~bits & bits + 1).bit_length() - 1
        ranges.append(str(position) if run == 1 else f"{position}-{position + run - 1}")
        bits >>= run
        position += run
    return ",".join(ranges)


def _syntax_error(line: int, what: str) -> errors.Permanent:
    return errors.Permanent(f"NCCL topology, line {line}: {what}")
