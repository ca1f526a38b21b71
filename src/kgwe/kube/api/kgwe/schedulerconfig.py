"""SchedulerConfig: the placement settings an administrator changes while the cluster runs."""

from typing import Annotated, ClassVar

from kgwe.kube.api.schema import (
    AGE,
    ApiStruct,
    Column,
    Conditions,
    CustomObject,
    Definition,
    Rule,
    about,
    duration,
)
from kgwe.model.network import domain_labels

#: how a node may be chosen, cluster-wide
STRATEGIES = ("score", "pack", "spread", "leastLoaded", "costOptimized", "mixfit")
#: how pods get their GPUs
DEVICE_MODES = ("DevicePlugin", "DRA")
#: `high` of the small GPUWorkload kind; deploy/priority.yaml has the same number
MAX_UNPRIVILEGED_PRIORITY = 10_000


class NodeWeights(ApiStruct, frozen=True):
    """How much each part of a node's score counts, in percent."""

    rules: ClassVar = (
        Rule(
            "self.topology + self.resource + self.balance == 100",
            "nodeWeights.topology, .resource and .balance are percent: make them add up to 100 (the default is"
            " 40, 35 and 25)",
        ),
    )

    topology: Annotated[int, about("How well the GPUs are wired to each other.", ge=0, le=100)] = 40
    resource: Annotated[int, about("How well the request fills what is free.", ge=0, le=100)] = 35
    balance: Annotated[int, about("How evenly the nodes are loaded.", ge=0, le=100)] = 25


class DomainWeights(ApiStruct, frozen=True):
    """How much each part of a network domain's score counts, in percent."""

    rules: ClassVar = (
        Rule(
            "self.resourceAvailability + self.topologyAlignment + self.domainUtilization"
            " + self.historicalPerformance == 100",
            "domainWeights are percent: make the four add up to 100 (the default is 40, 30, 20 and 10)",
        ),
    )

    resourceAvailability: Annotated[
        int, about("How tightly the workload fills the domain's free capacity.", ge=0, le=100)
    ] = 40
    topologyAlignment: Annotated[
        int, about("Bandwidth between the pods, compared with the best domain.", ge=0, le=100)
    ] = 30
    domainUtilization: Annotated[
        int, about("How full the domain is; fuller is better, to keep others whole.", ge=0, le=100)
    ] = 20
    historicalPerformance: Annotated[int, about("How well workloads ran there before.", ge=0, le=100)] = 10


class TopologyLevel(ApiStruct, frozen=True):
    """One level of the network, such as the leaf switch."""

    name: Annotated[str, about("What to call it: leaf, spine, block.", min_length=1, max_length=63)]
    labels: Annotated[
        tuple[Annotated[str, about("Label key.", min_length=1, max_length=317)], ...],
        about("Node labels that may hold the domain's name; the first one present counts.", min_items=1, max_items=8),
    ]


class TopologyLabels(ApiStruct, frozen=True):
    """Node labels that describe the network."""

    rules: ClassVar = (
        Rule(
            "!(has(self.preset) && has(self.levels))",
            "topology.preset and topology.levels both name the labels: keep one of the two",
        ),
    )

    preset: Annotated[
        str,
        about(
            "A ready-made list of labels: those of topograph 1.0, of topograph before 1.0,"
            " of the cloud providers together or of one of them, or KGWE's own for nodes labelled by hand"
            " (kgwe.nvidia.io/leaf, spine and core). With neither preset nor levels the preset is the one whose labels"
            " the nodes carry.",
            enum=domain_labels.PRESETS,
        ),
    ] = ""
    levels: Annotated[
        tuple[TopologyLevel, ...],
        about("The levels of the network, the nearest to the node first.", min_items=1, max_items=8, keys=("name",)),
    ] = ()


class TopologyConstraints(ApiStruct, frozen=True):
    """Limits on how much of a leaf one workload may take; a leaf's own size is the limit when left out."""

    maxNodesPerLeaf: Annotated[int | None, about("Nodes of one workload under one leaf.", ge=1, le=1024)] = None
    maxGPUsPerLeaf: Annotated[int | None, about("GPUs of one workload under one leaf.", ge=1, le=16_384)] = None


