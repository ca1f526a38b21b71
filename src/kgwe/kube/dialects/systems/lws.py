"""LeaderWorkerSet: every group of a leader and its workers is a gang."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe.kube.api import core
from kgwe.kube.api.meta import ObjectMeta
from kgwe.kube.dialects import kinds, values
from kgwe.kube.dialects.dialect import Dialect
from kgwe.kube.dialects.membership import Followers, Key, Membership, Size, TopologyRequest, Unreadable
from kgwe.placement.gang.request import Segment

if TYPE_CHECKING:
    from kgwe.kube.api import gangs
    from kgwe.kube.dialects.groups import Groups

_LWS: Final = "leaderworkerset.sigs.k8s.io/"
_LEADER: Final = "leader"
_WORKER: Final = "worker"


def _read_key(pod: core.Pod, _: Groups) -> Key | None:
    name, group = (pod.metadata.labels.get(_LWS + word, "") for word in ("name", "group-index"))
    if not (name and group):
        return None
    return Key(pod.metadata.namespace, "LeaderWorkerSet.leaderworkerset.x-k8s.io", f"{name}-{group}")


def _read_member(pod: core.Pod, key: Key, groups: Groups) -> Membership:
    size = values.read_number(values.read_key(pod, _LWS + "size"), _LWS + "size")
    index = values.read_number(pod.metadata.labels.get(_LWS + "worker-index", ""), _LWS + "worker-index", least=0)
    topology = pod.metadata.annotations.get(_LWS + "exclusive-topology", "")
    level = groups.levels.find_level(topology, _LWS + "exclusive-topology") if topology else ""
    segments, alike = _read_subgroups(pod, groups, size, leads=index == 0)
    worker = "" if alike else _WORKER
    template = _worker_later(pod, groups, waits=bool(topology)) if index == 0 and size > 1 else None
    return Membership(
        key,
        LEADER_WORKER_SET.name,
        Size(size, size),
        # Subgroups count through leader and workers, so there they are one role.
        roles=() if alike or size == 1 else ((_LEADER, 1), (_WORKER, size - 1)),
        role=worker if alike or index else _LEADER,
        index=index,
        wish=TopologyRequest(level, segments=segments if alike or index else (), exclusive=level),
        followers=Followers(size - 1, template, worker, segments) if template else None,
    )


def _read_subgroups(pod: core.Pod, groups: Groups, size: int, *, leads: bool) -> tuple[tuple[Segment, ...], bool]:
    """(segments, whether the leader is counted among the workers)."""
    topology = pod.metadata.annotations.get(_LWS + "subgroup-exclusive-topology", "")
    if not topology:
        return (), False
    key = _LWS + "subgroup-size"
    count = values.read_number(values.read_key(pod, key), key)
    segments = (Segment(count, groups.levels.find_level(topology, _LWS + "subgroup-exclusive-topology")),)
    if size % count == 0:
        return segments, True
    if not leads:
        return segments, False
    if pod.metadata.annotations.get(_LWS + "subgroup-policy-type") != "LeaderExcluded":
        raise Unreadable(
            f"{key} is {count} and the group has {size} pods, so the first subgroup is larger than the others, which "
            "KGWE cannot promise: make the size a multiple, or set subGroupPolicyType to LeaderExcluded"
        )
    return segments, False


def _worker_later(pod: core.Pod, groups: Groups, *, waits: bool) -> core.Pod | None:
    """A worker, if workers are created after their leader has a node or is ready."""
    name = pod.metadata.labels[_LWS + "name"]
    look = groups.get if waits else groups.find
    found: gangs.LeaderWorkerSet | None = look(pod.metadata.namespace, name, kinds.LEADER_WORKER_SET)
    if found is None or not (waits or found.spec.startupPolicy == "LeaderReady"):
        return None
    template = found.spec.leaderWorkerTemplate.workerTemplate.spec
    return core.Pod(ObjectMeta(name=f"{pod.metadata.name}-1", namespace=pod.metadata.namespace), template)


LEADER_WORKER_SET: Final = Dialect("leaderworkerset", frozenset({values.domain_of(_LWS)}), _read_key, _read_member)
