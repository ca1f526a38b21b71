"""Concrete nodes of a fleet: names, places in the network, GPUs with UUIDs, labels, capacity.

Everything follows from the fleet and a node's position, nothing from chance or time: the same model gives
the same nodes for ever, and the first n nodes of a larger fleet are the fleet of n nodes. So a fleet grows
and shrinks at its end, and a restart finds what it left.

Nodes are dealt to the pools by weight. Machines of one kind share racks: the i-th node of a machine, whatever
its pool, sits in the rack i // nodes_per_leaf, so spot and on-demand nodes are neighbours, kinds are not.

    core ── spine ── leaf ── node        network tiers 2, 1, 0
            NVLink domain ── node        only where NVLink leaves the box
"""

from __future__ import annotations

import collections
import itertools
import uuid
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from kgwe.model.units import amounts, quantity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kgwe.model.gpu import catalog, mig, topology
    from kgwe.model.simfleet import model_file

_NAMESPACE: Final = uuid.uuid5(uuid.NAMESPACE_DNS, "kgwe.nvidia.io")

PODS_PER_NODE: Final = 110

# Part of the machine that the kubelet and system daemons keep: 4 % of CPU, 3 % of memory, a tenth of the disk.
_ALLOCATABLE_PERCENT: Final = {"cpu": 96, "memory": 97, "storage": 90}


@dataclass(frozen=True, slots=True)
class MigInstance:
    uuid: str
    instance_id: int
    placement: mig.Placement


@dataclass(frozen=True, slots=True)
class FleetGpu:
    """One GPU of one node."""

    uuid: str
    index: int
    slot: topology.Slot
    instances: tuple[MigInstance, ...] = ()

    @property
    def is_cut(self) -> bool:
        return bool(self.instances)


@dataclass(frozen=True, slots=True)
class Place:
    """The position of a node in the network."""

    leaf: str
    spine: str
    core: str
    zone: str
    region: str
    clique: str = ""
    """`<cluster UUID>.<clique id>` of the NVLink domain; empty where NVLink ends at the node."""
    sub_domain: str = ""


