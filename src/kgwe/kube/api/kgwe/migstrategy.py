"""MIGStrategy: how an administrator wants a set of GPUs cut into MIG slices."""

from typing import Annotated, ClassVar

from kgwe.kube.api.kgwe.mig import PROFILES
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
    duration,
)
from kgwe.model.gpu.catalog import Architecture

_IS_KNOWN = "profile in [" + ",".join(f"'{profile}'" for profile in PROFILES) + "]"

DISTRIBUTION_RULES = (
    Rule(
        f"self.all(profile, {_IS_KNOWN})",
        "profileDistribution names a MIG profile that does not exist; profiles look like 1g.10gb or 3g.40gb",
        message_expression="'profileDistribution names a MIG profile that does not exist: '"
        f" + self.filter(profile, !({_IS_KNOWN}))[0]"
        " + '; use names such as 1g.10gb, 2g.20gb or 3g.40gb'",
    ),
    # Three thirds make a little more than one in floating point.
    Rule(
        "self.map(profile, self[profile]).sum() <= 1.000001",
        "the shares in profileDistribution add up to more than 1: they are fractions of the same GPUs, so lower some",
    ),
)

Distribution = Annotated[
    dict[
        str,
        Annotated[
            float,
            about(
                "Share of the memory slices.",
                rules=(
                    Rule(
                        "self > 0.0 && self <= 1.0",
                        "a share in profileDistribution is a fraction above 0 and up to 1: write 0.25 for 25 %",
                    ),
                ),
            ),
        ],
    ],
    about("Profile to share."),
]


class GPUSelector(ApiStruct, frozen=True):
    """Which GPUs of the selected nodes; every given field must match."""

    model: Annotated[str, about("Product name, or a word of it such as A100.", max_length=128)] = ""
    minMemoryGB: Annotated[int | None, about("Least memory of the GPU, in GB.", ge=1, le=1024)] = None
    architecture: Annotated[str, about("Architecture of the GPU.", enum=Architecture)] = ""
    migCapable: Annotated[
        bool,
        about(
            "Always true: other GPUs cannot be cut.",
            rules=(Rule("self", "only MIG-capable GPUs can be cut into slices: remove gpuSelector.migCapable"),),
        ),
    ] = True


class MIGStrategySpec(ApiStruct, frozen=True):
    """Which GPUs to cut, and into what."""

    profileDistribution: Annotated[
        Distribution,
        about(
            "For each profile, the share of the selected GPUs' memory slices to be cut into it. Shares are rounded"
            " over all selected GPUs together (largest remainder first), then laid out card by card as the"
            " hardware allows. What is left of 1 stays whole GPUs.",
            max_keys=16,
            rules=DISTRIBUTION_RULES,
            schema={"minProperties": 1},
        ),
    ]
    nodeSelector: Annotated[dict[str, str], about("Labels the nodes must carry; all nodes when left out.")] = {}
    gpuSelector: Annotated[GPUSelector, about("Which GPUs of those nodes.")] = GPUSelector()
    allowDynamicReconfig: Annotated[
        bool, about("Whether KGWE may change free slices as demand changes. Slices in use are never changed.")
    ] = False
    rebalanceInterval: Annotated[
        str,
        about(
            "How often free slices are changed to follow recent demand, if allowDynamicReconfig is "
            "true. KGWE cuts for waiting workloads at once.",
            max_length=16,
            rules=(duration("rebalanceInterval", "10s"),),
        ),
    ] = "5m"
    minUtilizationThreshold: Annotated[
        float,
        about(
            "Free slices that were in use for at least this fraction of the last interval are changed last.",
            ge=0,
            le=1,
        ),
    ] = 0.3
    priority: Annotated[
        int, about("If two strategies select the same GPU, the higher priority applies.", ge=0, le=1_000_000)
    ] = 0


class MIGStrategyStatus(ApiStruct, frozen=True):
    """What has been cut; written by the controller."""

    appliedNodes: Annotated[
        tuple[str, ...], about("Nodes whose GPUs are cut as the strategy says.", max_items=10_000)
    ] = ()
    currentDistribution: Annotated[dict[str, float], about("Share of the memory slices in each profile now.")] = {}
    lastRebalanceTime: Annotated[Timestamp | None, about("When a layout last changed.")] = None
    observedGeneration: Annotated[int, about("The metadata.generation this status is about.", ge=0)] = 0
    conditions: Conditions = ()


class MIGStrategy(CustomObject, frozen=True):
    """How a set of GPUs is cut into MIG slices."""

    definition: ClassVar = Definition(
        group="kgwe.nvidia.io",
        version="v1",
        kind="MIGStrategy",
        plural="migstrategies",
        namespaced=False,
        short_names=("migs",),
        columns=(
            Column("Priority", ".spec.priority", "integer"),
            Column("Dynamic", ".spec.allowDynamicReconfig", "boolean"),
            Column("Ready", ".status.conditions[?(@.type=='Ready')].status"),
            Column("Last-Rebalance", ".status.lastRebalanceTime", "date"),
            AGE,
        ),
    )

    spec: MIGStrategySpec
    status: MIGStrategyStatus = MIGStrategyStatus()
