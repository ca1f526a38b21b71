"""From the members of a gang to one request for all of them, and from the plan back to the pods."""

from __future__ import annotations

import collections
import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kgwe import errors
from kgwe.kube.dialects import member_presence as presence
from kgwe.kube.dialects import roles as parts
from kgwe.kube.dialects.membership import ALL, Key, Problem, Unreadable
from kgwe.placement.fleet.constraints import NAME_FIELD, Operator, Requirement
from kgwe.placement.gang.request import GangRequest, Hardware, Segment, Strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kgwe.kube.api import core
    from kgwe.kube.dialects.member_presence import Members, Presence
    from kgwe.kube.dialects.membership import Membership, Size, TopologyRequest
    from kgwe.model.network.domains import Tree
    from kgwe.placement.fleet.node import Request
    from kgwe.placement.gang.plan import GangPlan, Seat


@dataclass(frozen=True)
class Gang:
    """A gang that is complete enough to be placed."""

    key: Key
    request: GangRequest
    order: tuple[core.Pod | None, ...]
    """Pods by rank; None for one that is created only when others have their nodes."""
    bound: tuple[core.Pod, ...] = ()
    """Pods of the gang that have a node already; the request is for the others."""
    preferred_domain: str = ""
    exclusive: str = ""
    """Level of the domains that it shares with no other gang that says so; see `Wish.exclusive`."""
    expected: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """(role, index) of pods that do not exist yet -> rank."""

    def rank_of(self, late: Membership) -> int | None:
        """The rank that was planned for a pod that was created later; None: there is none."""
        return None if late.index is None else self.expected.get((late.role, late.index))

    def assign_pods(self, plan: GangPlan) -> Iterator[tuple[core.Pod, Seat]]:
        """Each pod with its seat. An elastic gang may have fewer seats than pods: the last pods of a role get none."""
        start: dict[str, int] = {}
        taken = 0
        for role in self.request.roles:
            start[role.name] = taken
            taken += role.replicas
        for seat in plan.seats:
            pod = self.order[start[seat.role] + seat.index]
            if pod is not None:
                yield pod, seat

    def requests_to_try(self, tree: Tree) -> Iterator[GangRequest]:
        """Requests in the order to try them: inside the preferred domain, if there is one, then anywhere."""
        nodes = _nodes_of(tree, self.preferred_domain)
        if nodes:
            yield dataclasses.replace(
                self.request,
                roles=tuple(
                    dataclasses.replace(role, request=_limit_to_nodes(role.request, nodes))
                    for role in self.request.roles
                ),
            )
        yield self.request


def _nodes_of(tree: Tree, domain: str) -> tuple[str, ...]:
    """Nodes of all domains of that name on the lowest level that has one."""
    if not domain:
        return ()
    for level in tree.levels:
        slices = [level.nodes(number) for number, name in enumerate(level.names) if name == domain]
        if slices:
            return tuple(node for each in slices for node in tree.nodes[each])
    return tuple(
        node
        for node, number in zip(tree.nodes, tree.nvlink_of, strict=True)
        if number >= 0 and tree.nvlink_names[number] == domain
    )


def _limit_to_nodes(request: Request, nodes: tuple[str, ...]) -> Request:
    line = Requirement(NAME_FIELD, Operator.IN, nodes)
    terms = request.constraints.affinity
    inside = ((line,),) if terms is None else tuple((*term, line) for term in terms if term)
    return dataclasses.replace(request, constraints=dataclasses.replace(request.constraints, affinity=inside))


# --- the request ----------------------------------------------------------------------------------------


def gang_request(
    members: Members, request_of: Callable[[core.Pod], Request], found: Presence | None = None
) -> Gang | Problem:
    """All pods of one gang, as one request.

    `members`: all its pods, running ones included; `found`: their presence, if the caller has determined it.
    """
    try:
        return _build_gang(members, request_of, found or presence.count_members(members))
    except Unreadable as exc:
        return exc.problem
    except errors.Permanent as exc:
        # The request is impossible, or the requests of a pod cannot be read.
        return Problem(str(exc))


