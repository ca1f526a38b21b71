"""Groups of MIG cards to rebalance."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.support.machines.mig_card import A100, places

from kgwe.sharing.mig.types import Gate, Group, PartitionedGpu

if TYPE_CHECKING:
    from kgwe.sharing.mig.rebalance import Decision

OPEN = Gate(slots=100)


def cut(number: int, used: str = "", spare: str = "", node: str = "n0", **more: bool) -> PartitionedGpu:
    return replace(PartitionedGpu(f"GPU-{number}", node, places(A100, used), places(A100, spare)), **more)  # type: ignore[arg-type] # all are bool


def group(*cards: PartitionedGpu, dynamic: bool = True, due: bool = False, **more: object) -> Group:
    shares = more.pop("shares", {"1g.10gb": 1.0})
    made = Group(A100, shares, cards, is_dynamic=dynamic, is_due=due)  # type: ignore[arg-type] # a mapping
    return replace(made, **more)  # type: ignore[arg-type] # whatever the test says


def names(decision: Decision) -> list[str]:
    return [
        "whole" if card.is_whole else " ".join(f"{place.profile.name}@{place.start}" for place in card.layout)
        for card in decision.gpus
    ]
