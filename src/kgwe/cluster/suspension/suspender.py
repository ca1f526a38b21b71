"""Suspends owners of pods, restores what KGWE suspended, and keeps owners from being suspended.

Every write carries the version that was read, so it fails if another client wrote since; then everything is read and
decided again. A record in annotations makes a second call change nothing, and lets users see and undo it. What the
annotations say is a claim: replicas are limited to those in the caller's ledger, or to a bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from kgwe import errors
from kgwe.cluster.suspension import marks, scaling_targets
from kgwe.cluster.suspension.owner_kinds import STOP_ANNOTATION, Method
from kgwe.cluster.suspension.owner_search import NoOwner, Owner, find_owner
from kgwe.kube.api import timestamp
from kgwe.kube.client.client import Forbidden, retry_conflict

if TYPE_CHECKING:
    from kgwe.cluster.suspension.owner_kinds import OwnerKind
    from kgwe.kube.api import core
    from kgwe.kube.client.client import KubeClient

#: replicas that are restored at most where no ledger says how many there were
MOST_REPLICAS: Final = 100


class Result(StrEnum):
    SUSPENDED = "Suspended"
    ALREADY_SUSPENDED = "AlreadySuspended"
    RESTORED = "Restored"
    KEPT = "Kept"
    REFUSED = "Refused"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call came to. The caller keeps `uid` and `replicas` of a suspension in its ledger, for the restore."""

    result: Result
    #: one word; empty if there is nothing to add
    reason: str
    message: str
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    #: replicas before the suspension, or after the restore
    replicas: int | None = None


class Suspender:
    """Acts for one process of KGWE, whose name is written into the records."""

    def __init__(self, client: KubeClient, by: str) -> None:
        self._client = client
        self._by = by

    async def suspend_pod(self, pod: core.Pod, reason: str, now_s: float) -> Outcome:
        """Suspend the owner of the pod. `reason`: one CamelCase word, and optionally a colon and a sentence."""

        async def attempt() -> Outcome:
            owner = await find_owner(self._client, pod)
            if isinstance(owner, NoOwner):
                meta = pod.metadata
                return Outcome(Result.REFUSED, owner.reason, owner.message, "Pod", meta.namespace, meta.name, meta.uid)
            return await self.suspend(owner, reason, now_s)

        return await retry_conflict(attempt)

    async def suspend(self, owner: Owner, reason: str, now_s: float, *, heeds_keep: bool = True) -> Outcome:
        """Suspend an owner as it was read; Conflict if it has changed since. `heeds_keep`: not one that is kept."""
        if is_suspended(owner):
            return _outcome(owner, Result.ALREADY_SUSPENDED, "", f"{owner.title} is suspended already")
        if (refusal := await self._find_objection(owner, now_s, heeds_keep=heeds_keep)) is not None:
            return refusal
        replicas = _replicas(owner) if owner.kind.method is Method.REPLICAS else None
        notes = marks.write_record(self._by, timestamp.format_time(now_s), reason, replicas)
        notice = {marks.IDLE_ACTION_AT: None}
        spec = _stop_spec(owner)
        try:
            await self._patch(owner, notes | notice | _stop_note(owner, now_s), spec)
        except Forbidden:
            raise
        except errors.Permanent:
            # Annotations have a size, and a tenant can fill them: the object is stopped without a record, and its owner
            # resumes it.
            if not spec:
                raise
            await self._patch(owner, notice, spec)
        return _outcome(owner, Result.SUSPENDED, "", f"suspended {owner.title}", replicas)

    async def _find_objection(self, owner: Owner, now_s: float, *, heeds_keep: bool) -> Outcome | None:
        """Why the owner must not be suspended now."""
        until = marks.kept_until_s(owner.meta.annotations, now_s) if heeds_keep else None
        if until is not None:
            return _refuse(owner, "Kept", f"{owner.title} is kept until {timestamp.format_time(until)}")
        if _has_ended(owner):
            return _refuse(owner, "AlreadyFinished", f"{owner.title} has ended")
        if owner.kind.method is not Method.REPLICAS:
            return None
        try:
            scaler = await scaling_targets.find_autoscaler(self._client, owner)
        except Forbidden as exc:
            return _refuse(owner, "AutoscalersUnknown", f"cannot see whether {owner.title} is autoscaled: {exc}")
        if scaler:
            return _refuse(owner, "Autoscaled", f"HorizontalPodAutoscaler {scaler} sets the replicas of {owner.title}")
        return None

    async def restore(self, kind: OwnerKind, namespace: str, name: str, ledger: Outcome | None = None) -> Outcome:
        """Undo a suspension by KGWE, if the object is still suspended.

        `ledger`: the outcome of the suspension, as the caller kept it. None: the record on the object counts, and
        replicas are limited to `MOST_REPLICAS`.
        """

        async def attempt() -> Outcome:
            owner = Owner(kind, await self._client.get(kind.resource, name, namespace))
            if ledger is not None and ledger.uid != owner.meta.uid:
                return _refuse(owner, "Replaced", f"{owner.title} is not the object that was suspended")
            return await self._restore(owner, ledger)

        return await retry_conflict(attempt)

    async def _restore(self, owner: Owner, ledger: Outcome | None) -> Outcome:
        record = marks.read_record(owner.meta.annotations)
        if record is None:
            return _refuse(owner, "NotSuspendedByKGWE", f"KGWE has not suspended {owner.title}")
        if not is_suspended(owner):
            await self._patch(owner, marks.erase_record(), {})
            return _refuse(owner, "ChangedSince", f"{owner.title} was resumed by another client: nothing to restore")
        if owner.kind.method is Method.STOP_ANNOTATION and owner.meta.annotations[STOP_ANNOTATION] != record.at:
            return _refuse(owner, "ChangedSince", f"{owner.title} was stopped again by another client: not restored")
        if owner.kind.method is not Method.REPLICAS:
            spec = {} if owner.kind.method is Method.STOP_ANNOTATION else {"suspend": False}
            await self._patch(owner, _erase_all() | _start_note(owner), spec)
            return _outcome(owner, Result.RESTORED, "", f"restored {owner.title}")
        replicas = limit_replicas(record.replicas, ledger.replicas if ledger is not None else None)
        if replicas is None:
            scale = f"kubectl scale {owner.kind.resource.full_name} {owner.meta.name} -n {owner.meta.namespace}"
            return _refuse(owner, "ReplicasUnknown", f"the replicas of {owner.title} are not recorded: {scale}")
        await self._patch(owner, _erase_all(), {"replicas": replicas})
        return _outcome(owner, Result.RESTORED, "", f"restored {owner.title} with replicas {replicas}", replicas)

    async def keep(self, kind: OwnerKind, namespace: str, name: str, until_s: float) -> Outcome:
        """Let the object not be suspended before this time, and end the notice that it would be."""

        async def attempt() -> Outcome:
            owner = Owner(kind, await self._client.get(kind.resource, name, namespace))
            notes = {marks.KEEP_UNTIL: timestamp.format_time(until_s), marks.IDLE_ACTION_AT: None}
            await self._patch(owner, notes, {})
            return _outcome(owner, Result.KEPT, "", f"{owner.title} is kept until {timestamp.format_time(until_s)}")

        return await retry_conflict(attempt)

    async def _patch(self, owner: Owner, annotations: dict[str, Any], spec: dict[str, Any]) -> None:
        meta = owner.meta
        body: dict[str, Any] = {"metadata": {"resourceVersion": meta.resourceVersion, "annotations": annotations}}
        if spec:
            body["spec"] = spec
        await self._client.patch(owner.kind.resource, meta.name, body, meta.namespace)


