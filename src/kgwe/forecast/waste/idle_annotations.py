"""Labels and annotations about idle GPUs, as namespaces and owners write them.

    kgwe.nvidia.io/idle-action: off | notify | suspend     on a namespace; default off
    kgwe.nvidia.io/idle-after: 30m                         on a namespace; idle time before the notification
    kgwe.nvidia.io/idle-grace: 1h                          on a namespace; idle time between notification and suspension
    kgwe.nvidia.io/keep-until: 2026-11-18T08:00:00Z        on an owner or pod; no action before then
    kgwe.nvidia.io/optimize: "false"                       on an owner or pod; no recommendation and no action

An annotation wins over a label of the same name. A value that cannot be read never leads to an action.
"""

from __future__ import annotations

import calendar
import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kgwe.forecast.waste.idle_policy import IdleAction, IdlePolicy
from kgwe.model.units import phrasing, quantity

if TYPE_CHECKING:
    from collections.abc import Mapping

ACTION: Final = "kgwe.nvidia.io/idle-action"
AFTER: Final = "kgwe.nvidia.io/idle-after"
GRACE: Final = "kgwe.nvidia.io/idle-grace"
KEEP_UNTIL: Final = "kgwe.nvidia.io/keep-until"
OPTIMIZE: Final = ("kgwe.nvidia.io/optimize", "gpu-autoscaler.io/optimize")
_SHORTEST_S: Final = 300.0
_LONGEST_S: Final = 30 * 86400.0
_TIME: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.\d+)?(?:[Zz]|([+-])(\d\d):(\d\d))", re.ASCII
)
_MONTHS: Final = 12
_HOURS: Final = 24
_SIXTY: Final = 60


def read_policy(
    labels: Mapping[str, str], annotations: Mapping[str, str], default: IdlePolicy
) -> tuple[IdlePolicy, tuple[str, ...]]:
    """Return the policy of a namespace, and what is wrong with its values. With any problem the action is off."""
    said = {name: annotations.get(name, labels.get(name)) for name in (ACTION, AFTER, GRACE)}
    problems: list[str] = []
    policy = default
    if (text := said[ACTION]) is not None:
        if text in list(IdleAction):
            policy = replace(policy, action=IdleAction(text))
        else:
            problems.append(f"{ACTION} is {text[:40]!r}; write {phrasing.join_words(list(IdleAction), 'or')}")
    policy = replace(
        policy,
        idle_after_s=_read_duration(AFTER, said[AFTER], policy.idle_after_s, problems),
        grace_s=_read_duration(GRACE, said[GRACE], policy.grace_s, problems),
    )
    return (replace(policy, action=IdleAction.OFF) if problems else policy), tuple(problems)


def _read_duration(name: str, text: str | None, default: float, problems: list[str]) -> float:
    if text is None:
        return default
    try:
        value = quantity.parse_duration(text)
    except quantity.BadQuantity:
        value = 0.0
    if _SHORTEST_S <= value <= _LONGEST_S:
        return value
    problems.append(f"{name} is {text[:40]!r}; write a time between 5m and 720h, such as 30m")
    return default


def is_opted_out(*annotations: Mapping[str, str]) -> bool:
    """Whether an owner or a pod refuses optimization. Any of its objects is enough."""
    return any(each.get(name, "").strip().lower() == "false" for each in annotations for name in OPTIMIZE)


def read_keep_until(*annotations: Mapping[str, str]) -> tuple[float | None, str]:
    """Return the latest time until which a workload is kept, in Unix time, and what is wrong with a value.

    A value that is not a time keeps the workload for the longest time that the policy allows (infinity here).
    """
    latest: float | None = None
    problem = ""
    for text in (each[KEEP_UNTIL] for each in annotations if KEEP_UNTIL in each):
        value = parse_time(text.strip())
        if value is None:
            value = math.inf
            problem = f"{KEEP_UNTIL} is {text[:40]!r}; write a time such as 2026-11-18T08:00:00Z"
        latest = value if latest is None else max(latest, value)
    return latest, problem


def parse_time(text: str) -> float | None:
    """Return the Unix time of an RFC 3339 text, None if it is not one."""
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(match[group]) for group in range(1, 7))
    if not (year and 1 <= month <= _MONTHS and 1 <= day <= calendar.monthrange(year, month)[1]):
        return None
    if hour >= _HOURS or minute >= _SIXTY or second > _SIXTY:
        return None
    offset_s = 0
    if match[7]:
        offset_s = (int(match[8]) * 60 + int(match[9])) * (60 if match[7] == "+" else -60)
    return float(calendar.timegm((year, month, day, hour, minute, second)) - offset_s)
