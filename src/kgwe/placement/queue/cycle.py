"""One pass over the queue: who gets a place now.

    outcomes = run_pass(queue, planner, now_s, roster, holds)

Works are tried in the order of the queue, each shape once until something changes; what finds a place is committed
before the next is tried. Who is refused is parked. Of those of a priority, the oldest and the one whose turn is first
get a hold as soon as somebody behind them has found a place, and not before: while all are refused there is nothing
to keep.

An error in planning one work is reported for that work, which is tried again after a growing pause. The others have
their turn as if it were not there.
"""

from __future__ import annotations

import enum
import functools
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from kgwe.placement.live.scratch import NOWHERE
from kgwe.placement.queue.fair_share import Rounds, Shares
from kgwe.placement.queue.followers import Followers
from kgwe.placement.queue.queue import GivenUp
from kgwe.placement.queue.reservations import Rule
from kgwe.placement.queue.unschedulable import No

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.placement.fleet.node import Request
    from kgwe.placement.fleet.snapshot import Grant
    from kgwe.placement.gang.request import Following, GangRequest
    from kgwe.placement.queue.queue import Level, Queue
    from kgwe.placement.queue.reservations import Hold, Holds
    from kgwe.placement.queue.unschedulable import Bucket, Shape
    from kgwe.placement.queue.work import Roster, Work


class Plan(Protocol):
    """A place for all of a work."""

    @property
    def nodes(self) -> Sequence[str]: ...
    @property
    def grants(self) -> Sequence[Grant]: ...


P = TypeVar("P", bound=Plan)

# Plans in one pass for which it is worked out whether they leave room for who waits.
_ASKED_MOST: Final = 8
# Works of a level that are considered for a hold.
_HEADS_MOST: Final = 4


class Planner(Protocol[P]):
    """How the one who runs passes plans and books."""

    def plan(self, work: Work, avoid: frozenset[str], following: Following) -> P | No:
        """A place for all of the work off the nodes of `avoid`, or why there is none. Books nothing.

        `following`: gangs whose turn comes later, for which the place should leave as much as it can.
        """

    def commit(self, work: Work, plan: P) -> None:
        """Book it: the next plan must see it."""

    def takes(self, request: Request | GangRequest, nodes: Sequence[str]) -> bool:
        """Whether any of the nodes takes a pod of it now (`kgwe.placement.live.scratch.takes`)."""


@dataclass(frozen=True, slots=True)
class Placed(Generic[P]):
    work: Work
    plan: P


@dataclass(frozen=True, slots=True)
class Held:
    """It waits. Told once for each work, and again when a place is kept for it or no longer is."""

    work: Work
    no: No
    hold: Hold | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """Planning it raised an error. It waits for its next try."""

    work: Work
    stage: str
    """plan: finding its place; hold: keeping a place for it."""
    error: Exception


Outcome = Placed[P] | Held | GivenUp | Failed


def run_pass(
    queue: Queue, planner: Planner[P], now_s: float, roster: Roster, holds: Holds | None = None
) -> list[Outcome[P]]:
    """Place what can be placed. Without `holds`, whoever fits goes ahead of who does not."""
    return _Pass(queue, planner, now_s, roster, holds).run()


class _Step(enum.Enum):
    """What became of a work in its turn."""

    GIVEN = enum.auto()
    PARKED = enum.auto()
    PASSED = enum.auto()
    FAILED = enum.auto()


