"""Whether a workload that asks for one whole GPU gets a slice or a share instead. Every doubt keeps the request.

Memory: the predicted need with its margin fits in the slice. Compute: the 95th percentile of activity fits with room to
spare. Room: the engine finds such a slice free now. Quota: what counts whole GPUs also counts slices, and has room.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kgwe.model.devices import preferences
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kgwe.forecast.memory import MemoryNeed
    from kgwe.forecast.rightsizing.policy import RightsizingPolicy

_PROFILE: Final = re.compile(r"([1-9]\d?)g\.([1-9]\d{0,3})gb", re.ASCII)
# The driver keeps a part of the memory that the name of a profile says.
_USABLE: Final = 0.92
_MIB_PER_GB: Final = 1024.0
_SEVENTHS: Final = 7.0
_SHARES: Final = (8, 4, 2)


@dataclass(frozen=True, slots=True)
class Rules:
    """How much must be known before a request gets smaller, and how much room is kept."""

    #: hours of measured use
    least_hours: int = 24
    least_confidence: float = 0.4
    #: the part of a slice's compute that the 95th percentile of activity may take
    most_busy: float = 0.7


@dataclass(frozen=True, slots=True)
class Subject:
    """What is known of the pods of one key."""

    key: str
    gpus: int
    memory: MemoryNeed
    #: of the GPU's compute, 0..1; None: not measured
    activity_p95: float | None
    hours: int
    #: memory of the GPU it ran on; None: unknown
    gpu_memory_mib: float | None = None
    #: pods of the key that exist
    pods: int = 1
    allowed: preferences.Preferences = preferences.ANYTHING
    is_managed: bool = False
    is_preallocator: bool = False
    #: pods with the same key do different work
    is_ambiguous: bool = False
    fingerprint: str = ""
    #: 95th percentile of run times, and units of work per second, with whole GPUs; None: unknown
    run_p95_s: float | None = None
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """One slice or one share."""

    profile: str = ""
    shares: int = 0
    memory_mib: float = 0.0
    compute: float = 1.0
    reason: str = ""

    @property
    def resource(self) -> str:
        return f"{amounts.MIG_PREFIX}{self.profile}" if self.profile else amounts.SHARED

    def describe(self) -> str:
        return f"1×{self.profile}" if self.profile else f"{1 / self.shares:.2g}"


@dataclass(frozen=True, slots=True)
class Offer:
    """Slices and shares of the cluster."""

    #: resource -> how many nodes have in all
    totals: Mapping[str, int] = field(default_factory=dict)
    #: how many shares a GPU is divided into, where nodes divide theirs
    shares: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Quota:
    """One ResourceQuota: limits and what is used, of resources of GPUs."""

    name: str
    hard: Mapping[str, int]
    used: Mapping[str, int]


def list_choices(offer: Offer, gpu_memory_mib: float | None) -> list[Choice]:
    """Return the slices and shares that nodes offer, the smallest first."""
    found = []
    for resource, total in offer.totals.items():
        match = _PROFILE.fullmatch(resource.removeprefix(amounts.MIG_PREFIX))
        if total > 0 and match is not None and resource.startswith(amounts.MIG_PREFIX):
            compute, gigabytes = int(match[1]), int(match[2])
            found.append(
                Choice(
                    resource.removeprefix(amounts.MIG_PREFIX),
                    0,
                    gigabytes * _MIB_PER_GB * _USABLE,
                    min(compute / _SEVENTHS, 1.0),
                )
            )
    found.sort(key=lambda each: (each.memory_mib, each.compute))
    if gpu_memory_mib is not None:
        shares = [number for number in _SHARES if number in offer.shares]
        found += [Choice("", number, gpu_memory_mib * _USABLE / number, 1 / number) for number in shares]
    return found


def find_refusal(subject: Subject, policy: RightsizingPolicy, rules: Rules) -> str:
    """Return why the request of a key is kept, whatever is offered; empty: nothing speaks against less."""
    if subject.is_ambiguous:
        return "pods with this owner and image run different commands"
    if not (subject.allowed.slices or subject.allowed.shares):
        return subject.allowed.why
    if subject.is_managed and not policy.include_managed:
        return "it is distributed, or managed by Kueue or Volcano: opt in with kgwe.nvidia.io/rightsizing-managed"
    if subject.gpus != 1:
        return "it asks for several GPUs, and slices cannot communicate with each other"
    if subject.is_preallocator:
        return "it takes GPU memory in advance, so its use does not show its need"
    return _find_doubt(subject, rules)


def _find_doubt(subject: Subject, rules: Rules) -> str:
    if subject.hours < rules.least_hours:
        return f"{subject.hours} of {rules.least_hours} hours of use measured"
    if not subject.memory.is_known or subject.memory.recommended_mib is None:
        return subject.memory.reasons[0] if subject.memory.reasons else "its memory need is not known"
    if subject.memory.confidence < rules.least_confidence:
        return (
            f"confidence in its memory need is {subject.memory.confidence:.0%}; {rules.least_confidence:.0%} is needed"
        )
    if subject.activity_p95 is None:
        return "its activity is not measured"
    return ""


def choose(
    subject: Subject, policy: RightsizingPolicy, choices: Sequence[Choice], quotas: Sequence[Quota], rules: Rules
) -> list[Choice] | str:
    """Return the slices and shares that are large enough and allowed, the smallest first, or why there are none."""
    if why := find_refusal(subject, policy, rules):
        return why
    need, busy = subject.memory.recommended_mib or 0.0, subject.activity_p95 or 0.0
    fitting = [each for each in choices if each.memory_mib >= need and busy <= rules.most_busy * each.compute]
    if subject.gpu_memory_mib is not None:
        fitting = [each for each in fitting if each.memory_mib < subject.gpu_memory_mib * _USABLE]
    # Pods that share a GPU can take each other's memory: only if the owner asks for it.
    is_asked = subject.allowed.shares and not subject.allowed.slices
    fitting = [each for each in fitting if each.profile or is_asked]
    if not fitting:
        return f"no slice that nodes offer has {need:.0f} MiB and is at most {rules.most_busy:.0%} busy"
    permitted = [each for each in fitting if not subject.allowed.find_objection(each.profile)]
    if not permitted:
        return subject.allowed.why
    within = [each for each in permitted if not find_quota_problem(each, subject.pods, quotas)]
    if not within:
        return find_quota_problem(permitted[0], subject.pods, quotas)
    told = f"needs {need:.0f} MiB, {busy:.0%} busy (p95) in {subject.hours} hours"
    return [
        Choice(each.profile, each.shares, each.memory_mib, each.compute, f"{told}; has {each.memory_mib:.0f} MiB")
        for each in within
    ]


def find_quota_problem(choice: Choice, pods: int, quotas: Sequence[Quota]) -> str:
    """Return why a quota forbids the change; empty: none does.

    A quota that counts whole GPUs must count slices too: otherwise a smaller request would evade it.
    """
    wanted, whole = f"requests.{choice.resource}", f"requests.{amounts.GPU}"
    for quota in quotas:
        if wanted in quota.hard:
            free = quota.hard[wanted] - quota.used.get(wanted, 0)
            if free < max(pods, 1):
                return f"ResourceQuota {quota.name} has room for {max(free, 0)} more of {choice.resource}"
        elif whole in quota.hard:
            return f"ResourceQuota {quota.name} counts {amounts.GPU} and not {choice.resource}"
    return ""
