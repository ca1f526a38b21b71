"""What happens when nodes or cards fail under work: who is hit, where it goes, and seeing to it that it gets there.

    node, GPUNode ──► believed? ──► who is hit ──► one plan for all ──► written down ──► old pods taken away
                      (damping)      (census)      (plan_recovery)       in the Job       (evictions)
                                                                                              │
               running again ◄── seated at their new places (seater) ◄── made anew by the Job ◄┘

A new plan is reserved in memory, stored in the Job, and only then carried out: the pods that are not where the stored
plan wants them are the ones to take away. That is read off the API alone, so whoever takes over in the middle goes on.
A single pod is held to its node by its Job, which is deleted and made anew; its new place is kept for it meanwhile.

Work that finds no place keeps what it has and is looked at first whenever room comes free.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import structlog

from kgwe import errors
from kgwe.apps.scheduler import asking, seating, strays
from kgwe.apps.scheduler.asking import OWNER_PREFIX
from kgwe.apps.scheduler.census import Census
from kgwe.apps.scheduler.damping import Damping, Patience
from kgwe.apps.scheduler.losses import Losses, move_words
from kgwe.kube import resources
from kgwe.kube.events import Event
from kgwe.placement.live import Holding
from kgwe.placement.planning import Seat
from kgwe.placement.recover import Failure, Outcome, plan_recovery
from kgwe.placement.refusals import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from kgwe.apps.scheduler.evictions import Evictions
    from kgwe.apps.scheduler.means import Means
    from kgwe.apps.scheduler.planner import Planner
    from kgwe.apps.scheduler.runs import Run
    from kgwe.kube.api import core
    from kgwe.placement.recover import Repaired
    from kgwe.placement.running import Running

log = structlog.get_logger(__name__)

# Events that could help work without a place (a pod ends, a node comes) become one look.
_GATHER_S: Final = 0.05
# What could not be written is tried again after this long.
_AGAIN_S: Final = 2.0
# Seats that no pod of a gang of others has come back for are given up after this long.
_PATIENCE_S: Final = 120.0


@dataclass
class Repairing:
    """One owner on its way back."""

    since: float
    words: str
    #: uid of a run that is deleted to be made anew
    replaced: str = ""
    #: the new plan is not stored yet
    writing: bool = False
    moves: int = 0


class Recovery:
    """One term's repairs."""

    def __init__(
        self,
        means: Means,
        planner: Planner,
        evictions: Evictions,
        *,
        seat: Callable[[str, core.Pod], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = means.client
        self._state = means.state
        self._gangs = means.gangs
        self._events = means.events
        self._metrics = means.metrics
        self._most = means.settings.recovery_moves
        self._planner = planner
        self._evictions = evictions
        self._seat = seat
        self._clock = clock
        self.census = Census(means)
        self._damping = Damping(
            Patience(
                gather_s=means.settings.recovery_gather_seconds,
                not_ready_s=means.settings.recovery_not_ready_seconds,
                share=means.settings.recovery_storm_share,
                hold_s=means.settings.recovery_storm_hold_seconds,
            )
        )
        self._lacking: dict[str, float] = {}  # owner that was hit and finds no place -> since when
        self._left_alone: set[str] = set()
        self.under_way: dict[str, Repairing] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    # --- what is heard ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Look at everything once: failures may be old, and plans stored that were not carried out."""
        for node in {place.node for owner in self._state.ledger.owners() for place in self._places(owner)}:
            self.health(node)
        for owner, run in self._state.runs.items():
            if strays.NOTE_ANNOTATION in run.meta.annotations and self._strays(run):
                self.under_way[owner] = Repairing(self._clock(), run.meta.annotations[strays.NOTE_ANNOTATION])
                self._advance(owner)

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for owner in list(self._lacking):
            self._suffices(owner)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def health(self, node: str) -> None:
        """Something about the node, or its cards, may have changed."""
        now = self._clock()
        self._damping.node(node, self._state.reader.fault(node), now)
        self._damping.cards(node, self._state.reader.sick(node), now)
        if not self._damping.is_calm or self._lacking:
            self._look_at(now)

    def room(self) -> None:
        """Room may have come free."""
        if self._lacking:
            self._look_at(self._clock() + _GATHER_S)

    def touched(self, owner: str) -> None:
        """Something about the owner's run or pods changed."""
        if owner in self.under_way:
            self._advance(owner)

    def found(self, lost: str) -> None:
        """The planner has kept room for what an owner lost: look again, at once."""
        self._planner.confirm(lost)
        self._look()

    def first(self) -> None:
        """Called before others are given room: whoever lost his has the first claim."""
        if self._lacking:
            self._look()

    def gone(self, owner: str) -> None:
        self.under_way.pop(owner, None)
        self._suffices(owner)
        self._left_alone.discard(owner)
        self.census.forget(owner)

    # --- looking ----------------------------------------------------------------------------------------

    def _look_at(self, when: float) -> None:
        if self._timer is not None:
            if self._due <= when:
                return
            self._timer.cancel()
        self._due = when
        self._timer = asyncio.get_running_loop().call_later(max(when - self._clock(), 0.0), self._look)

    def _look(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._clock()
        again = self._damping.believe(now, len(self._state.fleet.snapshot))
        if again is not None:
            self._look_at(again)
        losses = Losses(self._damping.down(), self._damping.sick(now))
        hit = [owner for owner in self._state.ledger.owners() if any(map(losses.hit, self._places(owner)))]
        for owner in set(self._lacking).difference(hit):
            self._suffices(owner)  # what it lost has come back
        self._left_alone.intersection_update(hit)
        if hit:
            self._plan(hit, losses)

    def _places(self, owner: str) -> Sequence[Holding]:
        return tuple(self._state.ledger.places(owner).values())

    def _plan(self, hit: Sequence[str], losses: Losses) -> None:
        """One plan for all that were hit, as far as they can be moved at once."""
        room = self._most - sum(each.moves for each in self.under_way.values())
        asked: dict[str, Running] = {}
        for owner in hit:
            busy = self.under_way.get(owner)
            if owner in self._left_alone or (busy is not None and (busy.writing or busy.replaced)):
                continue
            running = self.census.of(owner, losses.hit)
            if running is not None and self._is_ours_to_mend(owner):
                asked[owner] = running
                room -= sum(member.failed for member in running.members)
                if room <= 0:
                    break
        for owner in asked:
            # What was found for it since is what it gets now, or better.
            self._state.ledger.release(asking.lost_key(owner))
        fleet = self._state.fleet
        names = losses.nodes & fleet.snapshot.index.keys()
        for repaired in plan_recovery(fleet.fitter, fleet.tree, asked.values(), Failure(nodes=names)).repairs:
            self._apply(asked[repaired.workload], repaired, losses)

    def _is_ours_to_mend(self, owner: str) -> bool:
        """A run of which no pod has found its place is planned anew by whoever waits for that."""
        run = self._state.runs.get(owner)
        return run is None or any(pod.spec.nodeName for pod in self._state.pods_of(run).values())

    def _since(self, running: Running, losses: Losses) -> float:
        """When the first of what hit it went wrong."""
        nodes = {place.node for place in self._places(running.name) if losses.hit(place)}
        times = [at for node in nodes if (at := self._damping.since(node)) is not None]
        return self._lacking.get(running.name, min(times, default=self._clock()))

    def _apply(self, running: Running, repaired: Repaired, losses: Losses) -> None:
        owner = repaired.workload
        since = self._since(running, losses)
        cause = losses.words(self._places(owner), self._state.reader.fault)
        if repaired.outcome is Outcome.LEFT_ALONE:
            self._left_alone.add(owner)
            self._say(owner, "Warning", "LeftAlone", f"{cause}; its recovery policy is to do nothing")
            return
        if repaired.outcome is Outcome.WAITS:
            if owner not in self._lacking:
                words = f"{cause}; {repaired.missing} pods have no place that keeps what it requires, and wait for one"
                self._say(owner, "Warning", Reason.RECOVERING, words)
            self._lack(running, since)
            return
        self._suffices(owner)
        if repaired.missing:
            self._lack(running, since)
        words = f"{cause}; {move_words(repaired)}"
        self.under_way[owner] = Repairing(since, words, moves=len(repaired.moves))
        self._metrics.recovery_plan_seconds.observe(self._clock() - since)
        self._metrics.recoveries.labels(repaired.outcome).inc()
        self._say(owner, "Warning", Reason.RECOVERING, words)
        log.info("recovering", owner=owner, outcome=str(repaired.outcome), plan=words)
        if owner.startswith(OWNER_PREFIX):
            self._move_gang(owner, repaired)
        elif len(running.members) == 1 and len(self._state.runs[owner].seats) == 1:
            self._renew(owner, repaired)
        else:
            self._move_run(owner, repaired)

    def _lack(self, running: Running, since: float) -> None:
        """Let it wait for room before all others of its priority, and let others make way for it."""
        self._lacking[running.name] = since
        ask = asking.ask_for_lost(running, self._state.fleet, *self._named(running.name))
        if ask is not None:
            self._planner.want(ask)

    def _named(self, owner: str) -> tuple[str, str]:
        workload, group = self._state.workload(owner), self._gangs.group(owner)
        if workload is not None:
            return workload.meta.namespace, workload.meta.name
        return (group.key.namespace, group.key.title) if group is not None else ("", owner)

    def _suffices(self, owner: str) -> None:
        """It waits no longer, or no longer in vain."""
        if self._lacking.pop(owner, None) is not None:
            lost = asking.lost_key(owner)
            self._planner.forget(lost)
            self._state.ledger.release(lost)

    # --- a gang of ours ---------------------------------------------------------------------------------

    def _move_run(self, owner: str, repaired: Repaired) -> None:
        run = self._state.runs[owner]
        before, seats = run.seats, list(run.seats)
        for move in repaired.moves:
            seats[int(move.member)] = Seat.of(move.node, move.grant)
        annotations = {
            seating.PLAN_ANNOTATION: seating.encode(seats),
            strays.NOTE_ANNOTATION: self.under_way[owner].words,
        }
        if repaired.restarts:
            annotations[strays.ROUND_ANNOTATION] = str(strays.round_of(run.meta.annotations) + 1)
        self.under_way[owner].writing = True
        self._state.move(owner, tuple(seats))
        self._do(self._write(owner, before, annotations))

    async def _write(self, owner: str, before: tuple[Seat, ...], annotations: Mapping[str, str]) -> None:
        """Store the new plan where it replaces the old one, and nothing else; then see that it comes true."""
        run = self._state.runs.get(owner)
        try:
            stored = run is not None and await strays.store(self._client, run, before, annotations)
        except errors.KgweError as exc:
            log.warning("recovery_not_stored", owner=owner, error=str(exc))
            stored = False
        repairing = self.under_way.get(owner)
        if not stored:
            self.under_way.pop(owner, None)
            self._state.move(owner, None)
            self._look_at(self._clock() + _AGAIN_S)
        elif repairing is not None:
            repairing.writing = False
            self._advance(owner)

    # --- a single pod of ours ---------------------------------------------------------------------------

    def _renew(self, owner: str, repaired: Repaired) -> None:
        """Its Job cannot be moved: it is deleted and made anew at the place that is kept for it."""
        run = self._state.runs[owner]
        (move,) = repaired.moves
        place = Seat.of(move.node, move.grant)
        self._planner.claim(owner, {0: Holding(place.node, run.wanted, place.cards, place.slices)}, ready=True)
        self._planner.remarks[owner] = (Reason.RECOVERING, self.under_way[owner].words)
        self.under_way[owner].replaced = run.meta.uid
        self._do(self._delete(owner, run))

    async def _delete(self, owner: str, run: Run) -> None:
        try:
            with contextlib.suppress(errors.NotFound, errors.Conflict):
                await self._client.delete(run.resource, run.meta.name, run.meta.namespace, uid=run.meta.uid)
        except errors.KgweError as exc:
            log.warning("run_not_deleted", owner=owner, error=str(exc))
            self.under_way.pop(owner, None)
            self._planner.unclaim(owner)
            self._look_at(self._clock() + _AGAIN_S)
            return
        for uid in list(self._state.pods_of(run)):
            self._evictions.remove(uid, "its workload is placed elsewhere")

    # --- a gang of others -------------------------------------------------------------------------------

    def _move_gang(self, owner: str, repaired: Repaired) -> None:
        places = self._state.ledger.places(owner)
        moved: dict[int, Holding] = {}
        for move in repaired.moves:
            if not move.member.isdigit():
                continue  # it never had a seat: it is planned with those that wait
            seat = Seat.of(move.node, move.grant)
            moved[int(move.member)] = Holding(seat.node, places[int(move.member)].amounts, seat.cards, seat.slices)
        restarted = [int(member) for member in repaired.restarts if member.isdigit()]
        for uid in self._gangs.move(owner, moved, restarted):
            self._evictions.remove(uid, self.under_way[owner].words)

    # --- on the way -------------------------------------------------------------------------------------

    def _advance(self, owner: str) -> None:
        """Take away what is in the way of the plan, and tell when it has come true."""
        repairing = self.under_way[owner]
        if repairing.writing:
            return
        run = self._state.runs.get(owner)
        if run is not None and run.meta.uid != repairing.replaced:
            for uid in self._strays(run):
                self._evictions.remove(uid, repairing.words)
            for pod in self._state.unseated(owner):
                self._seat(owner, pod)
        if self._is_whole(owner, repairing):
            took_s = self._clock() - repairing.since
            del self.under_way[owner]
            self._metrics.recovery_seconds.observe(took_s)
            self._say(owner, "Normal", "Recovered", f"{repairing.words}; all runs again after {took_s:.1f} s")
            log.info("recovered", owner=owner, seconds=round(took_s, 2))
        elif owner.startswith(OWNER_PREFIX) and self._clock() - repairing.since > _PATIENCE_S:
            del self.under_way[owner]
            self._gangs.give_up(owner)

    def _strays(self, run: Run) -> list[str]:
        pods = self._state.pods_of(run).values()
        return [pod.metadata.uid for pod in strays.of(run, pods, self._state.reader.sick)]

    def _is_whole(self, owner: str, repairing: Repairing) -> bool:
        run = self._state.runs.get(owner)
        places = self._state.ledger.places(owner)
        if not places or (run is not None and run.meta.uid == repairing.replaced):
            return False
        if run is not None and self._strays(run):
            return False
        pods = [self._state.pods.get(self._state.ledger.pod_in(owner, number)) for number in places]
        return all(pod is not None and pod.status.phase == "Running" for pod in pods)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _say(self, owner: str, type_: Literal["Normal", "Warning"], reason: str, words: str) -> None:
        workload = self._state.workload(owner)
        if workload is not None:
            event = Event(workload.kind.resource, workload.meta, type_, reason, words, "Recovery")
            self._events.record(event)
            return
        group = self._gangs.group(owner)
        for pod, _ in list(group.members.values())[:1] if group is not None else ():
            self._events.record(Event(resources.POD, pod.metadata, type_, reason, words, "Recovery"))
