"""Machines for tests: real ones where the reference data is at hand, small ones of our own always."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kgwe import errors
from kgwe.model.gpu import catalog
from kgwe.model.gpu.topology import Slot, Wiring

DATA = Path(os.environ.get("KGWE_DATA", Path(__file__).parents[4] / "shared" / "data"))

NAMES = (
    "8xV100-SXM2 hybrid cube mesh (DGX-1V class)",
    "DGX A100 (8 NUMA domains, NPS4)",
    "AWS p4d.24xlarge",
    "HGX H100 2-socket, 10 NICs",
    "8xB200",
    "8-GPU PCIe, PIX pairs, 2 sockets",
    "Berkeley Savio4 GPU node (PCIe switch per socket)",
    "8xRTX4090 direct-attach",
)

_MODELS = {"A100-SXM4": "A100-SXM4-80GB", "B200": "B200-SXM6-180GB"}


def reference(*parts: str) -> Path:
    """A file of the reference data; skips the test when it is absent."""
    path = DATA.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"no reference data: {path} is absent (set KGWE_DATA to the folder that holds it)")
    return path


def machine(name: str) -> dict[str, Any]:
    listed = json.loads(reference("topology", "machines.json").read_text())["machines"]
    return next(entry for entry in listed if entry["name"] == name)


def model(entry: dict[str, Any]) -> catalog.GpuModel | None:
    try:
        return catalog.find_model(_MODELS.get(entry["gpu"], entry["gpu"]))
    except errors.Permanent:
        return None


def topo_text(entry: dict[str, Any], gap: str = "\t") -> str:
    """The machine as nvidia-smi topo -m prints it."""
    cards = [f"GPU{i}" for i in range(entry["gpu_count"])]
    nics = entry["nic_link"]
    lines = [gap.join(["", *cards, *nics, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    for i, card in enumerate(cards):
        cells = [" X " if cell == "X" else cell for cell in entry["link"][i]]
        tail = [entry["cpu_affinity_of_gpu"][i], str(entry["numa_of_gpu"][i]), gap + "N/A"]
        lines.append(gap.join([card, *cells, *[links[i] for links in nics.values()], *tail]))
    for name, links in nics.items():
        lines.append(gap.join([name, *links, *[" X " if other == name else "SYS" for other in nics]]))
    return "\n".join([*lines, "", "Legend:", "", "  X    = Self", "  SYS  = Connection traversing PCIe …"])


def nvswitch(cards: int = 8, links: int = 18, version: int = 4) -> Wiring:
    """Like an HGX H100: a switch over all cards, two sockets, two cards per PCIe switch."""
    half = (cards + 1) // 2
    slots = tuple(Slot(f"b{i}", i // half, pcie=(f"rc{i // 2}", f"sw{i // 2}")) for i in range(cards))
    return Wiring(slots, version, links)


def pcie_pairs(cards: int = 8) -> Wiring:
    """Two sockets, two cards per PCIe switch, a host bridge per switch."""
    half = (cards + 1) // 2
    return Wiring(tuple(Slot(f"b{i}", i // half, pcie=(f"rc{i // 2}", f"sw{i // 2}")) for i in range(cards)))
