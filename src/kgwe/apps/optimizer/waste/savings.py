"""What is remembered of recommendations until their saving is verified, in the store as documents."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from kgwe.forecast.waste import gpu_parts
from kgwe.forecast.waste.verify import Result, Span

if TYPE_CHECKING:
    from kgwe.apps.optimizer.history.writer import StoreThread

log = structlog.get_logger(__name__)

KIND: Final = "savings"
_HOUR_S: Final = 3600.0

#: namespace, kind and name of the owner of pods
Key = tuple[str, str, str]


class Form(msgspec.Struct, frozen=True):
    """The devices of each pod of an owner."""

    milli_gpus: int = 0
    mig_profile: str = ""
    model: str = ""
    """Empty: any."""
    is_spot: bool = False


class Metered(msgspec.Struct, frozen=True):
    """Use and cost of an owner over some time."""

    seconds: float = 0.0
    metered_seconds: float = 0.0
    cost: float = 0.0
    """In the metered time."""
    p95: float | None = None
    """In the last window."""
    oom_kills: int = 0

    def add(self, seconds: float, per_hour: float | None, limit_s: float = math.inf) -> Metered:
        """Return it with more time, of which at most the limit was metered."""
        metered_s = 0.0 if per_hour is None else min(seconds, limit_s)
        return msgspec.structs.replace(
            self,
            seconds=self.seconds + seconds,
            metered_seconds=self.metered_seconds + metered_s,
            cost=self.cost + metered_s / _HOUR_S * (per_hour or 0.0),
        )

    def make_span(self, *, is_original: bool = False) -> Span:
        """Return it as it is compared."""
        return Span(
            hours=self.seconds / _HOUR_S,
            metered_hours=self.metered_seconds / _HOUR_S,
            cost=self.cost if self.metered_seconds > 0 else None,
            p95=self.p95,
            oom_kills=self.oom_kills,
            is_original=is_original,
        )


class Advice(msgspec.Struct, frozen=True):
    """One recommendation."""

    action: str
    target: str
    promised_per_hour: float | None
    """Of all pods of the owner. None: no price is known."""
    form: Form
    """The devices that it recommends."""
    at_s: float
    """Time of the last round with it."""


class Entry(msgspec.Struct, frozen=True):
    """The recommendations for one owner, and what became of them."""

    namespace: str
    kind: str
    name: str
    original: Form
    advice: tuple[Advice, ...]
    """The followed one, or all of the last hour, the latest first: the room that the cluster has changes advice."""
    seen_s: float
    """Time of the last round in which it was metered."""
    followed_s: float | None = None
    ended_s: float | None = None
    """Time at which the saving ended: it was reversed, or the owner is gone."""
    before: Metered = Metered()
    after: Metered = Metered()
    result: Result = Result.TOO_EARLY
    realized_per_hour: float | None = None
    realized: float | None = None
    """Dollars since the advice was followed."""
    earlier: float = 0.0
    """Dollars that earlier recommendations for the owner saved until they were reversed."""
    reason: str = ""

    @property
    def key(self) -> Key:
        return self.namespace, self.kind, self.name

    @property
    def latest(self) -> Advice:
        """The followed recommendation, or the latest one."""
        return self.advice[0]

    @property
    def is_followed(self) -> bool:
        """Whether the advice is followed now."""
        return self.followed_s is not None and self.ended_s is None


@dataclass(slots=True)
class SavingsLedger:
    """Entries of owners. Changed ones are written by `save`."""

    store: StoreThread
    entries: dict[Key, Entry] = field(default_factory=dict)
    _changed: set[Key] = field(default_factory=set)
    _dropped: set[Key] = field(default_factory=set)

    async def load(self) -> None:
        """Read all entries; one that cannot be read is skipped."""
        for document in await self.store.call(lambda store: store.list_documents(KIND)):
            try:
                entry = msgspec.convert(document.body, Entry)
            except (msgspec.ValidationError, TypeError) as exc:
                log.warning("saving_skipped", name=document.name, error=str(exc))
                continue
            if entry.advice:
                self.entries[entry.key] = entry

    def put(self, entry: Entry) -> None:
        """Remember an entry."""
        if self.entries.get(entry.key) != entry:
            self.entries[entry.key] = entry
            self._changed.add(entry.key)
            self._dropped.discard(entry.key)

    def drop(self, key: Key) -> None:
        """Forget an owner."""
        if self.entries.pop(key, None) is not None:
            self._changed.discard(key)
            self._dropped.add(key)

    async def save(self, now_s: float) -> None:
        """Write what changed; entries of a failed write are written with the next one."""
        changed = {key: self.entries[key] for key in self._changed}
        dropped = set(self._dropped)
        if not changed and not dropped:
            return

        def write(store: Any) -> None:
            for key in dropped:
                store.delete_document(KIND, "/".join(key))
            for key, entry in changed.items():
                store.put_document(KIND, "/".join(key), msgspec.to_builtins(entry), now_s)

        await self.store.call(write)
        self._changed -= set(changed)
        self._dropped -= dropped


def sum_realized(entries: list[Entry]) -> dict[str, float]:
    """Return namespace -> dollars per hour that followed advice saves now. Unknown savings are left out."""
    total: dict[str, float] = {}
    for each in entries:
        if each.is_followed and each.realized_per_hour is not None:
            total[each.namespace] = total.get(each.namespace, 0.0) + each.realized_per_hour
    return total


def name_model(name: str) -> str:
    """Return the short name of a GPU model, or the name itself if the catalog does not have it."""
    model = gpu_parts.find_model(name)
    return name if model is None else model.name
