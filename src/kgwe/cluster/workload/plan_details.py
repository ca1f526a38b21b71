"""Details that are stored with a plan: why it was chosen, and what each pod takes of its node."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from kgwe.cluster.workload import metadata_keys
from kgwe.cluster.workload.workload import Details

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.model.units.amounts import Amounts
    from kgwe.placement.gang.site import GangLocation
    from kgwe.placement.planning.plan import Plan

_REASON_CHARS = 1024


def describe_plan(plan: Plan) -> Details:
    """The details of a new plan."""
    return Details(
        score=round(plan.score),
        parts=tuple((name, round(points, 1)) for name, points in plan.parts.items()),
        gb_per_s=None if plan.gb_per_s is None else round(plan.gb_per_s, 1),
        domain=f"{plan.level}/{plan.domain}" if plan.level else "",
        reasons=plan.message[:_REASON_CHARS],
    )


def moved_details(site: GangLocation | None, note: str) -> Details:
    """The details of a plan that recovery changed, without those that are unknown."""
    why = f"changed by recovery: {note}"
    if site is None:
        return Details(reasons=f"domain and bandwidth are not known\n{why}"[:_REASON_CHARS])
    rate = 0.0 if site.ring is None else site.ring.gb_per_s
    return Details(
        gb_per_s=None if math.isinf(rate) else round(rate, 1),
        domain=f"{site.level}/{site.domain}",
        reasons=f"{site.describe()}\n{why}"[:_REASON_CHARS],
    )


def encode_details(found: Details) -> str:
    return msgspec.json.encode(found).decode()


def decode_details(annotations: Mapping[str, str]) -> Details | None:
    """The details stored with a plan; None if they are missing or cannot be read."""
    try:
        return msgspec.json.decode(annotations.get(metadata_keys.DETAILS_ANNOTATION, "null"), type=Details | None)
    except (msgspec.DecodeError, RecursionError):
        return None


def encode_amounts(found: Amounts) -> str:
    return msgspec.json.encode(found, order="sorted").decode()


def planned_amounts(annotations: Mapping[str, str]) -> Amounts | None:
    """What each pod takes of its node, as stored with the plan; None when the plan does not say."""
    try:
        return msgspec.json.decode(
            annotations.get(metadata_keys.AMOUNTS_ANNOTATION) or "null", type=dict[str, int] | None
        )
    except msgspec.DecodeError:
        return None
