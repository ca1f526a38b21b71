"""Events for externally created gangs that stay incomplete: on their pods and on the owner of the pods."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from kgwe.kube import dialects
from kgwe.kube.api import resources
from kgwe.kube.api.meta import ObjectMeta
from kgwe.kube.api.resources import Resource
from kgwe.kube.client.events import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kgwe.cluster.gangs.external_gangs import ExternalGangs
    from kgwe.cluster.gangs.gang_group import Group
    from kgwe.kube.api.meta import OwnerReference

INCOMPLETE: Final = "GangIncomplete"
# Pods and owners of one gang that get an Event; the others would only repeat it.
_PODS: Final = 16
_OWNERS: Final = 4
_LONGEST_S: Final = 3600.0


class GangNotices:
    """One term's notices: the first after `after_s`, each further one after twice as long."""

    def __init__(
        self,
        gangs: ExternalGangs,
        record: Callable[[Event], None],
        *,
        after_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gangs = gangs
        self._record = record
        self._after_s = after_s
        self._clock = clock
        self._due: dict[str, tuple[float, float]] = {}  # gang -> time of its next Event, and the pause before that

    def report_due(self) -> None:
        """Record the Events that are due; a complete gang costs little."""
        now = self._clock()
        waiting = {owner: group for owner, group in self._list_incomplete() if group.problem and group.members}
        for owner in self._due.keys() - waiting.keys():
            del self._due[owner]
        for owner, group in waiting.items():
            due, pause_s = self._due.setdefault(owner, (now + self._after_s, self._after_s))
            if now >= due:
                self._due[owner] = now + 2 * pause_s, min(2 * pause_s, _LONGEST_S)
                self._report_gang(group)

    def _list_incomplete(self) -> Iterator[tuple[str, Group]]:
        for owner in list(self._gangs.owners()):
            group = self._gangs.group(owner)
            if group is not None:
                yield owner, group

    def _report_gang(self, group: Group) -> None:
        note = describe_wait(group)
        pods = group.unseated[:_PODS]
        owners = {pod.metadata.controller.uid: pod for pod in pods if pod.metadata.controller is not None}
        for pod in list(owners.values())[:_OWNERS]:
            owner = pod.metadata.controller
            if owner is not None:
                meta = ObjectMeta(name=owner.name, namespace=pod.metadata.namespace, uid=owner.uid)
                self._record_warning(_resource_of(owner), meta, note)
        for pod in pods:
            self._record_warning(resources.POD, pod.metadata, note)

    def _record_warning(self, kind: Resource[Any], meta: ObjectMeta, note: str) -> None:
        self._record(Event(kind, meta, "Warning", INCOMPLETE, note, "Scheduling"))


def describe_wait(group: Group) -> str:
    """`Gang trainer is incomplete: 2 of 8 pods exist …`."""
    text = dialects.describe_incomplete(group.key.title, list(group.members.values()))
    if not text:
        return f"Gang {group.key.title} is waiting: {group.problem}"
    return f"{text} It holds no GPUs until all exist."


def _resource_of(owner: OwnerReference) -> Resource[Any]:
    group, _, version = owner.apiVersion.rpartition("/")
    return Resource(group, version, "", owner.kind, namespaced=True, type=dict[str, Any])
