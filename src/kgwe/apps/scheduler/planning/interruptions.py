"""Why owners that had a place lost it, until they have a place again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kgwe.placement.refusal import Reason

if TYPE_CHECKING:
    from kgwe.placement.planning.ask import Ask
    from kgwe.placement.refusal import Refusal


class Interruptions:
    """Owner -> why it was stopped."""

    def __init__(self) -> None:
        self._by_owner: dict[str, tuple[Reason, str]] = {}

    def record(self, owner: str, reason: Reason, message: str) -> None:
        self._by_owner[owner] = reason, message

    def clear(self, owner: str) -> None:
        self._by_owner.pop(owner, None)

    def get(self, owner: str) -> tuple[Reason, str] | None:
        return self._by_owner.get(owner)

    def prioritize(self, ask: Ask) -> Ask:
        """The ask; an owner that lost its place to a failure comes before all others of its priority."""
        found = self._by_owner.get(ask.owner)
        return replace(ask, first_claim=True) if found is not None and found[0] is Reason.RECOVERING else ask

    def explain(self, owner: str, refusal: Refusal) -> Refusal:
        """The refusal, with the reason why the owner has to wait again."""
        found = self._by_owner.get(owner)
        if found is None:
            return refusal
        reason, message = found
        return replace(refusal, code=reason, message=f"{message}. {refusal.message}")
