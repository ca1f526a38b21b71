"""Rows of `kgwe idle list`: objects whose GPUs are idle, kept ones, and those that KGWE has suspended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kgwe import errors
from kgwe.cluster.suspension import marks, named_owners
from kgwe.cluster.suspension.owner_kinds import Method
from kgwe.cluster.suspension.suspender import is_suspended
from kgwe.kube.api import timestamp
from kgwe.kube.translate import podspec
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from kgwe.cluster.suspension.owner_search import Owner
    from kgwe.kube.client.client import KubeClient


class IdleRow(msgspec.Struct, frozen=True, rename="camel"):
    """One object. What is not known is None."""

    namespace: str
    name: str
    kind: str
    #: Idle, Kept or Suspended
    state: str
    gpus: str | None = None
    idle_for_seconds: float | None = None
    #: what happens next, and when
    next: str = ""
    saving_per_hour: float | None = None
    reason: str = ""


async def read_rows(client: KubeClient, namespace: str | None, now_s: float) -> tuple[list[IdleRow], list[str]]:
    """(the rows that annotations tell of, kinds that the user may not list); namespace None: of all namespaces."""
    owners, hidden = await named_owners.list_owners(client, namespace)
    rows = [row for owner in owners if (row := _build_row(owner, now_s)) is not None]
    return sorted(rows, key=lambda row: (row.namespace, row.name, row.kind)), hidden


def _build_row(owner: Owner, now_s: float) -> IdleRow | None:
    """The row of an object; None: nothing is to be said of it."""
    notes = owner.meta.annotations
    record, notice, until = marks.read_record(notes), marks.read_notice(notes), marks.kept_until_s(notes, now_s)
    state, what_next, reason = "", "", ""
    if record is not None and is_suspended(owner):
        state, reason = "Suspended", record.reason
        what_next = f"kgwe idle restore {owner.meta.name} -n {owner.meta.namespace}"
    elif until is not None:
        state, what_next = "Kept", f"may be suspended after {timestamp.format_time(until)}"
    elif notice is not None:
        at = notice.action_at_s
        state, what_next = "Idle", f"suspended at {timestamp.format_time(at)}" if at is not None else ""
    if not state:
        return None
    since = notice.idle_since_s if notice is not None else None
    return IdleRow(
        owner.meta.namespace,
        owner.meta.name,
        owner.kind.resource.kind,
        state,
        _count_gpus(owner, record),
        max(now_s - since, 0.0) if since is not None else None,
        what_next,
        notice.saving_per_hour if notice is not None else None,
        reason,
    )


def _count_gpus(owner: Owner, record: marks.Record | None) -> str | None:
    """The GPUs of all its pods, or of those it had before; None: not known."""
    if owner.obj.status.requestedGPUs:
        return owner.obj.status.requestedGPUs
    template, spec = owner.obj.spec.template, owner.obj.spec
    if template is None:
        return None
    pods = 1
    if owner.kind.method is Method.REPLICAS:
        now = 1 if spec.replicas is None else spec.replicas
        before = record.replicas if record is not None else None
        pods = now or before or 0
    try:
        each = podspec.sum_requests(template.spec)
    except errors.Permanent:
        return None
    gpus = sum(count for name, count in each.items() if amounts.is_gpu(name))
    return str(gpus * pods) if pods else None
