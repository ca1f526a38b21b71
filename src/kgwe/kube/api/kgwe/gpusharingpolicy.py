"""GPUSharingPolicy: how nodes divide their GPUs, and which workloads get a share or slice instead of a whole GPU."""

from enum import StrEnum
from typing import Annotated, ClassVar

from kgwe.kube.api.kgwe.mig import PROFILES
from kgwe.kube.api.schema import AGE, ApiStruct, Column, Conditions, CustomObject, Definition, about
from kgwe.model.devices import shares


class SharingStrategy(StrEnum):
    """How GPUs are shared."""

    MIG = "mig"
    MPS = "mps"
    TIMESLICING = "timeslicing"
    EXCLUSIVE = "exclusive"
    AUTO = "auto"


class MIGConfig(ApiStruct, frozen=True):
    """Which slices are used."""

    profile: Annotated[
        str,
        about(
            "MIG profile of the slices. The MIG controller cuts the MIG-capable GPUs of the selected nodes into it.",
            enum=("", *PROFILES),
        ),
    ] = ""
    autoSelectProfile: Annotated[
        bool, about("Without a profile: whether a workload gets the smallest slice that exists, is free and fits.")
    ] = True


class MPSConfig(ApiStruct, frozen=True):
    """How many clients share a GPU by MPS."""

    maxClients: Annotated[int, about("Shares of each GPU.", ge=shares.FEWEST, le=shares.MOST)] = 16


class TimeSlicingConfig(ApiStruct, frozen=True):
    """How many pods share a GPU by time-slicing."""

    replicasPerGPU: Annotated[int, about("Shares of each GPU.", ge=shares.FEWEST, le=16)] = 4


class GPUSharingPolicySpec(ApiStruct, frozen=True):
    """Which nodes and workloads, and how."""

    strategy: Annotated[
        str,
        about(
            "How GPUs are shared. mig: slices. mps, timeslicing: shares. exclusive: whole GPUs only. auto: a slice if"
            " one that fits is free, else a share, else a whole GPU.",
            enum=SharingStrategy,
        ),
    ]
    nodeSelector: Annotated[
        dict[str, str],
        about("Labels of the nodes whose GPUs the policy divides. Left out: no node is changed."),
    ] = {}
    namespaceSelector: Annotated[
        dict[str, str], about("Labels of the namespaces whose workloads the policy is about. Left out: all.")
    ] = {}
    podSelector: Annotated[
        dict[str, str],
        about(
            "Labels of the workloads, on the GPUWorkload or its pod template. Left out: light ones, which are those of"
            " type Visualization, DataPreprocessing and Inference."
        ),
    ] = {}
    priority: Annotated[
        int, about("Of several policies that select a node or workload, the highest applies.", ge=0, le=1_000_000)
    ] = 0
    migConfig: Annotated[MIGConfig, about("For mig and auto.")] = MIGConfig()
    mpsConfig: Annotated[MPSConfig, about("For mps.")] = MPSConfig()
    timeSlicingConfig: Annotated[TimeSlicingConfig, about("For timeslicing and auto.")] = TimeSlicingConfig()


class NotApplied(ApiStruct, frozen=True):
    """Workloads that the policy selects and that keep their whole GPU, for one reason."""

    reason: Annotated[str, about("Why, in one word.", max_length=64)]
    message: Annotated[str, about("Why, for the first of them.", max_length=512)] = ""
    workloads: Annotated[int, about("How many.", ge=1)] = 1
    examples: Annotated[tuple[str, ...], about("The first of them, as namespace/name.", max_items=5)] = ()


class GPUSharingPolicyStatus(ApiStruct, frozen=True):
    """What the policy does; written by the scheduler."""

    appliedPods: Annotated[int, about("Workloads that have a share or slice by this policy.", ge=0)] = 0
    appliedWorkloads: Annotated[tuple[str, ...], about("The first of them, as namespace/name.", max_items=100)] = ()
    wholeGPUs: Annotated[int, about("Whole GPUs that these workloads ask for in their specs.", ge=0)] = 0
    effectiveGPUs: Annotated[float, about("GPUs that they use together, as the sum of their parts.", ge=0)] = 0.0
    notApplied: Annotated[tuple[NotApplied, ...], about("Selected workloads without it, by reason.", max_items=16)] = ()
    nodes: Annotated[int, about("Nodes whose GPUs the policy divides.", ge=0)] = 0
    observedGeneration: Annotated[int, about("The metadata.generation this status is about.", ge=0)] = 0
    conditions: Conditions = ()


class GPUSharingPolicy(CustomObject, frozen=True):
    """How nodes divide their GPUs, and which workloads get a part instead of a whole GPU."""

    definition: ClassVar = Definition(
        group="kgwe.nvidia.io",
        version="v1",
        kind="GPUSharingPolicy",
        plural="gpusharingpolicies",
        namespaced=False,
        short_names=("gsp",),
        columns=(
            Column("Strategy", ".spec.strategy"),
            Column("Priority", ".spec.priority", "integer"),
            Column("Applied", ".status.appliedPods", "integer"),
            Column("Nodes", ".status.nodes", "integer"),
            Column("Conflict", ".status.conditions[?(@.type=='Conflict')].status"),
            AGE,
        ),
    )

    spec: GPUSharingPolicySpec
    status: GPUSharingPolicyStatus = GPUSharingPolicyStatus()
