"""Who does not fit is kept a place; who may use it meanwhile.

Without that, small work takes every card that comes free and a large gang never starts; with nobody allowed to go
ahead, cards stand idle while it waits. So two of a priority get a *hold*, the oldest of those that do not fit and the
one whose turn is first: the nodes where it will start first (`kgwe.placement.queue.earliest_start`), and when.
Everybody is the oldest some day, whatever namespaces hold. On those nodes other work is placed only if

- its priority is higher, or
- it will be gone by then, 19 times out of 20 (*backfill*), or
- the one that waits can still start by then with it there.

A backfilled work that stays on past its p95 has broken its word. Namespaces whose word is broken too often are not
taken at it for a while; the p95 itself allows for one in twenty.

Holds are memory only, few, and sticky: they move when another place would be earlier by more than is lost by moving.
Where the start is not known, or is hours away, a hold could stop all other work for as long. So it keeps at most half
of the GPUs that the work could use. Where the start is not known, it is only for work that has waited long, for one at
a time, on the emptiest nodes, and only while GPUs come free there; short work with a known run time goes ahead.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kgwe.placement.live.scratch import NOWHERE
from kgwe.placement.queue.estimate_trust import Trust

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kgwe.placement.fleet.snapshot import Grant
    from kgwe.placement.queue.earliest_start import Outlook, Prospect
    from kgwe.placement.queue.queue import Level, Queue
    from kgwe.placement.queue.work import Roster, Work

# A place is left for another when that is earlier by this part of the time until then, and by a minute.
_WORTH_MOVING: Final = 0.2
_LEAST_GAIN_S: Final = 60.0
# An outlook that has not come true, or that others have spoilt, is looked at again so many times as soon.
_SOONER: Final = 10
# The oldest, and the one whose turn is first.
_PER_LEVEL: Final = 2


class Rule(enum.StrEnum):
    """What happens behind work that does not fit."""

    BLOCK = "block"
    """Nobody goes ahead of it."""
    GREEDY = "greedy"
    """Everybody may; large gangs starve."""
    HOLD = "hold"
    """The nodes it will have are left alone; other nodes are not."""
    BACKFILL = "backfill"
    """The same, but for who does not delay it."""


@dataclass(frozen=True, slots=True)
class Settings:
    rule: Rule = Rule.BACKFILL
    holds: int = 3
    """At most so many at a time, for the highest priorities, two of each at most."""
    depth: int = 256
    """Works looked at behind holds in one pass."""
    refresh_s: float = 30.0
    """How old the outlook of a hold may be."""
    blind_after_s: float = 600.0
    """A hold without a known start is for who has waited this long, one at a time."""
    blind_s: float = 14400.0
    """It ends when nothing has come free there for this long; its namespace then gets none for as long as it lasted."""
    blind_share: float = 0.5
    """It keeps at most this share of the GPUs that the work could use, or one node."""
    far_s: float = 14400.0
    """A hold whose start is further away than this keeps no more than that share either."""
    short_s: float = 600.0
    """Work that is gone after this, 19 times out of 20, may use nodes whose hold has no known start."""
    likely: float = 0.7
    """The place is chosen by when this part of runs like those there is over: it takes only one that is late."""
    forgiven: int = 3
    """Broken promises, of a namespace's last twenty, before it loses the right to go ahead."""
    remembered_s: float = 86400.0
    """Promises are forgotten after this."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A place that is kept."""

    key: str
    rank: Level
    """The negative of its priority, and whether it had no place before: the lowest goes first."""
    nodes: frozenset[str]
    start_s: float | None
    """When it can start there if all that is in its way ends at its median, which is early; None: not known."""
    level: str
    domain: str
    namespace: str = ""
    name: str = ""

    def title(self, namespace: str) -> str:
        """The work it is for, to users of that namespace. Names in other namespaces are not theirs to see."""
        if self.namespace == namespace:
            return self.name
        return f"a workload of priority {-self.rank[0]} in another namespace"

    def words(self, now_s: float) -> str:
        where = f"{len(self.nodes)} nodes in {self.level} {self.domain}" if len(self.nodes) > 1 else self.domain
        if self.start_s is None:
            return f"{where} kept; when what runs there ends is not known"
        return f"{where} kept; could start in {max(0.0, self.start_s - now_s):.0f} s"


