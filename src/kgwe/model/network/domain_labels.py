"""The node labels that declare the place of a node in the network, with presets for the common sources.

Every level has an ordered list of keys; the first one that a node has counts. A node without any of them has no known
domain at that level. NVLink domains have their own labels, because they need not follow the network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kgwe.model.network import domains


@dataclass(frozen=True, slots=True)
class LabelLevel:
    """One level, and the labels that may hold the name of a node's domain there."""

    name: str
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of a node's place; levels from the node outwards."""

    levels: tuple[LabelLevel, ...]
    nvlink: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(level.name for level in self.levels)

    def place(self, node: str, labels: Mapping[str, str], gb_per_s: float | None = None) -> domains.Place:
        """The place that the labels declare; `gb_per_s`: bandwidth of its NICs, one direction."""
        from kgwe.model.network import domains  # noqa: PLC0415 - imports NumPy, which readers of API types do without

        path = tuple(_first_label(labels, level.keys) for level in self.levels)
        rate = domains.UNKNOWN_GB_PER_S if gb_per_s is None else gb_per_s
        return domains.Place(node, path, _first_label(labels, self.nvlink), rate)


def _first_label(labels: Mapping[str, str], keys: Iterable[str]) -> str:
    return next((labels[key] for key in keys if labels.get(key)), "")


# What GPU feature discovery writes on nodes of a multi-node NVLink domain.
_CLIQUE: Final = "nvidia.com/gpu.clique"
_ZONE: Final = LabelLevel("zone", ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"))

_AWS: Final = "topology.k8s.aws/network-node-layer-"
_GKE: Final = "cloud.google.com/gce-topology-"
_OCI: Final = "oci.oraclecloud.com/rdma."
_LEGACY: Final = "network.topology.nvidia.com/"
_AWS_NVLINK: Final = "topology.k8s.aws/ultraserver-id"

TOPOGRAPH: Final = Labels(
    levels=(
        LabelLevel("leaf", ("fabric.topograph.run/tier-0",)),
        LabelLevel("spine", ("fabric.topograph.run/tier-1",)),
        LabelLevel("core", ("fabric.topograph.run/tier-2",)),
        _ZONE,
    ),
    nvlink=("accelerator.topograph.run/domain", _CLIQUE),
)

# Before 1.0 the labels had these names.
TOPOGRAPH_LEGACY: Final = Labels(
    levels=(
        LabelLevel("leaf", (_LEGACY + "leaf", _LEGACY + "block")),
        LabelLevel("spine", (_LEGACY + "spine",)),
        LabelLevel("core", (_LEGACY + "core", _LEGACY + "datacenter")),
        _ZONE,
    ),
    nvlink=(_LEGACY + "accelerator", _CLIQUE),
)

# AWS counts from the top: layer 3 is the switch at the instance.
AWS: Final = Labels(
    levels=(
        LabelLevel("leaf", (_AWS + "3",)),
        LabelLevel("spine", (_AWS + "2",)),
        LabelLevel("core", (_AWS + "1",)),
        _ZONE,
    ),
    nvlink=(_AWS_NVLINK, _CLIQUE),
)

# A sub-block is a rack; the host label names the machine itself.
GKE: Final = Labels(
    levels=(LabelLevel("leaf", (_GKE + "subblock",)), LabelLevel("block", (_GKE + "block",)), _ZONE),
    nvlink=(_CLIQUE,),
)

OCI: Final = Labels(
    levels=(
        LabelLevel("leaf", (_OCI + "local_block_id",)),
        LabelLevel("block", (_OCI + "network_block_id",)),
        LabelLevel("island", (_OCI + "hpc_island_id",)),
        _ZONE,
    ),
    nvlink=(_CLIQUE,),
)

CLOUD: Final = Labels(
    levels=(
        LabelLevel("leaf", (_AWS + "3", _GKE + "subblock", _OCI + "local_block_id")),
        LabelLevel("spine", (_AWS + "2", _GKE + "block", _OCI + "network_block_id")),
        LabelLevel("core", (_AWS + "1", _OCI + "hpc_island_id")),
        _ZONE,
    ),
    nvlink=(_AWS_NVLINK, _CLIQUE),
)

# For labels written by hand.
LEAF_SPINE: Final = Labels(
    levels=(
        LabelLevel("leaf", ("kgwe.nvidia.io/leaf",)),
        LabelLevel("spine", ("kgwe.nvidia.io/spine",)),
        LabelLevel("core", ("kgwe.nvidia.io/core", "kgwe.nvidia.io/block")),
        _ZONE,
    ),
    nvlink=("kgwe.nvidia.io/nvlink-domain", _CLIQUE),
)

#: as `spec.topology.preset` of a SchedulerConfig names them
PRESETS: Final[Mapping[str, Labels]] = {
    "topograph": TOPOGRAPH,
    "topographLegacy": TOPOGRAPH_LEGACY,
    "cloud": CLOUD,
    "aws": AWS,
    "gke": GKE,
    "oci": OCI,
    "leafSpine": LEAF_SPINE,
}

#: every label that names an NVLink domain, for configurations that list the levels themselves
NVLINK_KEYS: Final = (
    "kgwe.nvidia.io/nvlink-domain",
    "accelerator.topograph.run/domain",
    _LEGACY + "accelerator",
    _AWS_NVLINK,
    _CLIQUE,
)


def get_preset(name: str) -> Labels:
    if found := PRESETS.get(name):
        return found
    raise errors.Permanent(f"no preset {name!r} of topology labels; the presets are {', '.join(PRESETS)}")


def detect_preset(nodes: Iterable[Mapping[str, str]]) -> str:
    """The preset that gives the most nodes a leaf, from the labels of all nodes; topograph if none does."""
    listed = list(nodes)
    told = {
        name: sum(bool(_first_label(labels, found.levels[0].keys)) for labels in listed)
        for name, found in PRESETS.items()
    }
    return max(PRESETS, key=lambda name: told[name])