def _build_gang(members: Members, request_of: Callable[[core.Pod], Request], found: Presence) -> Gang:
    waiting, placed = found.waiting, found.placed
    speaking = found.speaking or members
    key = _check_members(members, speaking)
    size: Size = _common_value(key, "size", [member.size for _, member in speaking])
    _check_count(key, len(waiting) + len(placed), size, presence.count_missing(members, found))
    if not waiting:
        raise Unreadable(f"all pods of gang {key.title} are bound")
    started = found.started
    roles = {role: least - started[role] for role, least in presence.read_roles(waiting).items()}
    pods = parts.split_roles(waiting, roles, request_of)
    parts.set_least(pods, size.least - started.total(), roles)
    required = _required_level(
        key, pods, _common_value(key, "required level", [member.wish.required for _, member in waiting])
    )
    pods = parts.merge_parts(pods)
    wishes = [member.wish for _, member in waiting]
    request = GangRequest(
        parts.as_roles(pods),
        required=required,
        preferred=_most_frequent([wish.preferred for wish in wishes]),
        strategy=_choose_strategy([wish.strategy for wish in wishes]),
        hardware=_choose_hardware(key, wishes),
        min_network_gb_per_s=max(wish.min_network_gb_per_s for wish in wishes),
        priority=_gang_priority(waiting),
        name=key.title,
    )
    return Gang(
        key,
        request,
        order=tuple(pod for part in pods for pod in part.pods),
        expected={name: rank for rank, name in enumerate(each for part in pods for each in part.later) if name},
        bound=tuple(pod for pod, _ in placed),
        preferred_domain=_most_frequent([wish.preferred_domain for wish in wishes]),
        exclusive=_most_frequent([wish.exclusive for wish in wishes]),
    )


def _check_members(members: Members, speaking: Members) -> Key:
    keys = {member.key for _, member in members}
    if len(keys) != 1:
        raise errors.InvariantBroken(f"a request for the members of {len(keys)} gangs")
    problems = sorted(
        (member.problem for _, member in speaking if member.problem is not None),
        key=lambda problem: (problem.waits, problem.words),
    )
    if problems:
        raise Unreadable(problems[0].words, waits=problems[0].waits)
    return keys.pop()


def _check_count(key: Key, alive: int, size: Size, lacking: int) -> None:
    if lacking:
        raise Unreadable(f"gang {key.title} incomplete: waiting for {lacking} more of {size.least} pods", waits=True)
    if size.most and alive > size.most:
        raise Unreadable(
            f"{alive} pods belong to gang {key.title}, whose size is {size.most}: delete the old pods, or rename one "
            "of two gangs of this name",
            waits=True,
        )


def _common_value(key: Key, what: str, said: list[Any]) -> Any:
    """The value that all members which set one agree on."""
    given = {each for each in said if each}
    if len(given) > 1:
        raise Unreadable(f"pods of gang {key.title} do not agree on its {what}: {', '.join(sorted(map(str, given)))}")
    return given.pop() if given else ""


def _required_level(key: Key, found: list[parts.Part], required: str) -> str:
    """The required level of the gang: its own, that of its only role, or that of roles which share a domain."""
    if any(part.together and part.whole for part in found):
        shared = {(part.together, part.whole) for part in found}
        if len(shared) > 1:
            raise Unreadable(
                f"some roles of gang {key.title} share a domain and others do not: give all roles the same "
                "podset-group-name and required topology"
            )
        alike = True
    else:
        alike = len(found) == 1
    if alike and not required:
        required = next(iter(found[0].whole), "")
    for part in found:
        # Roles need not repeat what the whole gang requires.
        part.segments = tuple(segment for segment in part.segments if segment != Segment(ALL, required))
    return required


def _choose_strategy(said: list[Strategy | None]) -> Strategy:
    given = set(said)
    return given.pop() or Strategy.CONSOLIDATED if len(given) == 1 else Strategy.CONSOLIDATED


def _choose_hardware(key: Key, wishes: list[TopologyRequest]) -> Hardware:
    said = _common_value(key, "hardware", [wish.hardware for wish in wishes])
    return Hardware(said) if said else Hardware.PREFER_SAME


def _most_frequent(said: list[str]) -> str:
    """The most frequent value that is set; in a tie, the first by name."""
    counts = collections.Counter(each for each in said if each)
    return min(counts, key=lambda each: (-counts[each], each), default="")


def _gang_priority(waiting: Members) -> int:
    """The priority of the group, else the lowest of its pods: so no pod is evicted for less."""
    return min(pod.spec.priority if member.priority is None else member.priority for pod, member in waiting)