class _Pass(Generic[P]):
    def __init__(self, queue: Queue, planner: Planner[P], now_s: float, roster: Roster, holds: Holds | None) -> None:
        self._queue = queue
        self._planner = planner
        self._now_s = now_s
        self._roster = roster
        self._holds = holds
        self._rule = Rule.GREEDY if holds is None else holds.settings.rule
        self._shares = Shares(roster.held_by_namespaces(), queue.weights)
        self._outcomes: list[Outcome[P]] = []
        self._commits = 0
        self._looked = 0
        self._asked = 0
        self._refreshed = False
        # Shape -> its plan, and the count of commits when it was made.
        self._plans: dict[Shape, tuple[int, P]] = {}
        # (shape, nodes to avoid) refused, likewise.
        self._refused: dict[tuple[Shape, frozenset[str]], int] = {}
        # Shapes some of whose works have to leave what is kept for others alone.
        self._behind: dict[Shape, No] = {}
        # Level -> what was parked when holds for it were last looked for, to the end.
        self._searched: dict[Level, int] = {}
        self._followers = Followers(queue)
        # Works whose holds changed.
        self._told: dict[str, Work] = {}

    def run(self) -> list[Outcome[P]]:
        queue, holds = self._queue, self._holds
        self._outcomes.extend(queue.advance(self._now_s))
        is_other = queue.parking.settle(self._takes)
        if holds is not None:
            holds.begin(queue, self._now_s, is_other=is_other)
            if len(holds) and queue.parking.behind:
                self._refresh(holds)
            queue.parking.wake_behind(holds.version)
        self._run_levels()
        # What was kept for one who has started by now is there for others.
        if holds is not None and queue.parking.wake_behind(holds.version):
            self._run_levels()
        queue.review_s = holds.next_s() if holds is not None and queue.parking.behind else None
        if queue.untold or self._told:
            self._tell()
        return self._outcomes

    def _run_levels(self) -> None:
        parking = self._queue.parking
        if not parking.awake:
            return
        self._behind.clear()
        for level, buckets in self._queue.agenda():
            if not self._run_level(level, buckets):
                break
        version = self._holds.version if self._holds is not None else 0
        for shape, no in self._behind.items():
            if shape.buckets and shape.no is None:
                parking.park(shape, no, behind=version)

    # --- turns ------------------------------------------------------------------------------------------

    def _run_level(self, level: Level, buckets: list[Bucket]) -> bool:
        """Returns whether lower levels have their turn."""
        rounds = Rounds(level, buckets, self._shares)
        while (turn := rounds.next()) is not None:
            key, bucket = turn
            entry = self._queue.entries[key]
            if entry.bucket is not bucket:
                rounds.dropped()  # it failed as the owner of a hold, in the turn of another
                continue
            work = entry.work
            if self._rule is Rule.BLOCK and self._is_blocked(work):
                return False
            step = self._take_turn(work, bucket.shape)
            if step is _Step.PASSED:
                rounds.passed()
                if self._is_deep_enough():
                    return False
            elif step is _Step.GIVEN:
                rounds.given()
            elif step is _Step.FAILED:
                rounds.dropped()
        return True

    def _take_turn(self, work: Work, shape: Shape) -> _Step:
        """Place the work if it may be placed now. An error is its own: it is put back with a pause."""
        try:
            plan = self._plan(work, shape)
            if plan is None:
                return _Step.PARKED
            if self._rule in (Rule.HOLD, Rule.BACKFILL):
                plan = self._kept_to_holds(work, shape, plan)
                if plan is None:
                    return _Step.PASSED
            self._commit(work, plan)
        except Exception as exc:  # noqa: BLE001 - whatever it is, the others have their turn
            self._plans.pop(shape, None)
            self._fail(work, "plan", exc)
            return _Step.FAILED
        return _Step.GIVEN

    def _fail(self, work: Work, stage: str, error: Exception) -> None:
        if self._holds is not None:
            self._holds.end(work.key)
        self._told.pop(work.key, None)
        # Spread by key: works that fail together are not all tried again together.
        luck = zlib.crc32(work.key.encode()) / 2**32
        self._queue.retry(work, self._now_s, luck, f"{type(error).__name__}: {error}")
        self._outcomes.append(Failed(work, stage, error))

    def _takes(self, request: Request | GangRequest, nodes: Sequence[str]) -> bool:
        try:
            return self._planner.takes(request, nodes)
        except Exception:  # noqa: BLE001 - its turn, which comes now, tells what is wrong with it
            return True

    def _is_blocked(self, work: Work) -> bool:
        """Whether somebody before it waits already."""
        levels = self._queue.parked_levels()
        heads = self._queue.heads(work.level, self._shares)
        return (bool(levels) and levels[0] < work.level) or any(self._is_before(head.work, work) for head in heads)

    def _is_before(self, one: Work, other: Work) -> bool:
        """By level; within one by age, or by whose turn it is: who is first in either is not to be overtaken."""
        if one.level != other.level:
            return one.level < other.level
        ages = (one.since_s, one.key), (other.since_s, other.key)
        shares = self._shares.of(one.namespace), self._shares.of(other.namespace)
        return ages[0] < ages[1] or (one.level[1] and (shares[0], ages[0]) < (shares[1], ages[1]))

    def _is_deep_enough(self) -> bool:
        self._looked += 1
        return self._holds is not None and self._looked >= self._holds.settings.depth

    # --- plans ------------------------------------------------------------------------------------------

    def _plan(self, work: Work, shape: Shape) -> P | None:
        known = self._plans.get(shape)
        if known is not None and known[0] == self._commits:
            return known[1]
        answer = self._planner.plan(work, NOWHERE, self._followers.of(work))
        if isinstance(answer, No):
            self._queue.parking.park(shape, answer)
            return None
        self._plans[shape] = self._commits, answer
        return answer

    def _commit(self, work: Work, plan: P) -> None:
        self._planner.commit(work, plan)
        self._queue.remove(work.key)
        self._queue.note_started(work)
        self._commits += 1
        if self._holds is not None and len(self._holds):
            self._holds.note(work, plan.nodes, self._now_s)
        self._outcomes.append(Placed(work, plan))

    def _kept_to_holds(self, work: Work, shape: Shape, plan: P) -> P | None:
        """A plan that leaves alone what is kept for others."""
        holds = self._holds
        if holds is None or not (self._queue.parking.parked or len(holds)):
            return plan
        self._make_holds(work)
        against = holds.against(work, self._now_s)
        touched = [hold for hold in against if not hold.nodes.isdisjoint(plan.nodes)]
        if not touched:
            return plan
        avoid = NOWHERE.union(*(hold.nodes for hold in against))
        if self._refused.get((shape, avoid)) != self._commits:
            answer = self._planner.plan(work, avoid, self._followers.of(work))
            if not isinstance(answer, No):
                return answer
            if self._leave_room(holds, touched, plan):
                return plan
            self._refused[shape, avoid] = self._commits
            words_for = functools.partial(_kept_words, tuple(touched))
            self._behind[shape] = No(words_for(work.namespace), why=answer, words_for=words_for)
        return None

    def _leave_room(self, holds: Holds, touched: Sequence[Hold], plan: P) -> bool:
        """Asked seldom: it takes as long as planning the one who waits."""
        self._asked += 1
        if self._asked > _ASKED_MOST:
            return False
        for hold in touched:
            try:
                if not holds.leave_room((hold,), plan.grants, self._now_s):
                    return False
            except Exception as exc:  # noqa: BLE001 - an error of the work that waits, not of the one whose turn it is
                self._fail(self._queue.entries[hold.key].work, "hold", exc)
                return False
        return True

    def _make_holds(self, work: Work) -> None:
        """See to it that those before the work have what is kept for them."""
        holds = self._holds
        if holds is None:
            return
        self._refresh(holds)
        for level in self._queue.parked_levels():
            if level > work.level:
                break
            if holds.wants(level) and self._searched.get(level) != self._queue.parking.version:
                self._make_holds_of(level, work, holds)

    def _refresh(self, holds: Holds) -> None:
        if not self._refreshed:
            self._refreshed = True
            self._told.update((each.key, each) for each in holds.refresh(self._now_s))
            for work, error in holds.take_failures():
                self._fail(work, "hold", error)

    def _make_holds_of(self, level: Level, work: Work, holds: Holds) -> None:
        """For the first of a level, if they are before the work; who cannot have one is passed over."""
        passed_over = {hold.key for hold in holds.all()}
        for _ in range(_HEADS_MOST):
            heads = self._queue.heads(level, self._shares, passed_over)
            if not heads or not holds.wants(level):
                # Nothing more to be had until something else is parked.
                self._searched[level] = self._queue.parking.version
                return
            if not any(self._is_before(head.work, work) for head in heads):
                return
            for head in heads:
                passed_over.add(head.work.key)
                if holds.wants(level):
                    self._make_hold(head.work, holds)
        self._searched[level] = self._queue.parking.version

    def _make_hold(self, work: Work, holds: Holds) -> None:
        try:
            if holds.make(work, self._now_s) is not None:
                self._told[work.key] = work
        except Exception as exc:  # noqa: BLE001 - an error of the work that waits, not of the one whose turn it is
            self._fail(work, "hold", exc)

    # --- words ------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        queue, holds = self._queue, self._holds
        for key in queue.untold:
            entry = queue.entries[key]
            if entry.shape.no is not None and entry.bucket is not None:
                self._told[key] = entry.work
        for key, work in self._told.items():
            entry_now = queue.entries.get(key)
            no = entry_now.shape.no if entry_now else None
            if no is not None:
                if no.words_for is not None:
                    no = replace(no, words=no.words_for(work.namespace))
                self._outcomes.append(Held(work, no, holds.get(key) if holds else None))
                queue.untold.pop(key, None)


def _kept_words(holds: Sequence[Hold], namespace: str) -> str:
    nodes = len(NOWHERE.union(*(hold.nodes for hold in holds)))
    names = ", ".join(dict.fromkeys(hold.title(namespace) for hold in holds))
    return f"there is room only on {nodes} node{'s' * (nodes > 1)} kept for {names}"
