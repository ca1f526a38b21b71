"""AutoscalingPolicy: when and how far the GPU fleet grows and shrinks, pool by pool."""

from enum import StrEnum
from typing import Annotated, ClassVar

from kgwe.kube.api.schema import AGE, ApiStruct, Column, Conditions, CustomObject, Definition, Rule, Timestamp, about


class Provider(StrEnum):
    AWS = "aws"
    GCP = "gcp"
    AZURE = "azure"
    KWOK = "kwok"
    CUSTOM = "custom"


class CapacityType(StrEnum):
    SPOT = "spot"
    ON_DEMAND = "on-demand"
    RESERVED = "reserved"


class PoolTaint(ApiStruct, frozen=True):
    """A taint of the pool's nodes."""

    key: Annotated[str, about("Taint key.", min_length=1, max_length=317)]
    effect: Annotated[str, about("Taint effect.", enum=("NoSchedule", "PreferNoSchedule", "NoExecute"))]
    value: Annotated[str, about("Taint value.", max_length=63)] = ""


class NodePool(ApiStruct, frozen=True):
    """A group of nodes that are alike."""

    rules: ClassVar = (
        Rule(
            "self.minSize <= self.maxSize",
            "minSize of a node pool is above its maxSize: lower minSize or raise maxSize",
            field=".minSize",
        ),
        Rule(
            "!(has(self.capacityType) && has(self.spotPercentage))",
            "a node pool with a capacityType is all of that type: remove spotPercentage, or remove capacityType to mix",
            field=".spotPercentage",
        ),
    )

    name: Annotated[str, about("Name of the pool at the provider.", min_length=1, max_length=63)]
    minSize: Annotated[int, about("Never fewer nodes.", ge=0, le=10_000)] = 0
    maxSize: Annotated[int, about("Never more nodes.", ge=0, le=10_000)] = 100
    gpuType: Annotated[str, about("GPU model of its nodes, such as H100.", max_length=128)] = ""
    gpusPerNode: Annotated[
        int | None,
        about("GPUs of each node; needed to plan for a pool that has no node yet to look at.", ge=1, le=16),
    ] = None
    instanceTypes: Annotated[
        tuple[Annotated[str, about("Instance type.", min_length=1, max_length=63)], ...],
        about("Instance types to choose from, the preferred first.", max_items=32),
    ] = ()
    capacityType: Annotated[
        str, about("How its nodes are bought; spot and on-demand are mixed when left out.", enum=CapacityType)
    ] = ""
    spotPercentage: Annotated[
        float | None,
        about(
            "Fraction of spot nodes in a mixed pool, 0 to 1; the policy's spotInstancePercentage when left out.",
            ge=0,
            le=1,
        ),
    ] = None
    priority: Annotated[int, about("Pools of higher priority grow first.", ge=0, le=1_000_000)] = 0
    labels: Annotated[dict[str, str], about("Labels of its nodes.", max_keys=64)] = {}
    taints: Annotated[tuple[PoolTaint, ...], about("Taints of its nodes.", max_items=32, keys=("key", "effect"))] = ()
    availabilityZones: Annotated[
        tuple[Annotated[str, about("Zone.", min_length=1, max_length=63)], ...],
        about("Zones its nodes may be in.", max_items=16, unique=True),
    ] = ()
    cpu: Annotated[
        str, about("CPU that a node offers to pods, such as 184; needed while the pool has no node.", max_length=32)
    ] = ""
    memory: Annotated[
        str, about("Memory that a node offers to pods, such as 1900Gi; needed like cpu.", max_length=32)
    ] = ""
    sharesPerGPU: Annotated[
        int, about("Shares that each GPU is divided into after the node has joined; 0: whole GPUs.", ge=0, le=100)
    ] = 0
    migLayout: Annotated[
        tuple[Annotated[str, about("MIG profile, such as 3g.40gb.", min_length=1, max_length=32)], ...],
        about("Slices of every GPU after the node has joined, in the order of their places.", max_items=8),
    ] = ()
    nodesPerLeaf: Annotated[
        int,
        about(
            "Nodes that one leaf or placement group holds; 0: no two nodes are promised to be near.", ge=0, le=10_000
        ),
    ] = 0
    pricePerHour: Annotated[
        str, about("Price of one node in US dollars per hour; the price list counts when left out.", max_length=32)
    ] = ""
    template: Annotated[
        str,
        about("What the provider calls the rest: launch template, scale set, group or node class.", max_length=253),
    ] = ""
    startupTaints: Annotated[
        tuple[Annotated[str, about("Key of the taint.", min_length=1, max_length=317)], ...],
        about("Taints that are gone when a node is ready.", max_items=8, unique=True),
    ] = ()


