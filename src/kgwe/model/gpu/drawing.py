"""Draws the wiring of a machine: as text for a terminal, and as SVG."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

from kgwe.model.gpu import bandwidth
from kgwe.model.gpu.pcie_tree import pcie_paths
from kgwe.model.gpu.topology import Relation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kgwe.model.gpu.topology import PciePath, Wiring

_UNKNOWN_NUMA: Final = "NUMA node not known"


def to_text(wiring: Wiring) -> str:
    """The PCIe tree by NUMA node, the NVLinks, the matrix, and what rings of all GPUs reach."""
    return "\n".join([*_tree(wiring), "", *_nvlink(wiring), "", *_matrix(wiring), "", *_rates(wiring)]) + "\n"


# --- text -----------------------------------------------------------------------------------------------


def _tree(wiring: Wiring) -> Iterable[str]:
    gpu_paths, nic_paths = pcie_paths(wiring)
    places: dict[str, dict[PciePath, list[str]]] = {}
    for number, (slot, path) in enumerate(zip(wiring.slots, gpu_paths, strict=True)):
        places.setdefault(_numa(slot.numa, slot.cpus), {}).setdefault(path, []).append(f"GPU{number}")
    titles = {slot.numa: _numa(slot.numa, slot.cpus) for slot in wiring.slots}
    by_path = {path: title for title, paths in places.items() for path in paths if path}
    for nic, path in zip(wiring.nics, nic_paths, strict=True):
        title = by_path.get(path) or titles.get(nic.numa) or _numa(nic.numa, "")
        rate = f" ({nic.gbit_per_s} Gbit/s)" if nic.gbit_per_s else ""
        places.setdefault(title, {}).setdefault(path, []).append(f"{nic.name}{rate}")
    for title in sorted(places, key=lambda each: (each == _UNKNOWN_NUMA, each)):
        yield title
        paths = places[title]
        for number, path in enumerate(paths):
            branch = "└─" if number == len(paths) - 1 else "├─"
            where = " / ".join(path) or "PCIe place not known"
            yield f"  {branch} {where}: {', '.join(paths[path])}"


def _numa(node: int | None, cpus: str) -> str:
    if node is None:
        return _UNKNOWN_NUMA
    return f"NUMA node {node}" + (f", CPUs {cpus}" if cpus else "")


def _nvlink(wiring: Wiring) -> Iterable[str]:
    version = f" {wiring.nvlink_version}" if wiring.nvlink_version else ""
    if wiring.switch_links:
        yield f"NVLink{version}: {wiring.switch_links} links from every GPU into an NVSwitch"
        for gpu, down in enumerate(wiring.links_down):
            if down:
                yield f"  GPU{gpu}: {down} of them are down"
    elif wiring.mesh:
        yield f"NVLink{version}: direct links"
        for a, b, links in wiring.mesh:
            yield f"  GPU{a} ═{links}═ GPU{b}"
    else:
        yield "NVLink: none is known"


def _matrix(wiring: Wiring) -> Iterable[str]:
    rows = wiring.matrix()
    names = [f"GPU{number}" for number in range(len(rows))]
    width = max(len(text) for text in itertools.chain(names, *rows)) + 2
    yield " " * width + "".join(f"{name:<{width}}" for name in names).rstrip()
    for name, row in zip(names, rows, strict=True):
        yield f"{name:<{width}}" + "".join(f"{cell:<{width}}" for cell in row).rstrip()


def _rates(wiring: Wiring) -> Iterable[str]:
    gpus = range(len(wiring.slots))
    if not 1 < len(gpus) <= bandwidth.MAX_TABLED_GPUS:
        return
    sheet, bus = bandwidth.set_gb_per_s(wiring, gpus), bandwidth.set_bus_gb_per_s(wiring, gpus)
    if sheet <= bandwidth.UNKNOWN_GB_PER_S:
        yield f"Ring of all {len(gpus)} GPUs: not known"
    else:
        yield f"Ring of all {len(gpus)} GPUs: {sheet:.4g} GB/s by data sheet, about {bus:.4g} GB/s in nccl-tests"


# --- SVG ------------------------------------------------------------------------------------------------

_SIZE: Final = 640
_RADIUS: Final = 220
_COLOURS: Final = {
    Relation.NVLINK: "#76b900",
    Relation.PIX: "#1f77b4",
    Relation.PXB: "#6baed6",
    Relation.PHB: "#fd8d3c",
    Relation.NODE: "#bdbdbd",
    Relation.SYS: "#e0e0e0",
    Relation.UNKNOWN: "#f2f2f2",
}
_NUMA_COLOURS: Final = ("#fff7bc", "#deebf7", "#e5f5e0", "#fde0dd", "#efedf5", "#fee6ce", "#e0f3db", "#f0f0f0")
# Worst first: better links are drawn over them.
_ORDER: Final = tuple(reversed(_COLOURS))


def to_svg(wiring: Wiring, title: str) -> str:
    """GPUs on a circle, coloured by NUMA node; every pair joined by its best path."""
    spots = [_spot(number, len(wiring.slots)) for number in range(len(wiring.slots))]
    height = _SIZE + 24 * (len(_COLOURS) + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_SIZE} {height}" font-family="sans-serif">',
        f'<title>{escape(title)}</title><rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="{_SIZE / 2}" y="28" text-anchor="middle" font-size="18">{escape(title)}</text>',
        *_edges(wiring, spots),
        *_gpus(wiring, spots),
        *_legend(),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _spot(number: int, count: int) -> tuple[float, float]:
    angle = 2 * math.pi * number / max(count, 1) - math.pi / 2
    middle = _SIZE / 2
    return round(middle + _RADIUS * math.cos(angle), 1), round(middle + 20 + _RADIUS * math.sin(angle), 1)


def _edges(wiring: Wiring, spots: list[tuple[float, float]]) -> Iterable[str]:
    pairs = [(wiring.relation(a, b), a, b) for a, b in itertools.combinations(range(len(spots)), 2)]
    for relation, a, b in sorted(pairs, key=lambda pair: _ORDER.index(pair[0])):
        links = wiring.nvlinks(a, b)
        width = 1 + min(links, 18) / 3 if links else 1.5
        (x1, y1), (x2, y2) = spots[a], spots[b]
        yield (
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{_COLOURS[relation]}" stroke-width="{width:.1f}">'
            f"<title>GPU{a} - GPU{b}: {relation}{links or ''}</title></line>"
        )


def _gpus(wiring: Wiring, spots: list[tuple[float, float]]) -> Iterable[str]:
    for number, ((x, y), slot) in enumerate(zip(spots, wiring.slots, strict=True)):
        colour = "#fff" if slot.numa is None else _NUMA_COLOURS[slot.numa % len(_NUMA_COLOURS)]
        where = "" if slot.numa is None else f"NUMA {slot.numa}"
        yield f'<circle cx="{x}" cy="{y}" r="34" fill="{colour}" stroke="#333"/>'
        yield f'<text x="{x}" y="{y}" text-anchor="middle">GPU{number}</text>'
        yield f'<text x="{x}" y="{y + 16}" text-anchor="middle" font-size="10">{where}</text>'


def _legend() -> Iterable[str]:
    for number, (relation, colour) in enumerate(_COLOURS.items()):
        y = _SIZE + 24 * number + 12
        name = {Relation.NVLINK: "NVLink", Relation.UNKNOWN: "not known"}.get(relation, str(relation))
        yield f'<line x1="40" y1="{y}" x2="90" y2="{y}" stroke="{colour}" stroke-width="4"/>'
        yield f'<text x="100" y="{y + 5}">{name}</text>'
