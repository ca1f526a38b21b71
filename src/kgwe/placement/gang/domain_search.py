"""Searches for the place of one gang: the lowest level with a domain that has room for all of it.

1. Count the capacity of every domain of the level (one reduceat per level).
2. Keep the domains that hold every role. If there are none, go one level up.
3. Take the best candidate of those domains (`kgwe.placement.gang.candidates`). If there is none, go one level up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kgwe.placement.gang import assign
from kgwe.placement.gang import score as gang_score
from kgwe.placement.gang.candidates import CandidateFinder, LevelBounds
from kgwe.placement.gang.capacity import ALL_NODES, GangCapacity, Scope
from kgwe.placement.gang.plan import GangPlan, LevelReport, Shortfall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kgwe.placement.gang.context import SearchContext
    from kgwe.placement.gang.request import GangRequest, Role

    Ints = NDArray[np.int64]


class DomainSearch:
    """The search for one gang, from the lowest level up."""

    def __init__(self, context: SearchContext, gang: GangRequest, scope: Scope = ALL_NODES) -> None:
        self._context = context
        self._gang = gang
        self._table = context.level_tables.for_levels(gang.named_levels)
        self._room = GangCapacity(context.fitter, self._table, gang, scope)
        self._bounds = LevelBounds.from_gang(self._table, gang)
        self._finder = CandidateFinder(context, gang, self._room, self._bounds, scope.following)

    def find_plan(self) -> GangPlan | Shortfall:
        """The plan with the most replicas, at the lowest level; or what is missing."""
        roles = self._gang.roles
        most = [self._max_replicas(number, role) for number, role in enumerate(roles)]
        least = [role.required_replicas for role in roles]
        if any(bound < needed for bound, needed in zip(most, least, strict=True)):
            return self._explain_shortfall(proven=True)
        plan = self._search_levels(most)
        if plan is None and most != least:
            plan = self._search_levels(least)
            if plan is not None:
                plan = self._grow_replicas(plan, least, most)
        return plan or self._explain_shortfall(proven=len(roles) == 1)

    def has_room(self) -> bool:
        """Whether some domain holds the required replicas of each role, each role taken alone."""
        return all(
            self._max_replicas(number, role) >= role.required_replicas for number, role in enumerate(self._gang.roles)
        )

    def _max_replicas(self, number: int, role: Role) -> int:
        """The most replicas of a role that any one domain holds, the role taken alone."""
        largest = max(
            int(self._capacity(number, level).max(initial=0))
            for level in range(self._bounds.start, self._bounds.top + 1)
        )
        return min(role.replicas, largest // role.replica_step * role.replica_step)

    def _capacity(self, number: int, level: int) -> Ints:
        return self._room.by_level(number, level)[level]

    def _grow_replicas(self, plan: GangPlan, counts: list[int], most: list[int]) -> GangPlan:
        """The plan with as many replicas as can be placed, role by role."""
        for number, role in enumerate(self._gang.roles):
            low, high = counts[number] // role.replica_step, most[number] // role.replica_step
            while low < high:
                middle = (low + high + 1) // 2
                tried = [*counts[:number], middle * role.replica_step, *counts[number + 1 :]]
                found = self._search_levels(tried)
                if found is None:
                    high = middle - 1
                else:
                    plan, counts, low = found, tried, middle
        return plan

    def _explain_shortfall(self, *, proven: bool) -> Shortfall:
        """The role that lacks the most pods, and the domain that holds the most of it."""
        reports: list[LevelReport] = []
        counts = [role.required_replicas for role in self._gang.roles]
        best: tuple[int, int, int, int] | None = None
        for level in range(self._bounds.start, self._bounds.top + 1):
            self._find_domains(level, counts, reports)
        for number, needed in enumerate(counts):
            rooms = [self._capacity(number, level) for level in range(self._bounds.start, self._bounds.top + 1)]
            # A part of a segment cannot be placed.
            size = self._gang.roles[number].replica_step
            largest = [int(each.max(initial=0)) // size * size for each in rooms]
            step = max(range(len(largest)), key=lambda i: (largest[i], i))
            if best is None or largest[step] - needed < best[0]:
                domain = int(rooms[step].argmax()) if len(rooms[step]) else 0
                best = (largest[step] - needed, number, self._bounds.start + step, domain)
        short, number, level, domain = best or (0, 0, self._bounds.top, 0)
        role, domains = self._gang.roles[number], self._table.levels[level]
        return Shortfall(
            role=role.name,
            needed=role.required_replicas,
            room=role.required_replicas + short,
            level=domains.name,
            domain=domains.names[domain] if domains.names else "",
            level_reports=tuple(reports),
            most_when_empty=self._most_when_empty(number),
            proven=proven,
        )

    def _most_when_empty(self, number: int) -> int | None:
        """An upper bound of the pods that one empty domain holds: only GPUs count. None: no whole GPUs."""
        if not self._gang.roles[number].request.gpus.count:
            return None
        size = self._gang.roles[number].replica_step
        return self._room.max_when_empty(number, self._bounds.top) // size * size

    def _search_levels(self, counts: Sequence[int]) -> GangPlan | None:
        """The plan with so many pods of each role, at the lowest level that has one."""
        reports: list[LevelReport] = []
        for level in range(self._bounds.start, self._bounds.top + 1):
            holds = self._find_domains(level, counts, reports)
            if len(holds):
                plan = self._place_in_level(level, holds, counts, tuple(reports))
                if plan is not None:
                    return plan
        return None

    def _find_domains(self, level: int, counts: Sequence[int], reports: list[LevelReport]) -> NDArray[np.intp]:
        """The domains of a level that hold every role, each role taken alone."""
        domains = self._table.levels[level]
        capacity = np.array([self._capacity(number, level) for number in range(len(counts))])
        wanted = np.array(counts)
        holds = np.flatnonzero((capacity >= wanted[:, np.newaxis]).all(axis=0))
        if len(counts) > 1:
            gpus = sum(role.request.gpus.count * n for role, n in zip(self._gang.roles, counts, strict=True))
            free = domains.sum_by_domain(
                np.bitwise_count(self._context.fitter.snapshot.free[self._table.node]).astype(np.int64)
            )
            holds = holds[free[holds] >= gpus]
        most = capacity.max(axis=1, initial=0)
        shortest = int(np.argmin(most - wanted))
        reports.append(LevelReport(domains.name, len(domains), len(holds), int(most[shortest]), int(wanted[shortest])))
        return holds

    def _place_in_level(
        self, level: int, holds: NDArray[np.intp], counts: Sequence[int], reports: tuple[LevelReport, ...]
    ) -> GangPlan | None:
        """The best plan in one of the domains that hold every role; None if there is none."""
        scores = self._score_domains(level, counts)
        score = scores.score_without_alignment(self._context.weights)
        found = next(self._finder.iter_candidates(level, holds, counts, score), None)
        if found is None:
            return None
        if found.level != level:
            level, scores = found.level, self._score_domains(found.level, counts)
        ordered = assign.order_by_rank(self._gang.roles, found.seating)
        places = [place for pods in ordered for place, _ in pods]
        ring = self._context.rings.predict_ring(self._table, places, assign.merge_gpu_masks(ordered))
        domains = self._table.levels[level]
        return GangPlan(
            seats=tuple(assign.number_seats(self._gang.roles, ordered, self._table.levels[0].names)),
            level=domains.name,
            domain=domains.names[found.domain],
            replicas={role.name: len(pods) for role, pods in zip(self._gang.roles, ordered, strict=True)},
            preferred_met=level <= self._bounds.preferred,
            ring=ring,
            score=scores.score_domain(
                self._context.weights, found.domain, _rate_alignment(ring.gb_per_s, found.fastest)
            ),
            size_class=gang_score.classify_size(
                self._table, self._room.count_when_empty(_largest_role(counts)), max(counts)
            ),
            level_reports=reports,
            leaves=len(np.unique(self._table.leaf[places])),
            choice_note=found.choice_note,
        )

    def _score_domains(self, level: int, counts: Sequence[int]) -> gang_score.DomainScores:
        needs = [n / np.maximum(self._capacity(i, level), 1) for i, n in enumerate(counts)]
        return gang_score.score_domains(
            self._table,
            self._context.fitter.snapshot,
            level,
            tightness=np.max(needs, axis=0),
            strategy=self._gang.strategy,
            history=self._context.history,
        )


def _rate_alignment(gb_per_s: float, fastest: float) -> float:
    """The alignment part of the score, 0..1; a single GPU needs no ring and gets 1."""
    if np.isinf(gb_per_s):
        return 1.0
    return gb_per_s / max(gb_per_s, fastest) if gb_per_s else 0.0


def _largest_role(counts: Sequence[int]) -> int:
    return max(range(len(counts)), key=lambda number: (counts[number], -number))
