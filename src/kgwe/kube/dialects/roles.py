"""The roles of a gang in canonical form: equal gangs have equal roles, whatever the dialect calls them.

Pods of one role that ask for different things are different roles. Roles that follow each other and ask for the same
are one, and equal roles that each lie inside one domain are the segments of one role: eight subgroups of four pods are
32 pods in segments of four.
"""

from __future__ import annotations

import collections
import functools
import itertools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kgwe.kube.dialects.membership import ALL, Unreadable
from kgwe.placement.gang.request import Role, Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from kgwe.kube.api import core
    from kgwe.kube.dialects.membership import Membership
    from kgwe.placement.fleet.node import Request

#: the role of pods without a named role
WORKER: Final = "worker"

_DIGITS: Final = re.compile(r"(\d+)", re.ASCII)


@dataclass
class Part:
    """Equal pods of one role."""

    role: str
    request: Request
    segments: tuple[Segment, ...]
    together: str = ""
    pods: list[core.Pod | None] = field(default_factory=list)
    """By index; None: one that does not exist yet."""
    later: list[tuple[str, int] | None] = field(default_factory=list)
    """For each of them, the role and index of one that does not exist yet."""
    least: int = 0

    @property
    def whole(self) -> tuple[str, ...]:
        """Levels of which one domain holds the whole part."""
        return tuple(segment.level for segment in self.segments if segment.size == ALL)

    @property
    def is_rigid(self) -> bool:
        return self.least == len(self.pods)


@dataclass(frozen=True)
class _Entry:
    """One pod, existing or expected."""

    place: tuple[Any, ...]
    role: str
    request: Request
    segments: tuple[Segment, ...]
    together: str
    block: str
    pod: core.Pod | None
    later: tuple[str, int] | None = None


def split_roles(
    members: Iterable[tuple[core.Pod, Membership]], roles: Mapping[str, int], request_of: Callable[[core.Pod], Request]
) -> list[Part]:
    """The pods by role and request, in the order of ranks; `roles` are in that order too."""
    order = {role: number for number, role in enumerate(roles)}
    entries = [entry for pod, member in members for entry in _list_entries(pod, member, request_of)]
    entries.sort(key=lambda entry: (order.get(entry.role, len(order)), entry.role, *entry.place))
    parts: dict[tuple[Any, ...], tuple[Part, list[str]]] = {}
    # Most are like the one before, and to compare is faster than to look up.
    for like, group in itertools.groupby(entries, lambda each: (each.role, each.request, each.segments, each.together)):
        part, blocks = parts.setdefault(like, (Part(*like), []))
        for entry in group:
            part.pods.append(entry.pod)
            part.later.append(entry.later)
            blocks.append(entry.block)
    for part, blocks in parts.values():
        _check_blocks(part, blocks)
    found = [part for part, _ in parts.values()]
    _check_whole(found)
    return found


def _list_entries(pod: core.Pod, member: Membership, request_of: Callable[[core.Pod], Request]) -> Iterator[_Entry]:
    wish, later = member.wish, member.followers
    place = (sort_key(member.block), member.index is None, member.index or 0, sort_key(pod.metadata.name))
    yield _Entry((*place, 0), member.role, request_of(pod), wish.segments, wish.together, member.block, pod)
    if later is None or not later.count:
        return
    segments = wish.segments if later.segments is None else later.segments
    request, role = request_of(later.pod), later.role or member.role
    for number in range(1, later.count + 1):
        index = (member.index or 0) + number
        behind = (*place[:2], index, place[3], number)
        yield _Entry(behind, role, request, segments, wish.together, member.block, None, (role, index))


@functools.lru_cache(maxsize=8192)
def sort_key(text: str) -> tuple[str | int, ...]:
    """Sorts worker-2 before worker-10. Cached, because the pods of a gang are sorted often."""
    return tuple(int(part) if number % 2 else part for number, part in enumerate(_DIGITS.split(text)))


def _check_blocks(part: Part, blocks: list[str]) -> None:
    sizes = {segment.size for segment in part.segments if segment.size != ALL}
    for block, count in collections.Counter(blocks).items():
        if block and sizes and count not in sizes:
            wanted = " or ".join(map(str, sorted(sizes)))
            raise Unreadable(
                f"subgroup {block} of role {part.role or WORKER} has {count} equal pods, not {wanted}", waits=True
            )


def _check_whole(parts: list[Part]) -> None:
    """Refuse a named role that must be in one domain if its pods differ. Without a name, it is several roles."""
    times = collections.Counter(part.role for part in parts)
    for part in parts:
        if part.role and part.whole and times[part.role] > 1:
            raise Unreadable(
                f"pods of role {part.role} ask for different things and must be in one {part.whole[0]}: give them "
                "roles of their own, or require it of the whole gang"
            )


# --- how few will do ------------------------------------------------------------------------------------


def set_least(parts: list[Part], needed: int, roles: Mapping[str, int]) -> None:
    """Set the fewest pods of each part so that all have `needed`; the largest part is reduced first."""
    times = collections.Counter(part.role for part in parts)
    spare = sum(len(part.pods) for part in parts) - needed
    for part in sorted(parts, key=lambda part: -len(part.pods)):
        count = len(part.pods)
        floor = max(roles.get(part.role, 0), 1) if times[part.role] == 1 or part.role not in roles else count
        given = min(max(spare, 0), max(count - floor, 0))
        part.least = count - given
        spare -= given


def merge_parts(parts: list[Part]) -> list[Part]:
    """Merge neighbouring parts that ask for the same."""
    result: list[Part] = []
    for part in parts:
        if result and (joined := _try_join(result[-1], part)) is not None:
            result[-1] = joined
        else:
            result.append(part)
    return result


def _try_join(a: Part, b: Part) -> Part | None:
    if a.request != b.request or a.together != b.together or not a.is_rigid:
        return None
    segments = a.segments
    if b.whole:
        # Each lies inside one domain: segments, if they are equally long.
        if not b.is_rigid or b.together:
            return None
        segments = tuple(Segment(segment.size or len(b.pods), segment.level) for segment in b.segments)
        mine = tuple(Segment(segment.size or len(a.pods), segment.level) for segment in a.segments)
        if mine != segments:
            return None
    elif a.segments != b.segments or any(len(a.pods) % segment.size for segment in a.segments):
        return None
    return Part(a.role, a.request, segments, a.together, [*a.pods, *b.pods], [*a.later, *b.later], a.least + b.least)


# --- as the planner wants them --------------------------------------------------------------------------


def as_roles(parts: list[Part]) -> tuple[Role, ...]:
    """The parts as roles. If there are several, they have the names of the dialect, made unique."""
    names: collections.Counter[str] = collections.Counter()
    result = []
    for part in parts:
        name = (part.role or WORKER) if len(parts) > 1 else WORKER
        names[name] += 1
        unique = name if names[name] == 1 else f"{name}-{names[name]}"
        result.append(_as_role(part, unique))
    return tuple(result)


def _as_role(part: Part, name: str) -> Role:
    count = len(part.pods)
    segments = {Segment(segment.size or count, segment.level) for segment in part.segments}
    step = max((segment.size for segment in segments), default=1)
    least = min(-(-part.least // step) * step, count)
    ordered = sorted(segments, key=lambda segment: (segment.size, segment.level))
    return Role(name, part.request, count, 0 if least == count else least, tuple(ordered))
