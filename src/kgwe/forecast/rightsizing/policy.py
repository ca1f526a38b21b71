"""How a namespace opts in to right-sizing, by annotations or labels of the namespace.

    kgwe.nvidia.io/rightsizing: off | shadow | canary | enforce    default off
    kgwe.nvidia.io/rightsizing-canary: "10"                        percent of the pods in mode canary; default 10
    kgwe.nvidia.io/rightsizing-managed: "true"                     also multi-GPU, distributed, Kueue and Volcano
    kgwe.nvidia.io/rightsizing-error-budget: "3"                   reverts after which right-sizing stops; default 3

An annotation wins over a label of the same name. With a value that cannot be read, right-sizing is off.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kgwe.model.units import phrasing

if TYPE_CHECKING:
    from collections.abc import Mapping

MODE: Final = "kgwe.nvidia.io/rightsizing"
CANARY: Final = "kgwe.nvidia.io/rightsizing-canary"
MANAGED: Final = "kgwe.nvidia.io/rightsizing-managed"
BUDGET: Final = "kgwe.nvidia.io/rightsizing-error-budget"
#: characters with which Kubernetes ends generated names, and those with which UIDs begin
LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
DIGITS: Final = "0123456789abcdef"
_MOST_PERCENT: Final = 100
_MOST_BUDGET: Final = 1000


class Mode(enum.StrEnum):
    """What is done with decisions."""

    OFF = "off"
    SHADOW = "shadow"
    CANARY = "canary"
    ENFORCE = "enforce"


@dataclass(frozen=True, slots=True)
class RightsizingPolicy:
    """What a namespace wants."""

    mode: Mode = Mode.OFF
    canary_percent: int = 10
    include_managed: bool = False
    error_budget: int = 3

    def choose_characters(self, alphabet: str) -> str:
        """Return the first characters of an alphabet, as many as make up the canary; at least one above 0 %."""
        return alphabet[: math.ceil(len(alphabet) * self.canary_percent / _MOST_PERCENT)]


def read_policy(labels: Mapping[str, str], annotations: Mapping[str, str]) -> tuple[RightsizingPolicy, tuple[str, ...]]:
    """Return the policy of a namespace, and what is wrong with its values. With any problem it is off."""
    said = {name: annotations.get(name, labels.get(name)) for name in (MODE, CANARY, MANAGED, BUDGET)}
    problems: list[str] = []
    policy = RightsizingPolicy()
    if (text := said[MODE]) is not None:
        if text in list(Mode):
            policy = replace(policy, mode=Mode(text))
        else:
            problems.append(f"{MODE} is {text[:40]!r}; write {phrasing.join_words(list(Mode), 'or')}")
    if (text := said[MANAGED]) is not None:
        if text in ("true", "false"):
            policy = replace(policy, include_managed=text == "true")
        else:
            problems.append(f"{MANAGED} is {text[:40]!r}; write true or false")
    policy = replace(
        policy,
        canary_percent=_read_number(CANARY, said[CANARY], policy.canary_percent, _MOST_PERCENT, problems),
        error_budget=_read_number(BUDGET, said[BUDGET], policy.error_budget, _MOST_BUDGET, problems),
    )
    return (replace(policy, mode=Mode.OFF) if problems else policy), tuple(problems)


def _read_number(name: str, text: str | None, default: int, most: int, problems: list[str]) -> int:
    if text is None:
        return default
    if text.isascii() and text.isdecimal() and len(text) <= len(str(most)) and int(text) <= most:
        return int(text)
    problems.append(f"{name} is {text[:40]!r}; write a whole number from 0 to {most}")
    return default