@dataclass(slots=True)
class _Kept:
    hold: Hold
    work: Work
    looked_s: float
    stale: bool = False
    #: without a known start: most cards that were free there, and since when no more have come free
    free: int = 0
    since_s: float = 0.0
    #: since when it has kept nodes without a known start
    blind_since_s: float = 0.0


class Holds:
    """The holds of one queue."""

    def __init__(self, outlook: Outlook, roster: Roster, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.trust = Trust(self.settings.forgiven, self.settings.remembered_s)
        self._outlook = outlook
        self._roster = roster
        self._kept: dict[str, _Kept] = {}
        # Who cannot have a hold, and when to look again.
        self._denied: dict[str, float] = {}
        # Namespace -> when its work may have a hold without a known start again. By namespace: a work that is deleted
        # and made again, or one of the same kind, would otherwise keep nodes without a pause.
        self._blind_from: dict[str, float] = {}
        self._failures: list[tuple[Work, Exception]] = []
        #: rises whenever a hold is made, moved or ended
        self.version = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: object) -> bool:
        return key in self._kept

    def all(self) -> list[Hold]:
        return [kept.hold for kept in self._kept.values()]

    def get(self, key: str) -> Hold | None:
        kept = self._kept.get(key)
        return kept.hold if kept else None

    def first(self, works: Iterable[Work]) -> list[Work]:
        """Works in the order of the queue, with those a place is kept for before the others of their rank."""
        return sorted(works, key=lambda work: (work.level, work.key not in self._kept))

    # --- life -------------------------------------------------------------------------------------------

    def begin(self, queue: Queue, now_s: float, *, is_other: bool) -> None:
        """At the start of a pass: holds of who waits no more end. `is_other`: nodes are not what they were."""
        self.trust.settle(self._roster, now_s)
        for key in [key for key in self._denied if key not in queue.entries]:
            del self._denied[key]
        for namespace in [each for each, until_s in self._blind_from.items() if until_s <= now_s]:
            del self._blind_from[namespace]
        for key, kept in list(self._kept.items()):
            entry = queue.entries.get(key)
            if entry is None or entry.work != kept.work:
                self._rest(kept, now_s)
                self.end(key)
            else:
                kept.stale |= is_other

    def end(self, key: str) -> None:
        self._denied.pop(key, None)
        if self._kept.pop(key, None) is not None:
            self.version += 1

    def wants(self, level: Level) -> bool:
        """Whether one more of this level is to be had, if need be at the cost of a lower one."""
        ranks = [kept.hold.rank for kept in self._kept.values()]
        return ranks.count(level) < _PER_LEVEL and (len(ranks) < self.settings.holds or max(ranks) > level)

    def make(self, work: Work, now_s: float) -> Hold | None:
        """A place for the work; None when there is none to keep."""
        if now_s < self._denied.get(work.key, now_s):
            return None
        prospect = self._prospect(work, now_s)
        if prospect is None:
            self._denied[work.key] = now_s + self.settings.refresh_s
            return None
        if len(self._kept) >= self.settings.holds:
            self.end(max(self._kept, key=lambda key: self._kept[key].hold.rank))
        kept = self._kept[work.key] = _Kept(
            _hold(work, prospect), work, now_s, free=prospect.free, since_s=now_s, blind_since_s=now_s
        )
        self.version += 1
        return kept.hold

    def next_s(self) -> float | None:
        """When an outlook will be old."""
        return min((kept.looked_s + self.settings.refresh_s for kept in self._kept.values()), default=None)

    def refresh(self, now_s: float) -> list[Work]:
        """Look again where the outlook is old; returns whose place or time is another, or who has none any more."""
        moved = []
        for kept in sorted(self._kept.values(), key=lambda kept: kept.hold.rank):
            before = kept.hold
            is_due = before.start_s is not None and before.start_s <= now_s
            patience_s = self.settings.refresh_s / (_SOONER if kept.stale or is_due else 1)
            if now_s - kept.looked_s >= patience_s:
                try:
                    self._refresh(kept, now_s)
                except Exception as exc:  # noqa: BLE001 - an error of one work; the holds of others are looked at
                    self.end(before.key)
                    self._failures.append((kept.work, exc))
                    continue
                if before.key not in self._kept or _differ(before, kept.hold, now_s):
                    moved.append(kept.work)
        return moved

    def take_failures(self) -> list[tuple[Work, Exception]]:
        """Works whose holds could not be refreshed because of an error, since this was last called."""
        failures, self._failures = self._failures, []
        return failures

    def _refresh(self, kept: _Kept, now_s: float) -> None:
        """The same nodes again, unless others are much sooner: finding the time is cheaper than finding the place."""
        work, hold, outlook, likely = kept.work, kept.hold, self._outlook, self.settings.likely
        others = self._nodes_of_others(work)
        elsewhere = outlook.all_but(hold.nodes) | others
        here_s = outlook.when(work.request, now_s, elsewhere, likely)
        is_too_much = here_s is not None and self._is_too_much(work, hold.nodes, here_s, now_s)
        if (
            here_s is None
            or is_too_much
            or _is_worth_moving(here_s, outlook.when(work.request, now_s, others, likely), now_s)
        ):
            prospect = self._prospect(work, now_s)
            if prospect is None or not self._drains(kept, prospect, now_s):
                self.end(work.key)
                return
            hold = _hold(work, prospect)
        else:
            hold = replace(hold, start_s=outlook.when(work.request, now_s, elsewhere))
            kept.free, kept.since_s, kept.blind_since_s = 0, now_s, now_s
        self.version += hold != kept.hold
        if hold.nodes != kept.hold.nodes:
            for other in self._kept.values():
                other.stale |= not other.hold.nodes.isdisjoint(hold.nodes)
        kept.hold, kept.looked_s, kept.stale = hold, now_s, False

    def _drains(self, kept: _Kept, prospect: Prospect, now_s: float) -> bool:
        """Whether there is hope for a hold without a known start. Short work that comes and goes there is none."""
        if prospect.start_s is not None:
            kept.free, kept.since_s, kept.blind_since_s = 0, now_s, now_s
        elif prospect.free > kept.free:
            kept.free, kept.since_s = prospect.free, now_s
        if now_s - kept.since_s < self.settings.blind_s:
            return True
        self._rest(kept, now_s)
        return False

    def _rest(self, kept: _Kept, now_s: float) -> None:
        """Its namespace gets no hold without a known start for as long as this one kept nodes."""
        if kept.hold.start_s is None:
            self._blind_from[kept.work.namespace] = now_s + (now_s - kept.blind_since_s)

    def _is_too_much(self, work: Work, nodes: frozenset[str], start_s: float, now_s: float) -> bool:
        """Whether so many nodes would be kept for so long that other work could not go on."""
        if start_s - now_s <= self.settings.far_s:
            return False
        together = nodes | self._nodes_kept_long(work, now_s)
        return len(together) > 1 and self._outlook.share_of(together, work.request) > self.settings.blind_share

    def _nodes_kept_long(self, work: Work, now_s: float) -> frozenset[str]:
        """Kept for works before this one whose start is not known, or far away."""
        far_s = now_s + self.settings.far_s
        return NOWHERE.union(
            *(hold.nodes for hold in self._holds_before(work) if hold.start_s is None or hold.start_s > far_s)
        )

    def _prospect(self, work: Work, now_s: float) -> Prospect | None:
        """The place to keep; when it can start there at the earliest, if all that runs there ends at its median."""
        others = self._nodes_of_others(work)
        settings = self.settings
        kept_long = self._nodes_kept_long(work, now_s)
        share = settings.blind_share - (self._outlook.share_of(kept_long, work.request) if kept_long else 0.0)
        prospect = self._outlook.look(work.request, now_s, others, settings.likely, share)
        if prospect is None or (prospect.start_s is None and not self._may_be_blind(work, now_s)):
            return None
        if prospect.start_s is None:
            return prospect
        if self._is_too_much(work, prospect.nodes, prospect.start_s, now_s):
            return None
        elsewhere = self._outlook.all_but(prospect.nodes) | others
        return replace(prospect, start_s=self._outlook.when(work.request, now_s, elsewhere))

    def _nodes_of_others(self, work: Work) -> frozenset[str]:
        return NOWHERE.union(*(hold.nodes for hold in self._holds_before(work)))

    def _holds_before(self, work: Work) -> list[Hold]:
        """Holds of works before this one: of a higher level, or of the same for longer."""
        listed = list(self._kept)
        own = listed.index(work.key) if work.key in self._kept else len(listed)
        return [
            kept.hold
            for number, kept in enumerate(self._kept.values())
            if kept.hold.rank < work.level or (kept.hold.rank == work.level and number < own)
        ]

    def _may_be_blind(self, work: Work, now_s: float) -> bool:
        """Without a known start, nodes are kept for one work at a time."""
        if any(kept.hold.start_s is None for key, kept in self._kept.items() if key != work.key):
            return False
        return now_s >= max(work.since_s + self.settings.blind_after_s, self._blind_from.get(work.namespace, 0.0))

    # --- others -----------------------------------------------------------------------------------------

    def against(self, work: Work, now_s: float) -> list[Hold]:
        """The holds whose nodes the work has to leave alone."""
        return [
            kept.hold
            for kept in self._kept.values()
            if kept.hold.rank <= work.level
            and kept.hold.key != work.key
            and not self._is_gone_by(work, kept.hold, now_s)
        ]

    def _is_gone_by(self, work: Work, hold: Hold, now_s: float) -> bool:
        if self.settings.rule is not Rule.BACKFILL or work.run_time is None:
            return False
        until_s = now_s + self.settings.short_s if hold.start_s is None else hold.start_s
        return now_s + work.run_time.p95_s <= until_s and self.trust.has(work, now_s)

    def leave_room(self, holds: Iterable[Hold], grants: Sequence[Grant], now_s: float) -> bool:
        """Whether those who wait can all start when they were to, with this there until after."""
        return self.settings.rule is Rule.BACKFILL and all(
            hold.start_s is not None
            and self._outlook.leaves_room(
                self._kept[hold.key].work.request,
                grants,
                now_s,
                hold.start_s,
                self._nodes_of_others(self._kept[hold.key].work),
            )
            for hold in holds
        )

    def note(self, work: Work, nodes: Sequence[str], now_s: float) -> None:
        """The work was placed: does that change what is kept for others?"""
        self.end(work.key)
        for kept in self._kept.values():
            if kept.hold.nodes.isdisjoint(nodes):
                continue
            if work.run_time is not None and self._is_gone_by(work, kept.hold, now_s):
                self.trust.promise(work, now_s + work.run_time.p95_s)
            else:
                kept.stale = True


def _hold(work: Work, prospect: Prospect) -> Hold:
    return Hold(
        work.key,
        work.level,
        prospect.nodes,
        prospect.start_s,
        prospect.level,
        prospect.domain,
        work.namespace,
        work.name or work.key,
    )


def _differ(one: Hold, other: Hold, now_s: float) -> bool:
    """Whether there is anything to tell."""
    if one.nodes != other.nodes or one.start_s is None or other.start_s is None:
        return one.nodes != other.nodes or one.start_s != other.start_s
    return abs(one.start_s - other.start_s) > max(_LEAST_GAIN_S, _WORTH_MOVING * (other.start_s - now_s))


def _is_worth_moving(here_s: float, there_s: float | None, now_s: float) -> bool:
    return there_s is not None and here_s - there_s > max(_LEAST_GAIN_S, _WORTH_MOVING * (here_s - now_s))
