"""Volcano: a PodGroup whose pods belong to tasks, tiers of HyperNodes, and subgroups by label."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe.kube.dialects import kinds, values
from kgwe.kube.dialects.dialect import Dialect
from kgwe.kube.dialects.membership import ALL, Key, Membership, Size, TopologyRequest, Unreadable
from kgwe.placement.gang.request import Segment

if TYPE_CHECKING:
    from kgwe.kube.api import core, gangs
    from kgwe.kube.dialects.groups import Groups

_NAMES: Final = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
_TASK: Final = "volcano.sh/task-spec"


def _read_key(pod: core.Pod, _: Groups) -> Key | None:
    name = next((pod.metadata.annotations[key] for key in _NAMES if pod.metadata.annotations.get(key)), "")
    return Key(pod.metadata.namespace, "PodGroup.scheduling.volcano.sh", name) if name else None


def _read_member(pod: core.Pod, key: Key, groups: Groups) -> Membership:
    found: gangs.VolcanoPodGroup = groups.get(key.namespace, key.name, kinds.VOLCANO)
    spec, source = found.spec, f"PodGroup {key.title}"
    required, preferred = _read_levels(spec.networkTopology, groups, source)
    roles = {task: least for task, least in sorted(spec.minTaskMember.items()) if least > 0}
    role, block = values.read_key(pod, _TASK), ""
    segments: tuple[Segment, ...] = ()
    policy = next((each for each in spec.subGroupPolicy if _selects_pod(each, pod)), None)
    if policy is not None:
        role = role or policy.name
        segments, block, least = _read_subgroup(policy, pod, groups, source)
        if least:
            roles[role] = max(least, roles.get(role, 0))
    return Membership(
        key,
        VOLCANO.name,
        Size(max(spec.minMember, sum(roles.values()), 1)),
        roles=tuple(roles.items()),
        role=role,
        index=values.read_index(pod),
        block=block,
        wish=TopologyRequest(required, preferred, segments),
    )


def _read_levels(topology: gangs.NetworkTopology | None, groups: Groups, source: str) -> tuple[str, str]:
    """(required, preferred). The soft mode means as close as possible, whatever the tier."""
    if topology is None:
        return "", ""
    if topology.mode == "soft":
        return "", next(iter(groups.levels.network), "")
    if topology.mode != "hard":
        raise Unreadable(f"{source}: networkTopology.mode is {topology.mode!r}: write hard or soft")
    if topology.highestTierName:
        return _tier_named(topology.highestTierName, groups, source), ""
    if topology.highestTierAllowed is None:
        raise Unreadable(f"{source}: networkTopology is hard and names no tier: set highestTierAllowed")
    return groups.levels.find_tier(topology.highestTierAllowed, source), ""


def _tier_named(name: str, groups: Groups, source: str) -> str:
    tiers = {node.spec.tier for node in groups.list_objects(kinds.HYPER_NODE) if node.spec.tierName == name}
    if len(tiers) > 1:
        raise Unreadable(f"{source}: HyperNodes of tiers {sorted(tiers)} share the tierName {name!r}: rename one tier")
    return groups.levels.find_tier(tiers.pop(), source) if tiers else groups.levels.find_level(name, source)


# --- subgroups ------------------------------------------------------------------------------------------


def _selects_pod(policy: gangs.SubGroupPolicy, pod: core.Pod) -> bool:
    selector, labels = policy.labelSelector, pod.metadata.labels
    if selector is not None and not (
        selector.matchLabels.items() <= labels.items()
        and all(_matches_expression(line, labels.get(line.key)) for line in selector.matchExpressions)
    ):
        return False
    return all(labels.get(key) for key in policy.matchLabelKeys)


def _matches_expression(line: gangs.LabelRequirement, value: str | None) -> bool:
    match line.operator:
        case "In":
            return value in line.values
        case "NotIn":
            return value not in line.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            raise Unreadable(f"subGroupPolicy: {line.operator!r} is none of In, NotIn, Exists, DoesNotExist")


def _read_subgroup(
    policy: gangs.SubGroupPolicy, pod: core.Pod, groups: Groups, source: str
) -> tuple[tuple[Segment, ...], str, int]:
    """(segments, name of the pod's own subgroup, fewest pods of all of them)."""
    size = values.check_number(policy.subGroupSize or 1, f"{source}: subGroupSize")
    least = size * max(policy.minSubGroups or 0, 0)
    required, _ = _read_levels(policy.networkTopology, groups, source)
    if not required:
        return (), "", least
    if not policy.matchLabelKeys:
        return (Segment(ALL, required),), "", least
    block = "/".join(pod.metadata.labels[key] for key in policy.matchLabelKeys)
    return (Segment(size, required),), block, least


VOLCANO: Final = Dialect("volcano", frozenset(map(values.domain_of, _NAMES)), _read_key, _read_member)
