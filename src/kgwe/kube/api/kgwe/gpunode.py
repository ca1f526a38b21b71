"""GPUNode: what is known about the GPUs of one node, written by the agent (or the simulated fleet) on it.

It has the name of its Node. Everything observed is status; a fact that could not be observed is left out,
so that unknown never looks like zero.
"""

import enum
from typing import Annotated, ClassVar

from kgwe.kube.api.schema import (
    AGE,
    ApiStruct,
    Column,
    Conditions,
    CustomObject,
    Definition,
    Rule,
    Timestamp,
    about,
    match_pattern,
)
from kgwe.model.gpu.catalog import Architecture
from kgwe.model.gpu.mig import Phase
from kgwe.model.health import health
from kgwe.model.health.xids import Action

# One writer writes these lists whole. Merging them by key would make the API server keep an owner per field of
# every card: more text than the facts themselves, and most of the time of a write.
_ATOMIC = {"x-kubernetes-list-type": "atomic"}


class Source(enum.StrEnum):
    """Who observes the node."""

    AGENT = "Agent"
    SIMULATED = "Simulated"


HealthState = health.HealthState


_PLACE = match_pattern(
    "[1-9]g\\.[0-9]+gb([+-][a-z.]+)?@[0-9]+", "an instance is a profile and where it starts: 3g.40gb@4"
)


class MIGLayout(ApiStruct, frozen=True):
    """What a card is to be cut into."""

    rules: ClassVar = (
        Rule(
            "self.enabled || !has(self.instances) || size(self.instances) == 0",
            "instances need MIG mode: set enabled to true, or remove the instances",
        ),
    )

    enabled: Annotated[bool, about("Whether MIG mode must be on.")]
    instances: Annotated[
        tuple[Annotated[str, about("Profile and first memory slice, 3g.40gb@4.", max_length=32, rules=(_PLACE,))], ...],
        about("All desired slices of the GPU.", max_items=16),
    ] = ()
    withheld: Annotated[
        tuple[Annotated[str, about("Profile and first memory slice, 3g.40gb@4.", max_length=32, rules=(_PLACE,))], ...],
        about("Slices that no new pod gets, because they are removed once pods have left the GPU.", max_items=16),
    ] = ()


class DrainedPod(ApiStruct, frozen=True):
    """A pod that was asked to leave."""

    pod: Annotated[str, about("Namespace and name of the pod.", max_length=320)]
    uid: Annotated[str, about("Its uid.", max_length=64)]


class Drain(ApiStruct, frozen=True):
    """Pods that consent to be moved, and were asked to leave the withheld slices so that the card can be cut."""

    waiting: Annotated[str, about("The pod or workload that waits for the cut.", max_length=400)]
    pods: Annotated[tuple[DrainedPod, ...], about("The pods that were asked to leave.", max_items=16)]
    since: Annotated[Timestamp, about("When.")]


class CardSpec(ApiStruct, frozen=True):
    """What one GPU is to be."""

    uuid: Annotated[str, about("UUID of the GPU, GPU-….", max_length=64)]
    mig: Annotated[MIGLayout, about("Desired layout. Slices that must change are not offered until the GPU is cut.")]
    since: Annotated[Timestamp | None, about("When this layout was first requested.")] = None
    drain: Annotated[Drain | None, about("Pods that must leave before the cut; absent if there are none.")] = None


class NodeSharing(ApiStruct, frozen=True):
    """How the node offers its GPUs."""

    method: Annotated[str, about("How pods share a GPU; empty: not at all.", enum=("", "mps", "timeslicing"))] = ""
    replicas: Annotated[int, about("Shares of each GPU; 0: GPUs are whole.", ge=0, le=32)] = 0
    policy: Annotated[str, about("The GPUSharingPolicy that decided it.", max_length=253)] = ""