class LaunchTimes(ApiStruct, frozen=True):
    """How long a new node may take."""

    joinTimeoutSeconds: Annotated[int, about("Until its node joins the cluster.", ge=1, le=86_400)] = 600
    gpuReadyTimeoutSeconds: Annotated[
        int, about("From then until it offers all of its GPUs; later it is replaced.", ge=1, le=86_400)
    ] = 900
    repairAfterSeconds: Annotated[
        int, about("How long a node may lack GPUs that it had before it is replaced.", ge=1, le=86_400)
    ] = 300


class ScaleDown(ApiStruct, frozen=True):
    """When nodes go."""

    enabled: Annotated[bool, about("Whether nodes are removed at all.")] = True
    idleSeconds: Annotated[int, about("How long a node must be empty.", ge=0, le=86_400)] = 600
    gracePeriodSeconds: Annotated[
        int, about("How long a drained node stays before it is removed.", ge=0, le=86_400)
    ] = 30
    autoConsolidate: Annotated[
        bool, about("Whether nodes that do little are emptied, if the engine has a place for every pod.")
    ] = False
    minRunSeconds: Annotated[int, about("A pod that runs for a shorter time is not moved.", ge=0, le=604_800)] = 600


class AutoscalingPolicySpec(ApiStruct, frozen=True):
    """The limits and the pace of growing and shrinking."""

    rules: ClassVar = (
        Rule(
            "self.minNodes <= self.maxNodes",
            "minNodes is above maxNodes: lower minNodes or raise maxNodes",
            field=".minNodes",
        ),
        Rule(
            "self.scaleDownThreshold < self.scaleUpThreshold",
            "scaleDownThreshold must be below scaleUpThreshold, or nodes would be added and removed in turns",
            field=".scaleDownThreshold",
        ),
        Rule(
            "self.enableSpotInstances || !has(self.nodePools)"
            " || self.nodePools.all(pool, !has(pool.capacityType) || pool.capacityType != 'spot')",
            "a node pool has capacityType spot but enableSpotInstances is false: enable spot or change the pool",
            field=".nodePools",
        ),
        Rule(
            "!has(self.nodePools) || self.nodePools.map(pool, pool.minSize).sum() <= self.maxNodes",
            "the minSize of all nodePools together is above maxNodes: raise maxNodes or lower some minSize",
            field=".maxNodes",
        ),
    )

    provider: Annotated[str, about("Who provides the nodes.", enum=Provider)]
    enabled: Annotated[bool, about("Whether the policy acts; false keeps watching and reporting.")] = True
    scaleUpThreshold: Annotated[
        float,
        about("Fraction of GPUs in use above which spare capacity is added, 0 to 1 (0.8 is 80 %).", ge=0, le=1),
    ] = 0.8
    scaleDownThreshold: Annotated[
        float, about("A node whose GPUs are in use below this fraction may go, 0 to 1 (0.2 is 20 %).", ge=0, le=1)
    ] = 0.2
    scaleUpCooldownSeconds: Annotated[int, about("Least time between two scale-ups.", ge=0, le=86_400)] = 180
    scaleDownCooldownSeconds: Annotated[int, about("Least time between two scale-downs.", ge=0, le=86_400)] = 600
    pendingPodTimeoutSeconds: Annotated[
        int, about("How long a pod must be unschedulable before nodes are added for it.", ge=0, le=86_400)
    ] = 120
    minNodes: Annotated[int, about("Never fewer GPU nodes.", ge=0, le=10_000)] = 0
    maxNodes: Annotated[int, about("Never more GPU nodes.", ge=0, le=10_000)] = 100
    enableSpotInstances: Annotated[bool, about("Whether spot nodes are bought at all.")] = True
    spotInstancePercentage: Annotated[
        float, about("Fraction of spot nodes aimed at, 0 to 1 (0.6 is 60 %).", ge=0, le=1)
    ] = 0.6
    enableMultiTierScaling: Annotated[
        bool, about("Whether reserved capacity is used before spot, and spot before on-demand.")
    ] = True
    enablePredictiveScaling: Annotated[bool, about("Whether nodes are added ahead of forecast demand.")] = False
    nodeSelector: Annotated[
        dict[str, str], about("Labels of the nodes the policy is about; all GPU nodes when left out.", max_keys=16)
    ] = {}
    nodePools: Annotated[
        tuple[NodePool, ...], about("The pools that grow and shrink.", max_items=64, keys=("name",))
    ] = ()
    dryRun: Annotated[bool, about("Whether plans are only shown in the status; nothing is bought or removed.")] = False
    launch: Annotated[LaunchTimes, about("How long a new node may take.")] = LaunchTimes()
    scaleDown: Annotated[ScaleDown, about("When nodes go.")] = ScaleDown()