@dataclass(frozen=True)
class FleetNode:
    """One simulated node."""

    name: str
    fleet_name: str
    seed: str
    pool: model_file.Pool
    place: Place

    @property
    def machine(self) -> model_file.Machine:
        return self.pool.machine

    @property
    def model(self) -> catalog.GpuModel:
        return self.pool.machine.model

    @cached_property
    def gpus(self) -> tuple[FleetGpu, ...]:
        geometry = self.model.geometry
        gpus = []
        for index, (slot, layout) in enumerate(zip(self.machine.wiring.slots, self.pool.layouts, strict=True)):
            instances = tuple(
                MigInstance(f"MIG-{self._uuid(index, placement.start)}", placement.instance_id(geometry), placement)
                for placement in layout
                if geometry is not None
            )
            gpus.append(FleetGpu(f"GPU-{self._uuid(index)}", index, slot, instances))
        return tuple(gpus)

    def _uuid(self, *parts: int) -> uuid.UUID:
        return uuid.uuid5(_NAMESPACE, "/".join(("gpu", self.seed, self.name, *map(str, parts))))

    def capacity(self) -> dict[str, str]:
        """status.capacity of the Node."""
        machine = self.machine
        return {
            "cpu": quantity.format_milli(machine.cpu_milli),
            "memory": quantity.format_bytes(machine.memory_bytes),
            "ephemeral-storage": quantity.format_bytes(machine.storage_bytes),
            "pods": str(PODS_PER_NODE),
            **{name: str(count) for name, count in self.devices().items()},
        }

    def allocatable(self, unhealthy: frozenset[int] = frozenset()) -> dict[str, str]:
        """status.allocatable: what the system leaves over, without the GPUs that are out of order."""
        machine = self.machine
        healthy = self.devices(without=unhealthy)
        return {
            "cpu": quantity.format_milli(machine.cpu_milli * _ALLOCATABLE_PERCENT["cpu"] // 100),
            "memory": quantity.format_bytes(_whole_mib(machine.memory_bytes, _ALLOCATABLE_PERCENT["memory"])),
            "ephemeral-storage": quantity.format_bytes(
                _whole_mib(machine.storage_bytes, _ALLOCATABLE_PERCENT["storage"])
            ),
            "pods": str(PODS_PER_NODE),
            **{name: str(healthy.get(name, 0)) for name in self.devices()},
        }

    def devices(self, without: frozenset[int] = frozenset()) -> dict[str, int]:
        """Extended resource -> how many, as the device plugin offers them."""
        counts: collections.Counter[str] = collections.Counter()
        if self.pool.mig_strategy != "single":
            counts[amounts.GPU] = 0  # a fully cut node still reports the resource, as zero
        for gpu in self.gpus:
            if gpu.index in without:
                continue
            for instance in gpu.instances:
                single = self.pool.mig_strategy == "single"
                counts[amounts.GPU if single else instance.placement.profile.resource] += 1
            if not gpu.is_cut:
                counts[amounts.SHARED if self.pool.pieces else amounts.GPU] += self.pool.pieces or 1
        return dict(counts)


def expand_fleet(model: model_file.Fleet, count: int) -> tuple[FleetNode, ...]:
    """The first `count` nodes of the fleet."""
    return tuple(itertools.islice(_nodes(model), count))


def _nodes(model: model_file.Fleet) -> Iterator[FleetNode]:
    in_pool: collections.Counter[str] = collections.Counter()
    of_machine: collections.Counter[str] = collections.Counter()
    ordinals = {name: i for i, name in enumerate(dict.fromkeys(pool.machine.name for pool in model.pools))}
    while True:
        # The pool that is furthest behind its share; the first named wins a tie.
        pool = min(model.pools, key=lambda pool: (in_pool[pool.name] + 1) / pool.weight)
        place = _place(model, pool.machine, of_machine[pool.machine.name], ordinals[pool.machine.name])
        yield FleetNode(f"{pool.name}-{in_pool[pool.name]:04}", model.name, model.seed, pool, place)
        in_pool[pool.name] += 1
        of_machine[pool.machine.name] += 1


def _place(model: model_file.Fleet, machine: model_file.Machine, position: int, ordinal: int) -> Place:
    leaf = position // machine.nodes_per_leaf
    spine = leaf // model.network.leaves_per_spine
    core = spine // model.network.spines_per_core
    clique = sub_domain = ""
    if machine.domain is not None:
        domain = position // machine.domain.nodes
        clique = f"{uuid.uuid5(_NAMESPACE, f'nvlink/{model.seed}/{machine.name}/{domain}')}.1"
        if machine.domain.sub_domain_nodes:
            part = position % machine.domain.nodes // machine.domain.sub_domain_nodes
            sub_domain = f"{clique}.{part}"
    return Place(
        leaf=f"leaf-{machine.name}-{leaf:03}",
        spine=f"spine-{machine.name}-{spine:02}",
        core=f"core-{machine.name}-{core}",
        # A core switch never leaves its zone; kinds of machine begin in different ones.
        zone=model.zones[(ordinal + core) % len(model.zones)],
        region=model.region,
        clique=clique,
        sub_domain=sub_domain,
    )


def _whole_mib(size: int, percent: int) -> int:
    return size * percent // 100 >> 20 << 20


# --- labels ---------------------------------------------------------------------------------------------

FLEET_LABEL: Final = "kgwe.nvidia.io/fleet"
#: Fleet of the nodes that the simulated cloud makes and removes; no model describes them.
CLOUD_FLEET: Final = "cloud"
CAPACITY_TYPE_LABELS: Final = ("gpu-autoscaler.io/capacity-type", "karpenter.sh/capacity-type")


def labels(node: FleetNode) -> dict[str, str]:
    """Every label the node carries; each group is what one component of a real cluster would set."""
    place, pool, machine = node.place, node.pool, node.machine
    out = {
        "type": "kwok",
        FLEET_LABEL: node.fleet_name,
        "kubernetes.io/hostname": node.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": machine.arch,
        # Old spellings: kube-controller-manager would add them, one write per node.
        "beta.kubernetes.io/os": "linux",
        "beta.kubernetes.io/arch": machine.arch,
        "beta.kubernetes.io/instance-type": pool.instance_type,
        "node.kubernetes.io/instance-type": pool.instance_type,
        "topology.kubernetes.io/region": place.region,
        "topology.kubernetes.io/zone": place.zone,
        "gpu-autoscaler.io/node-pool": pool.name,
        "gpu-autoscaler.io/gpu-type": node.model.label,
        **dict.fromkeys(CAPACITY_TYPE_LABELS, pool.capacity_type),
        **_network_labels(place),
        **_feature_labels(node),
    }
    if pool.capacity_type == "spot":
        out["gpu-orchestrator/cheap-node"] = "true"
    return {**out, **pool.labels}


def _network_labels(place: Place) -> dict[str, str]:
    """Three dialects of topograph: 1.0 and later, then the two spellings before it."""
    out = {
        "fabric.topograph.run/tier-0": place.leaf,
        "fabric.topograph.run/tier-1": place.spine,
        "fabric.topograph.run/tier-2": place.core,
        "network.topology.nvidia.com/leaf": place.leaf,
        "network.topology.nvidia.com/spine": place.spine,
        "network.topology.nvidia.com/core": place.core,
        "network.topology.nvidia.com/block": place.leaf,
        "network.topology.nvidia.com/datacenter": place.core,
    }
    if place.clique:
        out["nvidia.com/gpu.clique"] = place.clique
        out["accelerator.topograph.run/domain"] = place.clique
        out["network.topology.nvidia.com/accelerator"] = place.clique
    if place.sub_domain:
        out["accelerator.topograph.run/sub-domain"] = place.sub_domain
    return out


def _feature_labels(node: FleetNode) -> Mapping[str, str]:
    """Return the labels that GPU feature discovery and the GPU operator write."""
    model, machine = node.model, node.machine
    driver = [*machine.driver.split("."), ""][:3]
    cuda = machine.cuda.split(".")
    out = {
        "present": "true",
        "count": str(len(node.gpus)),
        "product": model.label,
        "memory": str(model.memory_mib),
        "family": model.family,
        "machine": machine.product,
        "compute.major": str(model.compute_capability[0]),
        "compute.minor": str(model.compute_capability[1]),
        "mode": "compute",
        "replicas": str(node.pool.pieces or 1),
        "sharing-strategy": "time-slicing" if node.pool.pieces else "none",
    }
    out = {f"gpu.{key}": value for key, value in out.items()} | {
        "cuda.driver.major": driver[0],
        "cuda.driver.minor": driver[1],
        "cuda.driver.rev": driver[2],
        "cuda.driver-version.full": machine.driver,
        "cuda.driver-version.major": driver[0],
        "cuda.driver-version.minor": driver[1],
        "cuda.driver-version.revision": driver[2],
        "cuda.runtime.major": cuda[0],
        "cuda.runtime.minor": cuda[1],
        "cuda.runtime-version.full": machine.cuda,
        "cuda.runtime-version.major": cuda[0],
        "cuda.runtime-version.minor": cuda[1],
        "mig.capable": "true" if model.geometry else "false",
        "mig.strategy": node.pool.mig_strategy,
    }
    return {f"nvidia.com/{key}": value for key, value in (out | _mig_labels(node)).items()}


def _mig_labels(node: FleetNode) -> dict[str, str]:
    profiles = [instance.placement.profile for gpu in node.gpus for instance in gpu.instances]
    if node.model.geometry is None:
        return {}
    # The mig-manager is not simulated; the other labels are those of the GPU operator.
    managed = {"gpu.deploy.mig-manager": "false"}
    if not profiles:
        return {"mig.config": "all-disabled", "mig.config.state": "success", **managed}
    if node.pool.mig_strategy == "single":
        profile = profiles[0]
        return {
            "gpu.product": f"{node.model.label}-MIG-{profile.name.replace('+', '.')}",
            "gpu.count": str(len(profiles)),
            "gpu.memory": str(profile.memory_mib),
            "gpu.slices.gi": str(profile.compute),
            "gpu.slices.ci": str(profile.compute),
            "mig.config": f"all-{profile.name.replace('+', '.')}",
            "mig.config.state": "success",
            **managed,
        }
    out = {"mig.config": f"custom-{node.pool.name}", "mig.config.state": "success", **managed}
    for profile in {profile.name: profile for profile in profiles}.values():
        prefix = profile.resource.removeprefix("nvidia.com/")
        out[f"{prefix}.count"] = str(sum(other.name == profile.name for other in profiles))
        out[f"{prefix}.memory"] = str(profile.memory_mib)
        out[f"{prefix}.slices.gi"] = str(profile.compute)
        out[f"{prefix}.slices.ci"] = str(profile.compute)
    return out