class GPUNodeSpec(ApiStruct, frozen=True):
    """How the node is observed, and how its GPUs are divided."""

    source: Annotated[str, about("The component that writes the status.", enum=Source)] = str(Source.AGENT)
    cards: Annotated[
        tuple[CardSpec, ...],
        about(
            "GPUs that KGWE cuts, written by the MIG controller. Other GPUs are not changed.",
            max_items=64,
            schema=_ATOMIC,
        ),
    ] = ()
    sharing: Annotated[
        NodeSharing | None,
        about(
            "Shares that KGWE's device plugin offers, written by the scheduler as a GPUSharingPolicy says. Absent: as"
            " the setting devicePluginReplicas of the agent says."
        ),
    ] = None


class PCIeLocation(ApiStruct, frozen=True):
    """Where a device sits in the PCIe tree."""

    busID: Annotated[str, about("Bus id as the driver prints it, 00000000:1B:00.0.", max_length=32)] = ""
    rootComplex: Annotated[str, about("Host bridge above it; left out when not known.", max_length=64)] = ""
    switches: Annotated[
        tuple[str, ...],
        about("PCIe switches between host bridge and device, outermost first; empty when there are none.", max_items=8),
    ] = ()


class NVLinkPeer(ApiStruct, frozen=True):
    """Direct NVLinks to one other GPU."""

    gpu: Annotated[int, about("Index of the other GPU.", ge=0)]
    links: Annotated[int, about("Links that are up.", ge=0)]
    maxLinks: Annotated[int, about("Links that are wired.", ge=0)]


class NVLinkState(ApiStruct, frozen=True):
    """The NVLinks of a GPU. Behind an NVSwitch every link reaches every peer, so no peers are listed."""

    version: Annotated[int, about("NVLink generation.", ge=1)]
    links: Annotated[int, about("Links that are up.", ge=0)]
    maxLinks: Annotated[int, about("Links that are wired.", ge=0)]
    nvSwitch: Annotated[bool, about("Whether the links lead into an NVSwitch that joins all GPUs.")] = False
    bandwidthGBps: Annotated[float, about("All links that are up together, one direction, in GB/s.", ge=0)] = 0.0
    peers: Annotated[tuple[NVLinkPeer, ...], about("GPUs linked directly.", max_items=64)] = ()


class MIGInstance(ApiStruct, frozen=True):
    """A slice of the GPU."""

    uuid: Annotated[str, about("Identity of the slice, MIG-….", max_length=64)]
    profile: Annotated[str, about("Its size, such as 3g.40gb.", max_length=32)]
    instanceID: Annotated[int, about("GPU instance id, as in the metrics' GPU_I_ID.", ge=0)]
    start: Annotated[int, about("First memory slice it occupies.", ge=0)]
    size: Annotated[int, about("How many memory slices it occupies.", ge=1)]
    memoryMiB: Annotated[int, about("Its memory in MiB.", ge=0)]


class MIGState(ApiStruct, frozen=True):
    """Whether and how the GPU is cut."""

    capable: Annotated[bool, about("Whether the GPU supports MIG.")] = False
    enabled: Annotated[bool, about("Whether MIG mode is on: then only slices can be used.")] = False
    instances: Annotated[tuple[MIGInstance, ...], about("The slices.", max_items=16)] = ()
    phase: Annotated[str, about("Progress towards the layout in spec.cards; absent if it is reached.", enum=Phase)] = ""
    message: Annotated[str, about("Current step, or what prevents the cut.", max_length=512)] = ""


class GPUHealth(ApiStruct, frozen=True):
    """Whether the GPU may be given work, and why not."""

    state: Annotated[
        str,
        about(
            "Unhealthy GPUs are not used. Degraded GPUs are used although something is wrong. "
            "Unknown means that the GPU does not respond.",
            enum=HealthState,
        ),
    ]
    reason: Annotated[str, about("Why, as one CamelCase word.", max_length=128)] = ""
    message: Annotated[str, about("Why, as a sentence.", max_length=1024)] = ""
    lastXID: Annotated[int | None, about("The last XID error of the driver.", ge=0)] = None
    lastTransitionTime: Annotated[Timestamp | None, about("When the state last changed.")] = None
    action: Annotated[str, about("Recommended action; absent if none is needed.", enum=Action)] = ""
    resetBelowJoules: Annotated[
        float | None,
        about("While only a reset helps: an energy counter below this value shows that the GPU was reset.", ge=0),
    ] = None


