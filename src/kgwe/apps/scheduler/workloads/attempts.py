"""The attempt of each workload, and the place that the planner keeps for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgwe.apps.scheduler.workloads.attempt import Attempt

if TYPE_CHECKING:
    from kgwe.apps.scheduler.planning.planner import Planner
    from kgwe.cluster.workload.workload import Workload
    from kgwe.placement.planning.plan import Plan


class Attempts:
    """Attempts of one leader's term. They are memory only: a crash loses them without harm."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._by_uid: dict[str, Attempt] = {}

    def attempt_of(self, workload: Workload) -> Attempt:
        """The attempt of the workload; an edit of its spec starts a new one."""
        uid = workload.meta.uid
        attempt = self._by_uid.get(uid)
        if attempt is None or attempt.generation != workload.meta.generation:
            if attempt is not None:
                self.discard_plan(uid, attempt)
            # The watch of Jobs may still show a run that was deleted.
            taken_back = attempt.taken_back if attempt is not None else ""
            attempt = self._by_uid[uid] = Attempt(generation=workload.meta.generation, taken_back=taken_back)
        return attempt

    def find(self, uid: str) -> Attempt | None:
        return self._by_uid.get(uid)

    def deliver_plan(self, uid: str, plan: Plan) -> None:
        """The planner found a place: keep the plan until the run is created there."""
        attempt = self._by_uid.get(uid)
        if attempt is None:
            self._planner.discard_plan(uid)
        else:
            attempt.plan = plan

    def discard_plan(self, uid: str, attempt: Attempt) -> None:
        """Release the planned place: the workload asks for something else now."""
        if attempt.plan is not None:
            attempt.plan = None
            self._planner.discard_plan(uid)

    def release_place(self, uid: str) -> None:
        """Release the planned place, and take the workload out of the queue."""
        self._planner.forget(uid)
        if (attempt := self._by_uid.get(uid)) is not None:
            attempt.plan = None

    def forget(self, uid: str) -> None:
        """The workload object no longer exists."""
        self._planner.forget(uid)
        self._by_uid.pop(uid, None)
