"""What a GPUWorkload needs from GPUs: how many, which ones, and how they are connected."""

from enum import StrEnum
from typing import Annotated, ClassVar

from kgwe.kube.api.kgwe.mig import PROFILES
from kgwe.kube.api.schema import ApiStruct, Rule, about
from kgwe.model.devices import shares as pieces
from kgwe.model.gpu.catalog import Architecture
from kgwe.model.units.limits import MOST_GPUS, MOST_PODS


class TopologyPreference(StrEnum):
    NONE = "None"
    NVLINK_OPTIMAL = "NVLinkOptimal"
    NVLINK_REQUIRED = "NVLinkRequired"
    SAME_NUMA = "SameNUMA"
    SAME_PCIE_SWITCH = "SamePCIeSwitch"


class HardwareUniformity(StrEnum):
    """Whether all pods are on nodes of one CPU architecture and one GPU model."""

    SAME = "Same"
    PREFER_SAME = "PreferSame"
    ANY = "Any"


class Topology(ApiStruct, frozen=True):
    """How the GPUs must be connected and how close the pods must be."""

    preference: Annotated[
        str,
        about(
            "NVLinkRequired never runs without NVLink between all GPUs of a pod, SameNUMA only on GPUs of one NUMA"
            " node, SamePCIeSwitch only on GPUs with no host bridge between them; all three wait until such GPUs are"
            " free, and GPUs whose wiring is not known never count. NVLinkOptimal raises the score of better wired GPUs"
            " and, like None, never keeps the workload waiting.",
            enum=TopologyPreference,
        ),
    ] = TopologyPreference.NONE
    minBandwidthGBps: Annotated[
        float | None,
        about(
            "Least bandwidth, in GB/s, between the GPUs of a pod; slower sets of GPUs are never used.",
            gt=0,
        ),
    ] = None
    requiredLevel: Annotated[
        str,
        about(
            "Network level (leaf, spine, nvlink, node …) of which one domain must hold all pods. "
            "Otherwise the workload waits.",
            max_length=63,
        ),
    ] = ""
    preferredLevel: Annotated[
        str, about("Network level of which one domain should hold all pods, if one can.", max_length=63)
    ] = ""
    segmentSize: Annotated[
        int | None,
        about("Groups of so many consecutive pods each stay inside one domain of segmentLevel.", ge=2, le=MOST_PODS),
    ] = None
    segmentLevel: Annotated[str, about("Level that each segment stays inside; left out: nvlink.", max_length=63)] = ""


class MIGRequest(ApiStruct, frozen=True):
    """Slices of GPUs instead of whole ones."""

    profile: Annotated[str, about("The MIG profile of every slice, such as 1g.10gb.", enum=PROFILES)]
    count: Annotated[int, about("How many slices.", ge=1, le=448)] = 1


class GPURequirements(ApiStruct, frozen=True):
    """What the workload needs from GPUs: whole ones (count), a share of one (share) or slices (mig)."""

    rules: ClassVar = (
        Rule(
            "has(self.count) || has(self.mig) || has(self.share)",
            "say how many GPUs: set gpuRequirements.count for whole GPUs, gpuRequirements.share for a part of one or"
            " gpuRequirements.mig for MIG slices",
        ),
        Rule(
            "!(has(self.count) && has(self.mig))",
            "count asks for whole GPUs and mig for slices: remove gpuRequirements.count and give the number of slices"
            " in gpuRequirements.mig.count",
        ),
        Rule(
            "!has(self.share) || !(has(self.count) || has(self.mig))",
            "share asks for a part of one GPU: remove gpuRequirements.share, or both count and mig",
        ),
        Rule(
            "!has(self.share) || !has(self.topology) || self.topology.preference != 'NVLinkRequired'",
            "a share is of one GPU and has nothing to be wired to: remove topology.preference NVLinkRequired, or ask"
            " for whole GPUs with count",
        ),
        Rule(
            "!has(self.minBandwidthGBps) || !has(self.topology) || !has(self.topology.minBandwidthGBps)"
            " || self.minBandwidthGBps == self.topology.minBandwidthGBps",
            "minBandwidthGBps is given twice with different values: keep gpuRequirements.topology.minBandwidthGBps"
            " and remove gpuRequirements.minBandwidthGBps",
        ),
        Rule(
            "!has(self.mig) || !has(self.topology) || self.topology.preference != 'NVLinkRequired'",
            "MIG slices have no NVLink: remove topology.preference NVLinkRequired, or ask for whole GPUs with count",
        ),
    )

    count: Annotated[int | None, about("How many whole GPUs, over all pods together.", ge=1, le=MOST_GPUS)] = None
    minMemoryGB: Annotated[
        int | None,
        about(
            "Least memory of each GPU, in GB.",
            ge=1,
            rules=(Rule("self <= 1024", "minMemoryGB is the memory of one GPU in GB, not MB: give at most 1024"),),
        ),
    ] = None
    minBandwidthGBps: Annotated[
        float | None, about("Older place of topology.minBandwidthGBps; give it in one of the two.", gt=0)
    ] = None
    topology: Annotated[Topology, about("How the GPUs must be connected and how close the pods must be.")] = Topology()
    mig: Annotated[MIGRequest | None, about("MIG slices instead of whole GPUs; not together with count.")] = None
    share: Annotated[
        float | None,
        about(
            "A part of one GPU instead of whole ones: one of the equal pieces (nvidia.com/gpu.shared) that some nodes"
            " divide their GPUs into, 0.5 for a half. Pieces take turns, or run side by side with MPS; see the docs on"
            " sharing for what keeps them apart.",
            gt=0,
            rules=(
                Rule(
                    f"[{', '.join(str(each) for each in range(pieces.FEWEST, pieces.MOST + 1))}].exists(n,"
                    f" self * double(n) >= {1 - pieces.TOLERANCE} && self * double(n) <= {1 + pieces.TOLERANCE})",
                    f"gpuRequirements.share is {pieces.MEANING}",
                ),
            ),
        ),
    ] = None
    gpuModel: Annotated[
        str,
        about(
            "Only GPUs of this model: a product name as GPU feature discovery labels it (NVIDIA-H100-80GB-HBM3) or"
            " a word of it (H100).",
            max_length=128,
        ),
    ] = ""
    architecture: Annotated[str, about("Only GPUs of this architecture.", enum=Architecture)] = ""
    hardware: Annotated[
        str,
        about(
            "Whether all pods are on nodes of one CPU architecture and one GPU model: Same waits for such nodes,"
            " PreferSame mixes GPU models where it would wait otherwise, Any mixes both. A podTemplate that names"
            " kubernetes.io/arch in its node selector or required affinity decides on the CPU architecture itself.",
            enum=HardwareUniformity,
        ),
    ] = HardwareUniformity.SAME

    @property
    def required_bandwidth_gb_per_s(self) -> float | None:
        """The bandwidth asked for, wherever it was written; the schema refuses two different answers."""
        if self.topology.minBandwidthGBps is not None:
            return self.topology.minBandwidthGBps
        return self.minBandwidthGBps