class LinkReliability(ApiStruct, frozen=True):
    """The past of one NVLink."""

    link: Annotated[int, about("Number of the link.", ge=0)]
    demerits: Annotated[float, about("Demerits of its incidents at that time.", ge=0)]
    asOf: Annotated[Timestamp, about("When these were its demerits; they halve every week.")]


class Reliability(ApiStruct, frozen=True):
    """How far it can be relied on, from what went wrong before. Left out when nothing did."""

    score: Annotated[
        float, about("1 if no incident is known; lower for more and for more recent incidents.", ge=0, le=1)
    ]
    demerits: Annotated[float, about("Demerits of its own incidents at that time.", ge=0)] = 0.0
    asOf: Annotated[Timestamp | None, about("When these were its demerits; they halve every week.")] = None
    links: Annotated[tuple[LinkReliability, ...], about("NVLinks with incidents.", max_items=64, schema=_ATOMIC)] = ()


class HealthIncident(ApiStruct, frozen=True):
    """Something that went wrong."""

    time: Annotated[Timestamp, about("When.")]
    reason: Annotated[str, about("What, as one CamelCase word.", max_length=128)]
    gpu: Annotated[str, about("UUID of the GPU; absent if unknown.", max_length=64)] = ""
    xid: Annotated[int | None, about("XID error of the driver, if it was one.", ge=0)] = None
    link: Annotated[int | None, about("NVLink, if it was one.", ge=0)] = None
    count: Annotated[int, about("How often in a row, rounded down to a power of two.", ge=1)] = 1


class GPUDevice(ApiStruct, frozen=True):
    """One GPU."""

    uuid: Annotated[str, about("UUID of the GPU, GPU-….", max_length=64)]
    index: Annotated[int, about("Number of the GPU on its node.", ge=0)]
    model: Annotated[str, about("Product name as the driver reports it.", max_length=128)]
    memoryMiB: Annotated[int, about("Memory in MiB.", ge=0)]
    health: Annotated[GPUHealth, about("Health of the GPU.")]
    architecture: Annotated[str, about("Generation; left out when not known.", enum=Architecture)] = ""
    computeCapability: Annotated[str, about("CUDA compute capability, such as 9.0.", max_length=8)] = ""
    numaNode: Annotated[int | None, about("NUMA node; left out when not known, which is not node 0.", ge=0)] = None
    cpuAffinity: Annotated[str, about("CPUs near the GPU, such as 0-55,112-167.", max_length=1024)] = ""
    pcie: Annotated[PCIeLocation | None, about("Place in the PCIe tree; left out when not known.")] = None
    nvlink: Annotated[NVLinkState | None, about("Its NVLinks; left out when it has none.")] = None
    mig: Annotated[MIGState, about("MIG state of the GPU.")] = MIGState()
    reliability: Annotated[
        Reliability | None, about("Reliability of the GPU and its links; absent without incidents.")
    ] = None


class NetworkInterface(ApiStruct, frozen=True):
    """A network card GPUs can use."""

    name: Annotated[str, about("Name of the device, such as mlx5_0.", max_length=64)]
    gbitPerSecond: Annotated[int, about("Line rate in Gbit/s.", ge=0)]
    numaNode: Annotated[int | None, about("NUMA node; left out when not known.", ge=0)] = None
    pcie: Annotated[PCIeLocation | None, about("Place in the PCIe tree; left out when not known.")] = None
    rail: Annotated[int | None, about("Which of the parallel networks it is on; left out without rails.", ge=0)] = None


