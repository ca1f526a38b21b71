"""What is remembered of workloads with idle GPUs, in the store: a restart goes on where the last process ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from kgwe.cluster.suspension.owner_kinds import KINDS
from kgwe.forecast.waste.idle_policy import IdleRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.apps.optimizer.history.writer import StoreThread
    from kgwe.cluster.suspension.owner_kinds import OwnerKind
    from kgwe.cluster.suspension.owner_search import Owner

log = structlog.get_logger(__name__)

_KIND: Final = "idle"
_HOUR_S: Final = 3600.0

#: namespace, kind and name of the owner of pods
Key = tuple[str, str, str]


class Entry(msgspec.Struct, frozen=True):
    """One workload."""

    namespace: str
    kind: str
    name: str
    record: IdleRecord = IdleRecord()
    owner_group: str = ""
    owner_kind: str = ""
    owner_name: str = ""
    owner_uid: str = ""
    """The object that was announced to be suspended, or was; empty if there is none."""
    replicas: int | None = None
    """Replicas before the suspension."""
    saving_per_hour: float | None = None
    """None: no price is known."""
    suspended_s: float | None = None
    saved_dollars: float = 0.0
    """By all suspensions that have ended."""
    suspensions: int = 0

    @property
    def key(self) -> Key:
        return self.namespace, self.kind, self.name

    def find_kind(self) -> OwnerKind | None:
        """Return the kind of that object; None if there is none."""
        wanted = (self.owner_group, self.owner_kind)
        return next((each for each in KINDS if (each.resource.group, each.resource.kind) == wanted), None)

    def with_owner(self, owner: Owner) -> Entry:
        """Return the entry with the object that is suspended, or will be."""
        kind, meta = owner.kind.resource, owner.meta
        return msgspec.structs.replace(
            self, owner_group=kind.group, owner_kind=kind.kind, owner_name=meta.name, owner_uid=meta.uid
        )

    def end_suspension(self, now_s: float) -> Entry:
        """Return the entry with the saving of a suspension that has ended."""
        hours = max(now_s - self.suspended_s, 0.0) / _HOUR_S if self.suspended_s is not None else 0.0
        return msgspec.structs.replace(
            self, suspended_s=None, saved_dollars=self.saved_dollars + hours * (self.saving_per_hour or 0.0)
        )


@dataclass(slots=True)
class IdleLedger:
    """Entries of workloads. Changed ones are written at the end of each round."""

    store: StoreThread
    entries: dict[Key, Entry] = field(default_factory=dict)
    _changed: set[Key] = field(default_factory=set)

    async def load(self) -> None:
        """Read all entries; one that cannot be read is skipped."""
        for document in await self.store.call(lambda store: store.list_documents(_KIND)):
            try:
                entry = msgspec.convert(document.body, Entry)
            except (msgspec.ValidationError, TypeError) as exc:
                log.warning("idle_entry_skipped", name=document.name, error=str(exc))
                continue
            self.entries[entry.key] = entry

    def put(self, entry: Entry) -> None:
        """Remember an entry."""
        if self.entries.get(entry.key) != entry:
            self.entries[entry.key] = entry
            self._changed.add(entry.key)

    async def save(self, now_s: float) -> None:
        """Write what changed; entries of a failed write are written with the next one."""
        changed: Mapping[Key, Entry] = {key: self.entries[key] for key in self._changed if key in self.entries}
        if not changed:
            return

        def write(store: Any) -> None:
            for key, entry in changed.items():
                store.put_document(_KIND, "/".join(key), msgspec.to_builtins(entry), now_s)

        await self.store.call(write)
        self._changed -= set(changed)

    async def drop(self, key: Key) -> None:
        """Forget a workload."""
        self._changed.discard(key)
        if self.entries.pop(key, None) is not None:
            await self.store.call(lambda store: store.delete_document(_KIND, "/".join(key)))
