"""TopologyDomain: a part of the network, for clusters whose nodes do not say by labels where they hang."""

import enum
from typing import Annotated, ClassVar

from kgwe.kube.api.schema import AGE, ApiStruct, Column, Conditions, CustomObject, Definition, Rule, Timestamp, about


class DomainType(enum.StrEnum):
    """Kinds of domain, from the node outwards."""

    NVLINK = "NVLink"
    LEAF = "Leaf"
    SPINE = "Spine"
    CORE = "Core"
    ZONE = "Zone"


class TopologyDomainSpec(ApiStruct, frozen=True):
    """What belongs to the domain and how fast it is inside."""

    rules: ClassVar = (
        Rule(
            "!(has(self.nodes) && has(self.nodeSelector))",
            "name the members once: either nodes or nodeSelector",
        ),
        Rule(
            "self.type in ['Leaf', 'NVLink'] || !(has(self.nodes) || has(self.nodeSelector))",
            "only a Leaf or NVLink domain has nodes of its own; in the others name this domain as parent of lower ones",
        ),
    )

    type: Annotated[str, about("What kind of domain it is.", enum=DomainType)]
    parent: Annotated[str, about("The domain it lies in, by name; left out at the top.", max_length=253)] = ""
    nodes: Annotated[tuple[str, ...], about("Names of its nodes.", unique=True, max_items=5000)] = ()
    nodeSelector: Annotated[dict[str, str], about("Labels of its nodes, instead of naming them.", max_keys=16)] = {}
    connected: Annotated[
        tuple[str, ...],
        about("Domains of the same kind that are nearer than the common parent suggests.", unique=True, max_items=256),
    ] = ()
    bandwidthGBps: Annotated[
        float | None, about("Bandwidth of one node inside the domain, one direction, in GB/s.", gt=0)
    ] = None
    oversubscription: Annotated[
        float | None, about("Bandwidth of the members over bandwidth towards the parent; 1 is non-blocking.", ge=1)
    ] = None


class WorkloadOutcomes(ApiStruct, frozen=True):
    """What became of workloads in the domain. Counts halve every week."""

    completed: Annotated[float, about("Workloads that completed.", ge=0)] = 0.0
    lost: Annotated[float, about("Times a workload lost a node or GPU here.", ge=0)] = 0.0
    asOf: Annotated[Timestamp | None, about("Time of these counts; they halve every week.")] = None


class TopologyDomainStatus(ApiStruct, frozen=True):
    """How full the domain is; written by the controller."""

    nodes: Annotated[int, about("Nodes in it, those of lower domains included.", ge=0)] = 0
    gpus: Annotated[int, about("GPUs in it.", ge=0)] = 0
    freeGPUs: Annotated[int, about("Healthy GPUs that are neither in use nor reserved.", ge=0)] = 0
    outcomes: Annotated[WorkloadOutcomes | None, about("How workloads ended here; part of the domain's score.")] = None
    observedGeneration: Annotated[int, about("The metadata.generation this status is about.", ge=0)] = 0
    conditions: Conditions = ()


class TopologyDomain(CustomObject, frozen=True):
    """A part of the network whose members are near each other."""

    definition: ClassVar = Definition(
        group="kgwe.nvidia.io",
        version="v1",
        kind="TopologyDomain",
        plural="topologydomains",
        namespaced=False,
        short_names=("topod", "td"),
        columns=(
            Column("Type", ".spec.type"),
            Column("Parent", ".spec.parent"),
            Column("Nodes", ".status.nodes", "integer"),
            Column("GPUs", ".status.gpus", "integer"),
            Column("Free", ".status.freeGPUs", "integer"),
            Column("Ready", ".status.conditions[?(@.type=='Ready')].status"),
            AGE,
        ),
    )

    spec: TopologyDomainSpec
    status: TopologyDomainStatus = TopologyDomainStatus()
