"""What launches that failed teach: which offers not to try for a while, and for how long.

An offer is one pool, instance type, zone and capacity type. Each kind of error has its own reach and its own pause,
which doubles with every repeat. After an error that an operator must cure, the pause ends when the policy changes.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Offer(NamedTuple):
    """What can be bought: one pool, instance type, zone and capacity type."""

    pool: str
    instance_type: str
    zone: str
    capacity_type: str

    def __str__(self) -> str:
        return "/".join(filter(None, self))


class Reach(enum.Enum):
    """Which other offers an error concerns."""

    REQUEST = "request"
    """None: the same request is repeated."""
    ZONE = "zone"
    """The same type, zone and capacity type, in every pool."""
    TYPE = "type"
    """The same type and capacity type, in all zones and pools."""
    POOL = "pool"
    """The whole pool."""
    ALL = "all"
    """Everything that the provider offers."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How long an error keeps offers from being tried."""

    reach: Reach
    first_s: float
    longest_s: float
    until_changed: bool = False
    """It ends when the policy changes."""


#: Kind of a launch error -> its rule. `never-ready`: the node did not join, or its GPUs did not come.
RULES: Final[Mapping[str, Rule]] = {
    "no-capacity": Rule(Reach.ZONE, 180.0, 1800.0),
    "quota": Rule(Reach.TYPE, 600.0, 3600.0),
    "limit": Rule(Reach.POOL, 300.0, 1800.0),
    "authentication": Rule(Reach.ALL, 60.0, 900.0, until_changed=True),
    "bad-template": Rule(Reach.POOL, 300.0, 3600.0, until_changed=True),
    "throttled": Rule(Reach.REQUEST, 10.0, 300.0),
    "transient": Rule(Reach.REQUEST, 10.0, 300.0),
    "never-ready": Rule(Reach.ZONE, 300.0, 3600.0),
}
_UNKNOWN: Final = RULES["transient"]
#: How much later than its pause a repeat still counts as one, in pauses.
_REMEMBERED: Final = 4.0


@dataclass(frozen=True, slots=True)
class Setback:
    """An offer that failed."""

    offer: Offer
    kind: str
    message: str
    at_s: float
    repeats: int = 0
    generation: int = 0
    """Of the policy when it happened."""
    least_s: float = 0.0
    """The pause that the cloud asked for."""

    @property
    def rule(self) -> Rule:
        return RULES.get(self.kind, _UNKNOWN)

    @property
    def pause_s(self) -> float:
        return max(min(self.rule.first_s * float(1 << self.repeats), self.rule.longest_s), self.least_s)

    @property
    def until_s(self) -> float:
        return self.at_s + self.pause_s

    def blocks(self, offer: Offer) -> bool:
        """Whether this error concerns the offer."""
        mine, reach = self.offer, self.rule.reach
        same_type = (offer.instance_type, offer.capacity_type) == (mine.instance_type, mine.capacity_type)
        return (
            reach is Reach.ALL
            or (reach is Reach.POOL and offer.pool == mine.pool)
            or (reach is Reach.TYPE and same_type)
            or (reach is Reach.ZONE and same_type and offer.zone == mine.zone)
        )


@dataclass(frozen=True, slots=True)
class LaunchMemory:
    """Setbacks of one provider. Time is an argument; every change is a new memory."""

    setbacks: tuple[Setback, ...] = field(default=())

    def record(self, setback: Setback) -> LaunchMemory:
        """Return the memory with one more setback. A repeat soon after its pause waits twice as long."""
        same = [each for each in self.setbacks if (each.offer, each.kind) == (setback.offer, setback.kind)]
        others = [each for each in self.setbacks if each not in same]
        last = max(same, key=lambda each: each.at_s, default=None)
        if last is not None and setback.at_s <= last.at_s + _REMEMBERED * last.pause_s:
            setback = replace(setback, repeats=min(last.repeats + 1, 20))
        return LaunchMemory((*others, setback))

    def find_block(self, offer: Offer, now_s: float, generation: int) -> Setback | None:
        """Return why an offer is not tried now; None: it may be."""
        blocks = (
            each
            for each in self.setbacks
            if each.blocks(offer)
            # A clock that was set back must not block for longer than the pause.
            and each.at_s <= now_s < each.until_s
            and not (each.rule.until_changed and each.generation != generation)
        )
        return max(blocks, key=lambda each: each.until_s, default=None)

    def find_retry(self, offer: Offer, now_s: float) -> Setback | None:
        """Return the setback after which the same request waits before it is repeated; None: repeat it now."""
        waits = (
            each
            for each in self.setbacks
            if each.offer == offer and each.rule.reach is Reach.REQUEST and each.at_s <= now_s < each.until_s
        )
        return next(waits, None)

    def forget_success(self, offer: Offer) -> LaunchMemory:
        """Return the memory without what an instance of this offer disproves."""
        return LaunchMemory(tuple(each for each in self.setbacks if not each.blocks(offer) and each.offer != offer))

    def list_current(self, now_s: float) -> tuple[Setback, ...]:
        """Return setbacks that still matter, the last first."""
        kept = [each for each in self.setbacks if now_s < each.at_s + _REMEMBERED * each.pause_s]
        return tuple(sorted(kept, key=lambda each: -each.at_s))

    @classmethod
    def restore(cls, setbacks: Iterable[Setback]) -> LaunchMemory:
        """Return the memory that a status has written down."""
        return cls(tuple(setbacks))
