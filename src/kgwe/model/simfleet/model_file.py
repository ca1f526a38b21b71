"""Fleet model files: the machines, pools and network of a simulated fleet.

A model names machines (a box with its GPUs, NUMA nodes, PCIe tree, NVLinks and NICs), pools (how
many nodes of which machine, spot or on demand, cut by MIG or not) and the network above them. `parse` turns
the YAML into frozen values or says everything that is wrong with it at once; `kgwe.model.simfleet.inventory` then
derives any number of concrete nodes from it. docs/fleet.md describes the format.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import msgspec
import yaml

from kgwe import errors, yaml_text
from kgwe.model.devices import shares
from kgwe.model.gpu import catalog, mig, topology
from kgwe.model.units import quantity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


class _Described(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """One level of the file; an unknown key is a mistake in the file."""


class GpuSlot(_Described, frozen=True):
    bus: str
    numa: int | None = None
    pcie: tuple[str, ...] = ()


class NicSlot(_Described, frozen=True):
    name: str
    gbit_per_s: int
    numa: int | None = None
    pcie: tuple[str, ...] = ()
    rail: int | None = None


class NvLink(_Described, frozen=True):
    """Either an NVSwitch that every GPU reaches over `switch_links`, or the direct links in `mesh`."""

    switch_links: int = 0
    mesh: tuple[tuple[int, int, int], ...] = ()


class NvLinkDomain(_Described, frozen=True):
    """NVLink reaches beyond the node: `nodes` of them form one domain (18 trays in an NVL72)."""

    nodes: int
    sub_domain_nodes: int = 0


class MachineFile(_Described, frozen=True):
    machine: str
    gpu: str
    gpus: tuple[GpuSlot, ...]
    cpus: tuple[str, ...]
    cpu: str
    memory: str
    storage: str
    driver: str
    cuda: str
    arch: Literal["amd64", "arm64"] = "amd64"
    nvlink: NvLink = NvLink()
    nvlink_domain: NvLinkDomain | None = None
    nodes_per_leaf: int = 0
    nics: tuple[NicSlot, ...] = ()


class MigCut(_Described, frozen=True):
    """The GPUs named by `gpus` (all when left out) are cut as `layout` says."""

    layout: tuple[str, ...]
    gpus: tuple[int, ...] = ()
    strategy: Literal["single", "mixed"] = "mixed"


class PoolFile(_Described, frozen=True):
    name: str
    machine: str
    instance_type: str
    weight: int = 1
    capacity_type: Literal["on-demand", "spot", "reserved"] = "on-demand"
    mig: MigCut | None = None
    pieces: int = 0
    labels: dict[str, str] = {}


class Network(_Described, frozen=True):
    nodes_per_leaf: int = 4
    leaves_per_spine: int = 4
    spines_per_core: int = 4


class FleetFile(_Described, frozen=True):
    name: str
    description: str
    region: str
    zones: tuple[str, ...]
    pools: tuple[PoolFile, ...]
    machines: dict[str, MachineFile] = {}
    include: tuple[str, ...] = ()
    network: Network = Network()
    seed: str = ""


@dataclass(frozen=True)
class Machine:
    """A box, and everything two boxes of the same kind have in common."""

    name: str
    product: str
    model: catalog.GpuModel
    wiring: topology.Wiring
    cpu_milli: int
    memory_bytes: int
    storage_bytes: int
    driver: str
    cuda: str
    arch: str
    nodes_per_leaf: int
    domain: NvLinkDomain | None


@dataclass(frozen=True)
class Pool:
    """Nodes that are alike and bought alike."""

    name: str
    machine: Machine
    instance_type: str
    weight: int
    capacity_type: str
    layouts: tuple[tuple[mig.Placement, ...], ...]
    """Per GPU, its MIG instances; an empty tuple is a whole GPU."""
    mig_strategy: str
    pieces: int
    """Equal shares that each GPU is offered as; 0: GPUs are whole."""
    labels: Mapping[str, str]


@dataclass(frozen=True)
class Fleet:
    name: str
    description: str
    seed: str
    region: str
    zones: tuple[str, ...]
    network: Network
    pools: tuple[Pool, ...]


_DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")
_BUS: Final = re.compile(r"[0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-7]")
_VERSION: Final = re.compile(r"\d+(\.\d+){1,2}")
_MAX_GPUS: Final = 16  # placement keeps a table per set of GPUs of a node


def parse(text: str, *, where: str, include: Callable[[str], str]) -> Fleet:
    """The fleet a model describes; `include(name)` gives the text of another model whose machines it uses."""
    file = _decode(text, where)
    files = dict(file.machines)
    for name in file.include:
        for key, machine in _decode(include(name), name).machines.items():
            files.setdefault(key, machine)
    found = list(_fleet_problems(file, files))
    machines: dict[str, Machine] = {}
    for name, described in files.items():
        if troubles := list(_machine_problems(described)):
            found += [f"machines.{name}: {trouble}" for trouble in troubles]
        else:
            machines[name] = _machine(name, described, file.network)
    pools = []
    for pool in file.pools:
        if pool.machine in machines:
            layouts, troubles = _layouts(pool, machines[pool.machine])
            found += [f"pools.{pool.name}.mig: {trouble}" for trouble in troubles]
            pools.append(_pool(pool, machines[pool.machine], layouts))
    if found:
        raise errors.Permanent(f"fleet model {where}:\n" + "\n".join(f"  - {problem}" for problem in found))
    return Fleet(
        file.name, file.description, file.seed or file.name, file.region, file.zones, file.network, tuple(pools)
    )


def _decode(text: str, where: str) -> FleetFile:
    try:
        return msgspec.convert(yaml_text.parse_yaml(text), FleetFile)
    except (msgspec.ValidationError, yaml.YAMLError) as exc:
        raise errors.Permanent(f"fleet model {where}: {exc}") from exc


# --- checking -------------------------------------------------------------------------------------------


def _fleet_problems(file: FleetFile, machines: Mapping[str, MachineFile]) -> Iterator[str]:
    if not file.pools:
        yield "pools: name at least one"
    if not file.zones:
        yield "zones: name at least one"
    if min(file.network.nodes_per_leaf, file.network.leaves_per_spine, file.network.spines_per_core) < 1:
        yield "network: every count is at least 1"
    names = [pool.name for pool in file.pools]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"pools: {name!r} is named twice"
    for pool in file.pools:
        yield from (f"pools.{pool.name}{problem}" for problem in _pool_problems(pool, machines))


def _pool_problems(pool: PoolFile, machines: Mapping[str, MachineFile]) -> Iterator[str]:
    if not _DNS_LABEL.fullmatch(pool.name):
        yield ": a name has at most 40 lower-case letters, digits and dashes"
    if pool.weight < 1:
        yield ".weight: at least 1"
    if pool.pieces and not shares.FEWEST <= pool.pieces <= shares.MOST:
        yield f".pieces: {shares.FEWEST} to {shares.MOST}, or 0 for whole GPUs"
    if pool.pieces and pool.mig is not None:
        yield ": GPUs are cut (mig) or shared (pieces), not both"
    if pool.machine not in machines:
        yield f".machine: no machine {pool.machine!r}; there are {', '.join(machines) or 'none'}"


def _machine_problems(machine: MachineFile) -> Iterator[str]:
    if machine.gpu not in catalog.CATALOGUE:
        yield f"gpu: no model {machine.gpu!r} is known; the models are {', '.join(catalog.CATALOGUE)}"
    else:
        yield from _nvlink_problems(machine, catalog.CATALOGUE[machine.gpu])
    yield from _gpu_problems(machine)
    yield from _figure_problems(machine)
    if machine.nvlink_domain and (machine.nvlink_domain.nodes < 1 or not machine.nvlink.switch_links):
        yield "nvlinkDomain: needs nodes of at least 1 and nvlink.switchLinks"


def _gpu_problems(machine: MachineFile) -> Iterator[str]:
    if not 1 <= len(machine.gpus) <= _MAX_GPUS:
        yield f"gpus: 1 to {_MAX_GPUS} GPUs"
    for index, slot in enumerate(machine.gpus):
        if not _BUS.fullmatch(slot.bus):
            yield f"gpus[{index}].bus: {slot.bus!r} is not a bus id such as 00000000:1B:00.0"
        if slot.numa is not None and not 0 <= slot.numa < len(machine.cpus):
            yield f"gpus[{index}].numa: cpus lists {len(machine.cpus)} NUMA nodes"
    if len({slot.bus for slot in machine.gpus}) != len(machine.gpus):
        yield "gpus: two GPUs have the same bus id"


def _figure_problems(machine: MachineFile) -> Iterator[str]:
    for field in ("driver", "cuda"):
        if not _VERSION.fullmatch(value := getattr(machine, field)):
            yield f"{field}: {value!r} is not a version such as 580.95.05"
    for field in ("cpu", "memory", "storage"):
        try:
            quantity.parse_milli(getattr(machine, field))
        except quantity.BadQuantity as exc:
            yield f"{field}: {exc}"


def _nvlink_problems(machine: MachineFile, model: catalog.GpuModel) -> Iterator[str]:
    gpus = len(machine.gpus)
    used = [machine.nvlink.switch_links] * gpus
    if machine.nvlink.switch_links and machine.nvlink.mesh:
        yield "nvlink: either switchLinks or mesh"
    pairs = [frozenset((a, b)) for a, b, _ in machine.nvlink.mesh]
    if len(set(pairs)) != len(pairs):
        yield "nvlink.mesh: every pair of GPUs once"
    for a, b, links in machine.nvlink.mesh:
        if a == b or not 0 <= min(a, b) <= max(a, b) < gpus or links < 1:
            yield f"nvlink.mesh: [{a}, {b}, {links}] does not join two of {gpus} GPUs"
            return
        used[a] += links
        used[b] += links
    if max(used, default=0) > model.nvlink_links:
        yield f"nvlink: a {model.name} has {model.nvlink_links} links, {max(used)} are used"


def _layouts(pool: PoolFile, machine: Machine) -> tuple[tuple[tuple[mig.Placement, ...], ...], list[str]]:
    """The MIG cut of every GPU, and what is wrong with it."""
    gpus = len(machine.wiring.slots)
    whole: tuple[tuple[mig.Placement, ...], ...] = ((),) * gpus
    if pool.mig is None:
        return whole, []
    geometry = machine.model.geometry
    if geometry is None:
        return whole, [f"a {machine.model.name} cannot be cut"]
    try:
        layout = tuple(mig.parse_placement(geometry, text) for text in pool.mig.layout)
    except errors.Permanent as exc:
        return whole, [str(exc)]
    troubles = mig.find_problems(geometry, layout)
    chosen = set(pool.mig.gpus or range(gpus))
    if not chosen <= set(range(gpus)):
        troubles.append(f"gpus: the machine has GPUs 0 to {gpus - 1}")
    if pool.mig.strategy == "single" and (len({p.profile.name for p in layout}) > 1 or len(chosen) != gpus):
        troubles.append("strategy single needs every GPU cut into instances of one profile; use mixed")
    return tuple(layout if gpu in chosen else () for gpu in range(gpus)), troubles


# --- building -------------------------------------------------------------------------------------------


def _machine(name: str, file: MachineFile, network: Network) -> Machine:
    model = catalog.CATALOGUE[file.gpu]
    linked = bool(file.nvlink.switch_links or file.nvlink.mesh)
    slots = tuple(
        topology.Slot(slot.bus, slot.numa, "" if slot.numa is None else file.cpus[slot.numa], slot.pcie)
        for slot in file.gpus
    )
    nics = tuple(topology.Nic(nic.name, nic.gbit_per_s, nic.numa, nic.pcie, nic.rail) for nic in file.nics)
    return Machine(
        name=name,
        product=file.machine,
        model=model,
        wiring=topology.Wiring(
            slots, model.nvlink_version if linked else 0, file.nvlink.switch_links, file.nvlink.mesh, nics
        ),
        cpu_milli=quantity.parse_milli(file.cpu),
        memory_bytes=quantity.parse_bytes(file.memory),
        storage_bytes=quantity.parse_bytes(file.storage),
        driver=file.driver,
        cuda=file.cuda,
        arch=file.arch,
        nodes_per_leaf=file.nodes_per_leaf or network.nodes_per_leaf,
        domain=file.nvlink_domain,
    )


def _pool(file: PoolFile, machine: Machine, layouts: tuple[tuple[mig.Placement, ...], ...]) -> Pool:
    return Pool(
        name=file.name,
        machine=machine,
        instance_type=file.instance_type,
        weight=file.weight,
        capacity_type=file.capacity_type,
        layouts=layouts,
        mig_strategy=file.mig.strategy if file.mig else "none",
        pieces=file.pieces,
        labels=file.labels,
    )
