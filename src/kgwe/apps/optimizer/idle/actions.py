"""Notifies owners of idle workloads, suspends them after a grace period, and follows restores.

Only namespaces that opt in are acted on. The pure state machine decides (`forecast.waste.idle_policy`); this module
looks at owners, carries its orders out and remembers what became of them. A failing workload concerns itself alone.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from kgwe import errors
from kgwe.apps.optimizer.idle.cases import Case
from kgwe.apps.optimizer.idle.ledger import Entry
from kgwe.cluster.suspension import marks
from kgwe.cluster.suspension.owner_search import NoOwner, Owner, find_owner
from kgwe.cluster.suspension.suspender import Result
from kgwe.forecast.waste import idle_annotations, idle_policy
from kgwe.forecast.waste.idle_policy import IdleAction, Order, Phase
from kgwe.kube.api import resources
from kgwe.kube.api.meta import ObjectMeta
from kgwe.kube.client.client import Forbidden
from kgwe.kube.client.events import Event
from kgwe.model.units import phrasing
from kgwe.notify.notification import OWNER_ANNOTATION, Notification, Severity, Subject

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kgwe.apps.optimizer.history.gpu_pods import PodFacts
    from kgwe.apps.optimizer.idle.ledger import IdleLedger, Key
    from kgwe.apps.optimizer.waste.detector import Assessment
    from kgwe.cluster.suspension.suspender import Suspender
    from kgwe.forecast.waste.idle_policy import IdlePolicy, Transition
    from kgwe.kube.client.client import KubeClient
    from kgwe.model.usage.window import PodKey

log = structlog.get_logger(__name__)

_LOOKED_AT: Final = frozenset(Phase) - {Phase.WATCHING, Phase.RESTORED}
_ANNOUNCED: Final = frozenset({Phase.NOTIFYING, Phase.NOTIFIED, Phase.GRACE, Phase.SNOOZED})
_REASON: Final = "IdleGPU"
# Runs of a namespace whose owners are looked up before an order; pods of more runs count as pods of the owner.
_MAX_RUNS: Final = 50


@dataclass(frozen=True, slots=True)
class Outlets:
    """Where actions are told: Events, notifications and counters."""

    record: Callable[[Event], None]
    notify: Callable[[Notification], object]
    count: Callable[[str], None]


class IdleActions:
    """One round after each judgement."""

    def __init__(
        self,
        client: KubeClient,
        suspender: Suspender,
        ledger: IdleLedger,
        *,
        policy: IdlePolicy,
        list_pods: Callable[[], Mapping[PodKey, PodFacts]],
        find_namespace: Callable[[str], ObjectMeta | None],
        outlets: Outlets,
    ) -> None:
        """`policy`: for namespaces that opt in and give no times of their own."""
        self._client = client
        self._suspender = suspender
        self._ledger = ledger
        self._policy = policy
        self._list_pods = list_pods
        self._find_namespace = find_namespace
        self._outlets = outlets
        self._last_s: float | None = None
        self._is_loaded = False

    async def act(self, assessment: Assessment, now_s: float, clock_s: float) -> None:
        """Look at all workloads once. `clock_s`: of a clock that does not jump."""
        if not self._is_loaded:
            await self._ledger.load()
            self._is_loaded = True
        elapsed_s = 0.0 if self._last_s is None else max(clock_s - self._last_s, 0.0)
        self._last_s = clock_s
        groups = self._group_pods()
        for key in sorted({*groups, *self._ledger.entries}):
            try:
                entry = self._ledger.entries.get(key) or Entry(*key)
                policy = self._read_policy(key[0])
                await self._act_on(Case(entry, groups.get(key, []), policy, assessment, now_s, elapsed_s))
            except errors.KgweError as exc:
                log.warning("idle_action_failed", workload=key, error=str(exc))
            except Exception:  # one workload must not stop the others
                log.exception("idle_action_crashed", workload=key)
        await self._ledger.save(now_s)

    def _group_pods(self) -> dict[Key, list[PodFacts]]:
        groups: dict[Key, list[PodFacts]] = defaultdict(list)
        for facts in self._list_pods().values():
            if not facts.is_ended:
                groups[facts.key.namespace, facts.owner_kind, facts.owner_name].append(facts)
        return groups

    async def _act_on(self, case: Case) -> None:
        entry, phase = case.entry, case.entry.record.phase
        if case.policy.action is IdleAction.OFF and phase is Phase.WATCHING and entry.key not in self._ledger.entries:
            return
        if phase in _LOOKED_AT or not case.pods:
            case.owner = await self._find_owner(case)
        if not case.pods and not case.is_worth_keeping():
            await self._ledger.drop(entry.key)
            return
        transition = case.advance()
        if transition.order is not Order.NONE and case.owner is None:
            # Only now the owner is read: its wishes may forbid the order.
            case.owner = await self._find_owner(case)
            transition = case.advance()
        if transition.order is not Order.NONE and case.owner is not None:
            # All pods that the owner would lose must be idle, whatever group they say they belong to.
            case.siblings = await self._find_siblings(case, case.owner)
            transition = case.advance()
        await self._follow(case, transition)

    async def _follow(self, case: Case, transition: Transition) -> None:
        """Carry the order out, and remember what became of the workload."""
        before = case.entry.record.phase
        case.entry = entry = msgspec.structs.replace(case.entry, record=transition.record)
        if transition.order is Order.NOTIFY:
            entry = await self._notify(case)
        elif transition.order is Order.SUSPEND:
            entry = await self._suspend(case)
        elif transition.reason == "Restored":
            entry = entry.end_suspension(case.now_s)
            self._outlets.count("restore")
        elif entry.record.phase is Phase.SUSPENDED and entry.suspended_s is None:
            # The process ended before it wrote down what it had done.
            entry = case.adopt_suspension()
        elif before in _ANNOUNCED and entry.record.phase is Phase.WATCHING:
            await self._withdraw_notice(case.owner)
        self._ledger.put(entry)

    # --- owners -----------------------------------------------------------------------------------------

    async def _find_owner(self, case: Case) -> Owner | None:
        """Return the object to suspend, or that was suspended; None if there is none."""
        entry, pods = case.entry, case.pods
        kind = entry.find_kind()
        if kind is not None:
            try:
                found = Owner(kind, await self._client.get(kind.resource, entry.owner_name, entry.namespace))
            except errors.NotFound:
                found = None
            if found is not None and found.meta.uid == entry.owner_uid:
                return found
        if not pods:
            return None
        try:
            pod = await self._client.get(resources.POD, pods[0].key.name, pods[0].key.namespace)
        except errors.NotFound:
            return None
        owner = await find_owner(self._client, pod)
        return None if isinstance(owner, NoOwner) else owner

    async def _find_siblings(self, case: Case, owner: Owner) -> list[PodFacts]:
        """Return the other GPU pods of the namespace that the owner controls. One that cannot be told counts, too."""
        mine, runs = {facts.uid for facts in case.pods}, {facts.run_uid for facts in case.pods}
        others: dict[str, list[PodFacts]] = defaultdict(list)
        for facts in self._list_pods().values():
            if facts.key.namespace == case.entry.namespace and not facts.is_ended and facts.uid not in mine:
                others[facts.run_uid].append(facts)
        found: list[PodFacts] = []
        for number, (run, pods) in enumerate(sorted(others.items())):
            if run in runs or number >= _MAX_RUNS or await self._is_controlled(pods[0], owner):
                found += pods
        return found

    async def _is_controlled(self, facts: PodFacts, owner: Owner) -> bool:
        """Whether the owner references of a pod lead to the owner."""
        try:
            pod = await self._client.get(resources.POD, facts.key.name, facts.key.namespace)
        except errors.NotFound:
            return False
        found = await find_owner(self._client, pod)
        return isinstance(found, Owner) and found.meta.uid == owner.meta.uid

    def _read_policy(self, namespace: str) -> IdlePolicy:
        meta = self._find_namespace(namespace)
        if meta is None:
            return self._policy
        policy, problems = idle_annotations.read_policy(meta.labels, meta.annotations, self._policy)
        for problem in problems:
            log.warning("idle_policy_invalid", namespace=namespace, problem=problem)
        return policy

    # --- orders -----------------------------------------------------------------------------------------

    async def _notify(self, case: Case) -> Entry:
        """Write the notice on the owner, an Event on its pods, and a notification."""
        entry, owner, pods, policy, now_s = case.entry, case.owner, case.pods, case.policy, case.now_s
        saving = case.sum_saving()
        can_suspend = policy.action is IdleAction.SUSPEND and owner is not None
        action_at_s = now_s + policy.grace_s if can_suspend else None
        idle_for = phrasing.format_duration(entry.record.idle_s)
        what = (
            f"It will be suspended in {phrasing.format_duration(policy.grace_s)}."
            if action_at_s
            else "Stop it to free them."
        )
        keep = f"Keep it with: kgwe idle keep {entry.name} -n {entry.namespace} --for 8h"
        text = f"The GPUs of {entry.kind} {entry.name} have been idle for {idle_for}. {what} {keep}"
        if owner is not None:
            notice = marks.Notice(now_s - entry.record.idle_s, action_at_s, saving)
            await self._annotate(owner, marks.write_notice(notice))
        for facts in pods:
            self._record(facts, text)
        wanted = (owner.meta.annotations if owner is not None else pods[0].annotations).get(OWNER_ANNOTATION, "")
        title = f"GPUs of {entry.namespace}/{entry.name} are idle"
        subject = Subject(entry.kind, entry.name, entry.namespace)
        key = f"{_REASON}/{'/'.join(entry.key)}"
        self._outlets.notify(Notification(_REASON, Severity.WARNING, title, text, subject, key, now_s, owner=wanted))
        self._outlets.count("notify")
        confirmed = idle_policy.confirm_notified(entry.record, policy).record
        noted = entry.with_owner(owner) if owner is not None else entry
        return msgspec.structs.replace(noted, record=confirmed, saving_per_hour=saving)

    async def _suspend(self, case: Case) -> Entry:
        entry, pods, now_s = case.entry, case.pods, case.now_s
        if not pods:
            return entry
        pod = await self._client.get(resources.POD, pods[0].key.name, pods[0].key.namespace)
        idle_for = phrasing.format_duration(entry.record.idle_s)
        try:
            outcome = await self._suspender.suspend_pod(pod, f"{_REASON}: its GPUs were idle for {idle_for}", now_s)
        except Forbidden as exc:
            log.warning("suspend_forbidden", workload=entry.key, error=str(exc), next="bind kgwe-optimizer-act")
            return await self._give_up(case)
        if outcome.result is Result.ALREADY_SUSPENDED and not case.is_suspended_by_us():
            return entry
        if outcome.result not in {Result.SUSPENDED, Result.ALREADY_SUSPENDED}:
            log.info("suspend_refused", workload=entry.key, reason=outcome.reason, message=outcome.message)
            return await self._give_up(case)
        self._outlets.count("suspend")
        restore = f"kgwe idle restore {entry.name} -n {entry.namespace}"
        self._record(pods[0], f"{outcome.message}: its GPUs were idle for {idle_for}. Restore it with: {restore}")
        return case.note_suspension(outcome)

    async def _give_up(self, case: Case) -> Entry:
        """Return the entry of a workload that cannot be suspended; its notice no longer holds."""
        await self._withdraw_notice(case.owner)
        return msgspec.structs.replace(case.entry, record=idle_policy.confirm_refused(case.entry.record).record)

    async def _withdraw_notice(self, owner: Owner | None) -> None:
        """Remove the notice: the workload uses its GPUs again, is kept, or cannot be suspended."""
        if owner is not None and marks.read_notice(owner.meta.annotations) is not None:
            await self._annotate(owner, {**marks.erase_notice()})

    async def _annotate(self, owner: Owner, notes: Mapping[str, str | None]) -> None:
        """Write annotations of the owner; without the right to do so the Events have to do."""
        body = {"metadata": {"annotations": dict(notes)}}
        try:
            await self._client.patch(owner.kind.resource, owner.meta.name, body, owner.meta.namespace)
        except Forbidden as exc:
            log.info("notice_not_written", owner=owner.title, error=str(exc))

    def _record(self, facts: PodFacts, text: str) -> None:
        about = ObjectMeta(name=facts.key.name, namespace=facts.key.namespace, uid=facts.uid)
        self._outlets.record(Event(resources.POD, about, "Warning", _REASON, text, "Suspending"))