def is_suspended(owner: Owner) -> bool:
    """Whether the object is suspended, by KGWE or a user."""
    match owner.kind.method:
        case Method.SUSPEND_FIELD:
            return bool(owner.obj.spec.suspend)
        case Method.REPLICAS:
            return _replicas(owner) == 0
        case Method.STOP_ANNOTATION:
            return STOP_ANNOTATION in owner.meta.annotations


def limit_replicas(recorded: int | None, ledger: int | None) -> int | None:
    """Replicas to restore: those in the ledger, or fewer if the record says so. None: neither is known.

    A record alone counts up to `MOST_REPLICAS`.
    """
    if ledger is None:
        return None if recorded is None else min(recorded, MOST_REPLICAS)
    return ledger if recorded is None else min(recorded, ledger)


def _replicas(owner: Owner) -> int:
    replicas = owner.obj.spec.replicas
    return 1 if replicas is None else replicas


def _has_ended(owner: Owner) -> bool:
    """Whether a Job or GPUWorkload has ended."""
    return any(each.type in ("Complete", "Failed") and each.status == "True" for each in owner.obj.status.conditions)


def _erase_all() -> dict[str, None]:
    return marks.erase_record() | marks.erase_notice()


def _stop_note(owner: Owner, now_s: float) -> dict[str, str]:
    return {STOP_ANNOTATION: timestamp.format_time(now_s)} if owner.kind.method is Method.STOP_ANNOTATION else {}


def _start_note(owner: Owner) -> dict[str, None]:
    return {STOP_ANNOTATION: None} if owner.kind.method is Method.STOP_ANNOTATION else {}


def _stop_spec(owner: Owner) -> dict[str, Any]:
    specs: dict[Method, dict[str, Any]] = {Method.SUSPEND_FIELD: {"suspend": True}, Method.REPLICAS: {"replicas": 0}}
    return specs.get(owner.kind.method, {})


def _outcome(owner: Owner, result: Result, reason: str, message: str, replicas: int | None = None) -> Outcome:
    meta = owner.meta
    return Outcome(result, reason, message, owner.kind.resource.kind, meta.namespace, meta.name, meta.uid, replicas)


def _refuse(owner: Owner, reason: str, message: str) -> Outcome:
    return _outcome(owner, Result.REFUSED, reason, message)
