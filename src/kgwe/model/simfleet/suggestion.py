"""Suggests a fleet model for a machine of which the wiring is known."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import yaml

from kgwe.model.gpu import catalog
from kgwe.model.gpu.pcie_tree import pcie_paths

if TYPE_CHECKING:
    from kgwe.model.gpu.catalog import GpuModel
    from kgwe.model.gpu.topology import Wiring

# NVLink generation -> the GPU that most machines with it have.
_USUAL: Final = {2: "V100-SXM2-32GB", 3: "A100-SXM4-80GB", 4: "H100-SXM5-80GB", 5: "B200-SXM6-180GB"}
_USUAL_WITHOUT_NVLINK: Final = "L40S"
_CPUS: Final = 96
_HEADING: Final = """\
# Suggested by `kgwe topology`. The file it was made from says nothing of memory, storage, driver and price:
# check these before you use it.
"""


def guess_gpu(wiring: Wiring) -> GpuModel:
    """The GPU that such a machine usually has."""
    most = max([wiring.switch_links, *(sum(wiring.peers(gpu).values()) for gpu in range(len(wiring.slots)))])
    if not most:
        return catalog.find_model(_USUAL_WITHOUT_NVLINK)
    if wiring.nvlink_version in _USUAL:
        return catalog.find_model(_USUAL[wiring.nvlink_version])
    fitting = [catalog.find_model(name) for name in _USUAL.values() if catalog.find_model(name).nvlink_links >= most]
    return fitting[0] if fitting else catalog.find_model(_USUAL[5])


def to_yaml(wiring: Wiring, *, name: str, gpu: GpuModel | None = None) -> str:
    """A fleet model with one pool of such machines."""
    name = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "machine"
    model = gpu or guess_gpu(wiring)
    fleet = {
        "name": name,
        "description": f"{len(wiring.slots)} x {model.name}, read from a topology file",
        "region": "local",
        "zones": ["local-a"],
        "machines": {name: _machine(wiring, name, model)},
        "pools": [{"name": name, "machine": name, "instanceType": name}],
    }
    notes = "" if gpu is not None else "# The GPU model is a guess: give it with --gpu.\n"
    if any(wiring.links_down):
        notes += "# Some NVLinks were down; the model has all of them.\n"
    return _HEADING + notes + yaml.safe_dump(fleet, sort_keys=False, default_flow_style=None, width=120)


def _machine(wiring: Wiring, name: str, model: GpuModel) -> dict[str, Any]:
    gpu_paths, nic_paths = pcie_paths(wiring)
    cpus = _cpus_by_numa(wiring)
    machine: dict[str, Any] = {
        "machine": name,
        "gpu": model.name,
        "cpu": str(sum(map(_count, cpus)) or _CPUS),
        "memory": "1Ti",
        "storage": "10Ti",
        "driver": "580.95.05",
        "cuda": "13.0",
        "cpus": cpus,
    }
    if wiring.switch_links:
        machine["nvlink"] = {"switchLinks": wiring.switch_links}
    elif wiring.mesh:
        machine["nvlink"] = {"mesh": [list(link) for link in wiring.mesh]}
    machine["gpus"] = [
        {"bus": slot.bus or f"00000000:{16 + number:02X}:00.0", **_place(slot.numa, path)}
        for number, (slot, path) in enumerate(zip(wiring.slots, gpu_paths, strict=True))
    ]
    if wiring.nics:
        machine["nics"] = [
            {"name": nic.name, "gbitPerS": nic.gbit_per_s, **_place(nic.numa, path)}
            for nic, path in zip(wiring.nics, nic_paths, strict=True)
        ]
    return machine


def _place(numa: int | None, path: tuple[str, ...]) -> dict[str, Any]:
    return ({} if numa is None else {"numa": numa}) | ({"pcie": list(path)} if path else {})


def _cpus_by_numa(wiring: Wiring) -> list[str]:
    nodes = [slot.numa for slot in wiring.slots] + [nic.numa for nic in wiring.nics]
    cpus = [""] * (max((node for node in nodes if node is not None), default=0) + 1)
    for slot in wiring.slots:
        if slot.numa is not None:
            cpus[slot.numa] = slot.cpus
    return cpus


def _count(cpus: str) -> int:
    """Return the number of CPUs in a list such as `0-3,8`."""
    count = 0
    for part in filter(None, cpus.split(",")):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return count