class PredictiveScalingStatus(ApiStruct, frozen=True):
    """What the forecast says."""

    enabled: Annotated[bool, about("Whether forecasts are acted on.")] = False
    predictedUtilization: Annotated[float | None, about("Fraction of GPUs expected in use.", ge=0, le=1)] = None
    recommendedNodes: Annotated[int | None, about("Nodes that would need.", ge=0)] = None
    confidence: Annotated[float | None, about("How sure the forecast is, 0 to 1.", ge=0, le=1)] = None
    nextBusyPeriod: Annotated[Timestamp | None, about("When demand is expected to rise next.")] = None


class LaunchRecord(ApiStruct, frozen=True):
    """A purchase that is under way. It is written before the provider is asked, so that nothing is bought twice."""

    requestID: Annotated[str, about("Name of the purchase at the provider.", min_length=1, max_length=36)]
    pool: Annotated[str, about("Node pool.")]
    instanceType: Annotated[str, about("Instance type.")]
    zone: Annotated[str, about("Zone.")]
    capacityType: Annotated[str, about("spot, on-demand or reserved.")]
    count: Annotated[int, about("Nodes.", ge=1)]
    time: Annotated[Timestamp, about("When it was decided.")]
    atomic: Annotated[bool, about("All nodes or none: they are for a gang.")] = False
    placementGroup: Annotated[str, about("Group of nodes that are near to each other.")] = ""
    sent: Annotated[bool, about("Whether the provider has confirmed it.")] = False
    attempts: Annotated[int, about("How often the provider was asked.", ge=0)] = 0
    promised: Annotated[dict[str, int], about("Devices that each node will offer.")] = {}
    owners: Annotated[
        tuple[Annotated[str, about("Workload, gang or pod.")], ...], about("What it is for, at most ten.")
    ] = ()


class PlannedNodes(ApiStruct, frozen=True):
    """Equal nodes of the last plan."""

    pool: Annotated[str, about("Node pool.")]
    instanceType: Annotated[str, about("Instance type.")]
    zone: Annotated[str, about("Zone.")]
    capacityType: Annotated[str, about("spot, on-demand or reserved.")]
    count: Annotated[int, about("Nodes.", ge=1)]
    pricePerHour: Annotated[str, about("Of one node, in US dollars.")] = ""
    reason: Annotated[str, about("What they are for.")] = ""


class UnmetDemand(ApiStruct, frozen=True):
    """Something that waits, and for which nothing is bought."""

    owner: Annotated[str, about("Workload, gang or pod.")]
    reason: Annotated[str, about("Why, as one word.")]
    message: Annotated[str, about("Why, as a sentence.")] = ""


