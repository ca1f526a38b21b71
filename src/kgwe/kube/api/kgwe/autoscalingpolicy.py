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


class PredictiveScalingStatus(ApiStruct, frozen=True):
    """What the forecast says."""

    enabled: Annotated[bool, about("Whether forecasts are acted on.")] = False
    predictedUtilization: Annotated[float | None, about("Fraction of GPUs expected in use.", ge=0, le=1)] = None
    recommendedNodes: Annotated[int | None, about("Nodes that would need.", ge=0)] = None
    confidence: Annotated[float | None, about("How sure the forecast is, 0 to 1.", ge=0, le=1)] = None
    nextBusyPeriod: Annotated[Timestamp | None, about("When demand is expected to rise next.")] = None


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
