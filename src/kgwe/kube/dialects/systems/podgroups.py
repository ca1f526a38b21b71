"""Gangs by a PodGroup: coscheduling, and Kubernetes itself; and Kueue's groups of plain pods, which have no object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe.kube.dialects import kinds, values
from kgwe.kube.dialects.dialect import Dialect
from kgwe.kube.dialects.membership import Key, Membership, Size, TopologyRequest, Unreadable

if TYPE_CHECKING:
    from kgwe.kube.api import core, gangs
    from kgwe.kube.dialects.groups import Groups

# --- coscheduling ---------------------------------------------------------------------------------------

_LABEL: Final = "scheduling.x-k8s.io/pod-group"
_OLD_LABEL: Final = "pod-group.scheduling.sigs.k8s.io"
# Labels of versions that had no object yet.
_OLDEST_NAME: Final = _OLD_LABEL + "/name"
_OLDEST_SIZE: Final = _OLD_LABEL + "/min-available"


def _coscheduling_key(pod: core.Pod, _: Groups) -> Key | None:
    labels = pod.metadata.labels
    name = labels.get(_LABEL) or labels.get(_OLD_LABEL) or labels.get(_OLDEST_NAME)
    return Key(pod.metadata.namespace, "PodGroup.scheduling.x-k8s.io", name) if name else None


def _read_coscheduling(pod: core.Pod, key: Key, groups: Groups) -> Membership:
    if pod.metadata.labels.get(_OLDEST_NAME) == key.name:
        least, timeout_s = values.read_number(pod.metadata.labels.get(_OLDEST_SIZE, ""), _OLDEST_SIZE), None
    else:
        found: gangs.CoschedulingPodGroup = groups.get(
            key.namespace, key.name, kinds.COSCHEDULING, kinds.COSCHEDULING_OLD
        )
        least, timeout_s = found.spec.minMember, found.spec.scheduleTimeoutSeconds
    return Membership(key, COSCHEDULING.name, Size(max(least, 1)), index=values.read_index(pod), timeout_s=timeout_s)


COSCHEDULING: Final = Dialect(
    "coscheduling",
    frozenset(map(values.domain_of, (_LABEL, _OLD_LABEL, _OLDEST_NAME))),
    _coscheduling_key,
    _read_coscheduling,
)


# --- Kubernetes -----------------------------------------------------------------------------------------


def _is_grouped(pod: core.Pod) -> bool:
    return pod.spec.schedulingGroup is not None or pod.spec.workloadRef is not None


def _kubernetes_key(pod: core.Pod, _: Groups) -> Key | None:
    group, workload = pod.spec.schedulingGroup, pod.spec.workloadRef
    if group is not None and group.podGroupName:
        return Key(pod.metadata.namespace, "PodGroup.scheduling.k8s.io", group.podGroupName)
    if workload is not None:
        path = "/".join(part for part in (workload.name, workload.podGroup, workload.podGroupReplicaKey) if part)
        return Key(pod.metadata.namespace, "Workload.scheduling.k8s.io", path)
    return None


def _read_kubernetes(pod: core.Pod, key: Key, groups: Groups) -> Membership | None:
    if pod.spec.workloadRef is not None and key.kind.startswith("Workload"):
        return _read_workload(pod, key, groups, pod.spec.workloadRef)
    found: gangs.PodGroup = groups.get(key.namespace, key.name, *kinds.POD_GROUPS)
    spec = found.spec
    if spec.parentCompositePodGroupName:
        raise Unreadable(
            f"PodGroup {key.title} is part of CompositePodGroup {spec.parentCompositePodGroupName}: KGWE does not read "
            "groups of groups; use one PodGroup"
        )
    keys = spec.schedulingConstraints.topology if spec.schedulingConstraints else ()
    if len(keys) > 1:
        raise Unreadable(f"PodGroup {key.title} has {len(keys)} topology constraints: keep one")
    if spec.schedulingPolicy.gang is None and not keys:
        return None
    least = spec.schedulingPolicy.gang.minCount if spec.schedulingPolicy.gang else 1
    required = groups.levels.find_level(keys[0].key, f"PodGroup {key.title}") if keys else ""
    return Membership(
        key,
        KUBERNETES.name,
        Size(max(least, 1)),
        index=values.read_index(pod),
        wish=TopologyRequest(required),
        priority=spec.priority,
    )


def _read_workload(pod: core.Pod, key: Key, groups: Groups, reference: core.WorkloadReference) -> Membership | None:
    found: gangs.Workload = groups.get(key.namespace, reference.name, kinds.WORKLOAD)
    group = next((each for each in found.spec.podGroups if each.name == reference.podGroup), None)
    if group is None:
        raise Unreadable(f"Workload {key.namespace}/{reference.name} has no pod group {reference.podGroup!r}")
    if group.policy.gang is None:
        return None
    return Membership(key, KUBERNETES.name, Size(max(group.policy.gang.minCount, 1)), index=values.read_index(pod))


KUBERNETES: Final = Dialect("kubernetes", frozenset(), _kubernetes_key, _read_kubernetes, _is_grouped)


# --- Kueue ----------------------------------------------------------------------------------------------

_KUEUE: Final = "kueue.x-k8s.io/pod-group-"


def _kueue_key(pod: core.Pod, _: Groups) -> Key | None:
    name = values.read_key(pod, _KUEUE + "name")
    return Key(pod.metadata.namespace, "Workload.kueue.x-k8s.io", name) if name else None


def _read_kueue(pod: core.Pod, key: Key, _: Groups) -> Membership:
    total = values.read_number(pod.metadata.annotations.get(_KUEUE + "total-count", ""), _KUEUE + "total-count")
    named = pod.metadata.annotations.get(_KUEUE + "pod-index-label", "")
    index_keys = (_KUEUE + "pod-index", *([named] if named else []), *values.INDEX_KEYS)
    return Membership(key, KUEUE.name, Size(total, total), index=values.read_index(pod, index_keys))


KUEUE: Final = Dialect("kueue", frozenset({values.domain_of(_KUEUE)}), _kueue_key, _read_kueue)