class BlockedOffer(ApiStruct, frozen=True):
    """What the provider refused, and until when it is not asked again."""

    pool: Annotated[str, about("Node pool.")]
    instanceType: Annotated[str, about("Instance type.")]
    zone: Annotated[str, about("Zone.")]
    capacityType: Annotated[str, about("spot, on-demand or reserved.")]
    kind: Annotated[str, about("Kind of the error.")]
    time: Annotated[Timestamp, about("When it happened last.")]
    until: Annotated[Timestamp, about("When it may be tried again.")]
    repeats: Annotated[int, about("How often it was repeated.", ge=0)] = 0
    generation: Annotated[int, about("Of the policy when it happened.", ge=0)] = 0
    message: Annotated[str, about("What the provider said.")] = ""


class ScaleAction(ApiStruct, frozen=True):
    """Something that was done."""

    time: Annotated[Timestamp, about("When.")]
    action: Annotated[str, about("ScaleUp, Drain, UndoDrain, ScaleDown, Replace or LaunchFailed.")]
    pool: Annotated[str, about("Node pool.")] = ""
    nodes: Annotated[int, about("Nodes.", ge=0)] = 0
    reason: Annotated[str, about("Why.")] = ""


class StageCount(ApiStruct, frozen=True):
    """Nodes in one stage of their life."""

    stage: Annotated[str, about("Requested, Launching, Joined, GPUReady, InUse, Broken, Draining or Removing.")]
    nodes: Annotated[int, about("Nodes.", ge=0)]


class KeptNode(ApiStruct, frozen=True):
    """A node that could do with less, and why it stays."""

    node: Annotated[str, about("Node.")]
    reason: Annotated[str, about("Why it stays, as one word.")]
    message: Annotated[str, about("The pod, budget or pool that is the cause.")] = ""


class CapacityChoice(ApiStruct, frozen=True):
    """What is bought for work that may run on spot nodes, and why."""

    owner: Annotated[str, about("Workload, gang or pod.")]
    choice: Annotated[str, about("spot, wait or on-demand.")]
    reason: Annotated[str, about("Why, as one word.")]
    message: Annotated[str, about("Why, as a sentence.")] = ""


class ObservedRuns(ApiStruct, frozen=True):
    """Hours and ends of runs by age: below 15 minutes, 1 hour, 4 hours, and above."""

    nodes: Annotated[int, about("Nodes of the gang; 0: times in which no node could be bought.", ge=0)] = 0
    hours: Annotated[tuple[Annotated[float, about("Hours.", ge=0)], ...], about("Hours observed.", max_items=4)] = ()
    ends: Annotated[tuple[Annotated[float, about("Ends.", ge=0)], ...], about("Runs that ended.", max_items=4)] = ()
    ageHours: Annotated[float, about("Age of the present run.", ge=0)] = 0.0


class ObservedSpot(ApiStruct, frozen=True):
    """What was observed of one kind of spot nodes: the gang-survival curve, and times without capacity."""

    pool: Annotated[str, about("Node pool.")]
    instanceType: Annotated[str, about("Instance type.")]
    zone: Annotated[str, about("Zone.")]
    lostAt: Annotated[Timestamp | None, about("When nodes were taken back last.")] = None
    runs: Annotated[tuple[ObservedRuns, ...], about("Runs by size of the gang.", max_items=8)] = ()


class Interruption(ApiStruct, frozen=True):
    """Spot nodes that the provider took back at one time."""

    time: Annotated[Timestamp, about("When it was seen.")]
    pool: Annotated[str, about("Node pool.")]
    nodes: Annotated[int, about("Nodes.", ge=1)]