class SchedulerConfigSpec(ApiStruct, frozen=True):
    """Settings of placement; every one has a default."""

    strategy: Annotated[
        str,
        about(
            "How a node is chosen for single pods that name no strategy: score weighs wiring, fill and balance; pack"
            " takes the fullest node, spread the emptiest, leastLoaded the one with most free GPUs, costOptimized the"
            " cheapest; mixfit packs whole GPUs and shares for the mix of pods that arrives.",
            enum=STRATEGIES,
        ),
    ] = "score"
    nodeWeights: Annotated[NodeWeights, about("Weights of a node's score, in percent.")] = NodeWeights()
    domainWeights: Annotated[DomainWeights, about("Weights of a network domain's score, in percent.")] = DomainWeights()
    topology: Annotated[TopologyLabels, about("Node labels that describe the network.")] = TopologyLabels()
    topologyConstraints: Annotated[
        TopologyConstraints, about("Limits on how much of a leaf one workload may take.")
    ] = TopologyConstraints()
    deviceMode: Annotated[
        str, about("How pods of GPUWorkloads get their GPUs, if the workload does not say.", enum=DEVICE_MODES)
    ] = "DevicePlugin"
    enableTopologyAwareness: Annotated[bool, about("Whether GPU and network topology are considered.")] = True
    enableMIGSupport: Annotated[bool, about("Whether MIG slices are placed.")] = True
    enablePreemption: Annotated[bool, about("Whether workloads may stop preemptible workloads of lower priority.")] = (
        True
    )
    maxUnprivilegedPriority: Annotated[
        int,
        about(
            "The highest priority of a GPUWorkload that names no PriorityClass. A higher one needs"
            " podTemplate.spec.priorityClassName, the right to use that class, and counts up to its value.",
            ge=0,
            le=1_000_000,
        ),
    ] = MAX_UNPRIVILEGED_PRIORITY
    enableGangScheduling: Annotated[bool, about("Whether groups of pods start all at once or not at all.")] = True
    maxSchedulingAttempts: Annotated[
        int,
        about(
            "How many placements of a workload in a row may fail (kube-scheduler refuses the node, a quota forbids the"
            " pods) before it stops trying and waits: for an edit of its spec or of this object, a change of the nodes,"
            " or five minutes. Waiting for free GPUs is not counted. Without a SchedulerConfig there is no limit.",
            ge=1,
            le=100,
        ),
    ] = 3
    schedulingTimeout: Annotated[
        str,
        about(
            "How long pods may take to be bound before the plan is given up.",
            max_length=16,
            rules=(duration("schedulingTimeout", "1s"),),
        ),
    ] = "30s"


class SchedulerConfigStatus(ApiStruct, frozen=True):
    """Whether the settings are in use; written by the scheduler."""

    observedGeneration: Annotated[int, about("The metadata.generation in use.", ge=0)] = 0
    conditions: Conditions = ()


class SchedulerConfig(CustomObject, frozen=True):
    """Placement settings that can change while the cluster runs; the object must be named default."""

    definition: ClassVar = Definition(
        group="kgwe.nvidia.io",
        version="v1",
        kind="SchedulerConfig",
        plural="schedulerconfigs",
        namespaced=False,
        # Not sc, which is kubectl's StorageClass.
        short_names=("gsc",),
        columns=(
            Column("Topology", ".spec.nodeWeights.topology", "integer"),
            Column("Resource", ".spec.nodeWeights.resource", "integer"),
            Column("Balance", ".spec.nodeWeights.balance", "integer"),
            Column("Ready", ".status.conditions[?(@.type=='Ready')].status"),
            AGE,
        ),
    )
    rules: ClassVar = (
        Rule(
            "self.metadata.name == 'default'",
            "there is one SchedulerConfig per cluster: name it default",
        ),
    )

    spec: SchedulerConfigSpec = SchedulerConfigSpec()
    status: SchedulerConfigStatus = SchedulerConfigStatus()
