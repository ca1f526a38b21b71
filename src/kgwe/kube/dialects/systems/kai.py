"""KAI: a PodGroup, and below it a tree of subgroups that may have topology constraints of their own.

Its leaves are roles here. A constraint of a whole branch of several leaves, but not of all, is more than a gang request
can say, and so is a branch that starts with some of its subgroups: both are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe.kube.dialects import kinds, values
from kgwe.kube.dialects.dialect import Dialect
from kgwe.kube.dialects.membership import ALL, Key, Membership, Size, TopologyRequest, Unreadable
from kgwe.placement.gang.request import Segment

if TYPE_CHECKING:
    from kgwe.kube.api import core, gangs
    from kgwe.kube.api.gangs import SubGroup
    from kgwe.kube.dialects.groups import Groups
    from kgwe.kube.dialects.levels import Levels

_NAME: Final = "pod-group-name"
_SUBGROUP: Final = "kai.scheduler/subgroup-name"


def _read_key(pod: core.Pod, _: Groups) -> Key | None:
    name = values.read_key(pod, _NAME)
    return Key(pod.metadata.namespace, "PodGroup.scheduling.run.ai", name) if name else None


def _read_member(pod: core.Pod, key: Key, groups: Groups) -> Membership:
    found: gangs.KaiPodGroup = groups.get(key.namespace, key.name, kinds.KAI)
    source = f"PodGroup {key.title}"
    wish = _read_constraint(found.spec.topologyConstraint, groups.levels, source)
    if not found.spec.subGroups:
        least = 1 if found.spec.minMember is None else found.spec.minMember
        return Membership(key, KAI.name, Size(max(least, 1)), index=values.read_index(pod), wish=wish)
    tree = _Tree(found.spec, source)
    role = values.read_key(pod, _SUBGROUP)
    if role not in tree.leaves:
        raise Unreadable(
            f"pod {pod.metadata.name} is of subgroup {role!r} ({_SUBGROUP}), and {source} has only "
            f"{', '.join(tree.leaves)} that hold pods"
        )
    roles = tuple((name, max(leaf.minMember or 0, 0)) for name, leaf in tree.leaves.items())
    least = max(found.spec.minMember or 0, sum(count for _, count in roles), 1)
    return Membership(
        key,
        KAI.name,
        Size(least),
        roles=roles,
        role=role,
        index=values.read_index(pod),
        wish=tree.wish(role, wish, groups.levels),
    )


def _read_constraint(constraint: gangs.TopologyConstraint | None, levels: Levels, source: str) -> TopologyRequest:
    if constraint is None:
        return TopologyRequest()
    required, preferred = constraint.requiredTopologyLevel, constraint.preferredTopologyLevel
    return TopologyRequest(
        required and levels.find_level(required, source), preferred and levels.find_level(preferred, source)
    )


class _Tree:
    """The subgroups of one PodGroup."""

    def __init__(self, spec: gangs.KaiSpec, source: str) -> None:
        self._source = source
        self._all = {group.name: group for group in spec.subGroups}
        parents = {group.parent for group in spec.subGroups if group.parent}
        if len(self._all) != len(spec.subGroups) or not parents <= self._all.keys():
            raise Unreadable(f"{source}: each subgroup has a name of its own, and a parent is one of them")
        self.leaves = {name: group for name, group in self._all.items() if name not in parents}
        self._check_minimum(spec.minSubGroup, [group for group in spec.subGroups if not group.parent])
        for parent in parents:
            children = [group for group in spec.subGroups if group.parent == parent]
            self._check_minimum(self._all[parent].minSubGroup, children)

    def _check_minimum(self, least: int | None, children: list[SubGroup]) -> None:
        if least is not None and least < len(children):
            raise Unreadable(
                f"{self._source}: minSubGroup is {least} of {len(children)}; KGWE starts all of them or none: leave "
                "minSubGroup out, or make a PodGroup of each"
            )

    def _list_ancestors(self, leaf: str) -> list[SubGroup]:
        """The leaf and the subgroups above it."""
        branch = [self._all[leaf]]
        while (parent := branch[-1].parent) and len(branch) <= len(self._all):
            branch.append(self._all[parent])
        return branch

    def wish(self, role: str, whole: TopologyRequest, levels: Levels) -> TopologyRequest:
        """The requests of the PodGroup and of the subgroups above one leaf, in the order of the levels."""
        required, preferred, segments = whole.required, whole.preferred, []
        for group in self._list_ancestors(role):
            own = _read_constraint(group.topologyConstraint, levels, self._source)
            preferred = preferred or own.preferred
            if not own.required:
                continue
            covered = sum(group in self._list_ancestors(leaf) for leaf in self.leaves)
            if covered == 1:
                segments.append(Segment(ALL, own.required))
            elif covered == len(self.leaves) and required in ("", own.required):
                required = own.required
            else:
                raise Unreadable(
                    f"{self._source}: subgroup {group.name} wants its {covered} subgroups in one {own.required}, which "
                    "KGWE can promise for one subgroup or for all: move the constraint"
                )
        return TopologyRequest(required, preferred, tuple(segments))


KAI: Final = Dialect("kai", frozenset({_NAME}), _read_key, _read_member)