class AutoscalingPolicyStatus(ApiStruct, frozen=True):
    """The fleet as the policy sees it; a number that is not known is left out, not zero."""

    currentNodes: Annotated[int | None, about("GPU nodes now.", ge=0)] = None
    desiredNodes: Annotated[int | None, about("GPU nodes wanted.", ge=0)] = None
    spotNodes: Annotated[int | None, about("Of these, spot.", ge=0)] = None
    onDemandNodes: Annotated[int | None, about("Of these, on-demand.", ge=0)] = None
    reservedNodes: Annotated[int | None, about("Of these, reserved.", ge=0)] = None
    averageGPUUtilization: Annotated[float | None, about("Fraction of GPUs in use, 0 to 1.", ge=0, le=1)] = None
    pendingPods: Annotated[int | None, about("Unschedulable GPU pods.", ge=0)] = None
    lastScaleUpTime: Annotated[Timestamp | None, about("When nodes were last added.")] = None
    lastScaleDownTime: Annotated[Timestamp | None, about("When nodes were last removed.")] = None
    lastScaleAction: Annotated[str, about("What was last done.", max_length=1024)] = ""
    lastScaleReason: Annotated[str, about("Why it was done.", max_length=4096)] = ""
    spotInterruptions: Annotated[int | None, about("Spot nodes taken back in the last 24 hours.", ge=0)] = None
    estimatedMonthlyCost: Annotated[str, about("Cost of a month at the present size; a decimal, in US dollars.")] = ""
    estimatedMonthlySavings: Annotated[str, about("Saved against all on-demand; a decimal, in US dollars.")] = ""
    predictiveScaling: Annotated[PredictiveScalingStatus | None, about("What the forecast says.")] = None
    stages: Annotated[tuple[StageCount, ...], about("Nodes by the stage of their life.")] = ()
    sequence: Annotated[int, about("Number of the last purchase.", ge=0)] = 0
    launches: Annotated[tuple[LaunchRecord, ...], about("Purchases that are under way.", max_items=512)] = ()
    plan: Annotated[tuple[PlannedNodes, ...], about("What the last plan buys.", max_items=64)] = ()
    unmet: Annotated[tuple[UnmetDemand, ...], about("What waits without a purchase.", max_items=32)] = ()
    blocked: Annotated[tuple[BlockedOffer, ...], about("What the provider refused.", max_items=64)] = ()
    choices: Annotated[
        tuple[CapacityChoice, ...], about("Spot, wait or on-demand for what waits, with the reason.", max_items=32)
    ] = ()
    observedSpot: Annotated[
        tuple[ObservedSpot, ...], about("What was observed of spot nodes; risks are estimated from it.", max_items=64)
    ] = ()
    interruptions: Annotated[
        tuple[Interruption, ...], about("Spot nodes taken back in the last 24 hours.", max_items=64)
    ] = ()
    kept: Annotated[tuple[KeptNode, ...], about("Nodes that stay, with the reason.", max_items=32)] = ()
    orphans: Annotated[
        tuple[Annotated[str, about("Instance.")], ...],
        about("Instances that the provider lists and that no purchase, node or pool explains.", max_items=64),
    ] = ()
    actions: Annotated[tuple[ScaleAction, ...], about("What was done last, the newest first.", max_items=32)] = ()
    observedGeneration: Annotated[int, about("The metadata.generation this status is about.", ge=0)] = 0
    conditions: Conditions = ()


class AutoscalingPolicy(CustomObject, frozen=True):
    """When and how far the GPU fleet grows and shrinks."""

    definition: ClassVar = Definition(
        group="kgwe.nvidia.io",
        version="v1",
        kind="AutoscalingPolicy",
        plural="autoscalingpolicies",
        namespaced=False,
        short_names=("asp",),
        columns=(
            Column("Provider", ".spec.provider"),
            Column("Enabled", ".spec.enabled", "boolean"),
            Column("Min", ".spec.minNodes", "integer"),
            Column("Max", ".spec.maxNodes", "integer"),
            Column("Nodes", ".status.currentNodes", "integer"),
            Column("Desired", ".status.desiredNodes", "integer"),
            Column("Pending-Pods", ".status.pendingPods", "integer"),
            AGE,
            Column("Last-Action", ".status.lastScaleAction", priority=1),
        ),
    )

    spec: AutoscalingPolicySpec
    status: AutoscalingPolicyStatus = AutoscalingPolicyStatus()
