"""The kinds in which other systems describe gangs, and which of them a cluster serves.

None of them has to exist. `served` asks the API server once per group and version; what it returns is what to watch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from kgwe import errors
from kgwe.kube.api import gangs
from kgwe.kube.api.resources import JOB, Resource

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kgwe.kube.client.client import KubeClient


def _namespaced_resource(group: str, version: str, plural: str, kind: str, struct: type[Any]) -> Resource[Any]:
    return Resource(group, version, plural, kind, namespaced=True, type=struct)


COSCHEDULING: Final = _namespaced_resource(
    "scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup", gangs.CoschedulingPodGroup
)
COSCHEDULING_OLD: Final = _namespaced_resource(
    "scheduling.sigs.k8s.io", "v1alpha1", "podgroups", "PodGroup", gangs.CoschedulingPodGroup
)
VOLCANO: Final = _namespaced_resource(
    "scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup", gangs.VolcanoPodGroup
)
HYPER_NODE: Final[Resource[Any]] = Resource(
    "topology.volcano.sh", "v1alpha1", "hypernodes", "HyperNode", namespaced=False, type=gangs.HyperNode
)
KAI: Final = _namespaced_resource("scheduling.run.ai", "v2alpha2", "podgroups", "PodGroup", gangs.KaiPodGroup)

#: of Kubernetes itself, the newest version first; a server may serve several
POD_GROUPS: Final = tuple(
    _namespaced_resource("scheduling.k8s.io", version, "podgroups", "PodGroup", gangs.PodGroup)
    for version in ("v1beta1", "v1alpha3", "v1alpha2")
)
#: 1.35 alone has pods that point to a Workload; the later versions of the kind are only templates of PodGroups
WORKLOAD: Final = _namespaced_resource("scheduling.k8s.io", "v1alpha1", "workloads", "Workload", gangs.Workload)

JOB_SET: Final = _namespaced_resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet", gangs.JobSet)
LEADER_WORKER_SET: Final = _namespaced_resource(
    "leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet", gangs.LeaderWorkerSet
)

#: Kubeflow's; the MPI operator's own MPIJob is the newer of the two
TRAINING_JOBS: Final = (
    _namespaced_resource("kubeflow.org", "v2beta1", "mpijobs", "MPIJob", gangs.TrainingJob),
    *(
        _namespaced_resource("kubeflow.org", "v1", f"{kind.lower()}s", kind, gangs.TrainingJob)
        for kind in ("PyTorchJob", "MPIJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob")
    ),
)

#: everything a membership may be read from; of one kind in several versions the first that is served is enough
KINDS: Final[tuple[Resource[Any], ...]] = (
    JOB,
    COSCHEDULING,
    COSCHEDULING_OLD,
    VOLCANO,
    HYPER_NODE,
    KAI,
    *POD_GROUPS,
    WORKLOAD,
    JOB_SET,
    LEADER_WORKER_SET,
    *TRAINING_JOBS,
)


class _Entry(msgspec.Struct):
    name: str


class _Discovery(msgspec.Struct):
    resources: tuple[_Entry, ...] = ()


async def find_served(client: KubeClient, kinds: Iterable[Resource[Any]] = KINDS) -> tuple[Resource[Any], ...]:
    """The kinds that this API server serves, each in one version."""
    plurals: dict[str, frozenset[str]] = {}
    found: dict[tuple[str, str], Resource[Any]] = {}
    for kind in kinds:
        if kind.api_version not in plurals:
            plurals[kind.api_version] = await _list_plurals(client, kind)
        if kind.plural in plurals[kind.api_version]:
            found.setdefault((kind.group, kind.plural), kind)
    return tuple(found.values())


async def find_readable(client: KubeClient) -> tuple[tuple[Resource[Any], ...], dict[Resource[Any], str]]:
    """The kinds that are served and may be read, and why the others that are served may not."""
    found, forbidden = [], {}
    for kind in await find_served(client):
        try:
            await client.request("GET", kind.path(), params={"limit": "1"})
        except errors.Permanent as exc:
            forbidden[kind] = str(exc)
        else:
            found.append(kind)
    return tuple(found), forbidden


async def _list_plurals(client: KubeClient, kind: Resource[Any]) -> frozenset[str]:
    try:
        answer = await client.request("GET", f"/apis/{kind.group}/{kind.version}")
    except errors.NotFound:
        return frozenset()
    return frozenset(each.name for each in msgspec.json.decode(answer, type=_Discovery).resources)