class Fabric(ApiStruct, frozen=True):
    """The NVLink domain that reaches beyond the node."""

    clusterUUID: Annotated[str, about("Identity of the NVLink fabric.", max_length=64)]
    cliqueID: Annotated[int, about("Part of the fabric whose GPUs all reach each other.", ge=0)]

    @property
    def clique(self) -> str:
        """As the label nvidia.com/gpu.clique says it."""
        return f"{self.clusterUUID}.{self.cliqueID}"


class HeldDevices(ApiStruct, frozen=True):
    """What one pod holds, as the kubelet says."""

    pod: Annotated[str, about("Namespace and name of the pod.", max_length=320)]
    uid: Annotated[str, about("Its uid; left out when the agent has not seen the pod itself.", max_length=64)] = ""
    cards: Annotated[str, about("Whole GPUs, as a hexadecimal mask of their numbers.", max_length=16)] = ""
    slices: Annotated[tuple[str, ...], about("MIG slices, each as gpu@start.", max_items=256)] = ()
    replicas: Annotated[
        int, about("How many of these are shares of a GPU that other pods may use too; absent if none is.", ge=0)
    ] = 0


class GPUNodeStatus(ApiStruct, frozen=True):
    """What was observed."""

    gpus: Annotated[tuple[GPUDevice, ...], about("Every GPU of the node.", max_items=64, schema=_ATOMIC)] = ()
    gpuCount: Annotated[int, about("How many GPUs there are.", ge=0)] = 0
    healthyGPUs: Annotated[int, about("How many of them are healthy.", ge=0)] = 0
    model: Annotated[str, about("Product name of the GPUs.", max_length=128)] = ""
    driverVersion: Annotated[str, about("Version of the NVIDIA driver.", max_length=32)] = ""
    cudaVersion: Annotated[str, about("Newest CUDA version the driver can run.", max_length=32)] = ""
    nics: Annotated[tuple[NetworkInterface, ...], about("Network cards.", max_items=64, schema=_ATOMIC)] = ()
    fabric: Annotated[Fabric | None, about("NVLink domain beyond the node; left out when there is none.")] = None
    held: Annotated[
        tuple[HeldDevices, ...],
        about(
            "Pods that hold GPUs or slices, as the kubelet reports them. Nothing is known about other pods.",
            max_items=512,
            schema=_ATOMIC,
        ),
    ] = ()
    bootID: Annotated[
        str, about("Boot ID of the machine; another one means that every GPU was reset.", max_length=64)
    ] = ""
    reliability: Annotated[
        Reliability | None, about("Reliability of the node with all its GPUs; absent without incidents.")
    ] = None
    incidents: Annotated[
        tuple[HealthIncident, ...], about("Recent incidents, the latest last.", max_items=32, schema=_ATOMIC)
    ] = ()
    heartbeatTime: Annotated[
        Timestamp | None, about("Time of the agent's last heartbeat; if it is old, no agent runs.")
    ] = None
    conditions: Conditions = ()


class GPUNode(CustomObject, frozen=True):
    """The GPUs of one node: identity, topology, MIG slices and health."""

    definition: ClassVar = Definition(
        group="kgwe.nvidia.io",
        version="v1",
        kind="GPUNode",
        plural="gpunodes",
        namespaced=False,
        short_names=("gpun", "gn"),
        columns=(
            Column("GPUs", ".status.gpuCount", "integer"),
            Column("Healthy", ".status.healthyGPUs", "integer"),
            Column("Model", ".status.model"),
            Column("Driver", ".status.driverVersion", priority=1),
            Column("Clique", ".status.fabric.clusterUUID", priority=1, description="NVLink domain beyond the node."),
            Column("Reliability", ".status.reliability.score", "number", priority=1, description="1 when left out."),
            Column("Source", ".spec.source", priority=1),
            Column("Heartbeat", ".status.heartbeatTime", "date", priority=1, description="Last sign of its agent."),
            AGE,
        ),
    )

    spec: GPUNodeSpec = GPUNodeSpec()
    status: GPUNodeStatus = GPUNodeStatus()
