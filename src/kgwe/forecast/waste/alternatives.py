"""Smaller things that a pod could use instead of its devices.

An alternative must hold the highest memory use plus a margin, more than the memory that was too small before, and the
pod's activity with room left. A pod of a gang keeps its devices: slices and shares have no fast connection to others.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.forecast.waste import gpu_parts
from kgwe.forecast.waste.states import State
from kgwe.model.gpu import catalog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kgwe.forecast.waste.rules import Rules
    from kgwe.forecast.waste.verdicts import Verdict


class Action(enum.StrEnum):
    """What a recommendation asks for."""

    SUSPEND = "Suspend"
    MIG_PROFILE = "MIGProfile"
    SHARE = "Share"
    SMALLER_GPU = "SmallerGPU"
    FEWER_GPUS = "FewerGPUs"
    SPOT = "Spot"
    NONE = "None"


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What is known of a pod beyond the judged window."""

    memory_mib: float | None = None
    """Highest memory use of one device in its history."""
    too_small_mib: float | None = None
    """Memory of the largest device on which it ran out of memory."""
    is_preallocator: bool = False
    """Whether it takes all memory that it finds, as vLLM does: its use is not its need."""
    history_s: float = 0.0
    """How long its use has been measured."""
    can_suspend: bool = True
    """Whether its owner can be suspended and restored."""
    is_spot: bool = False
    """Whether it runs on spot capacity."""
    is_spot_ok: bool = False
    """Whether its owner accepts spot capacity."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """Something that a pod could use instead."""

    action: Action
    devices: int
    model: str
    mig_profile: str = ""
    shares: int = 1
    """Pods per GPU."""
    is_spot: bool = False
    fraction: float = 1.0
    """Part of a GPU that each device is charged as."""
    certainty: float = 1.0
    """0..1: how well use predicts that the alternative is large enough."""

    @property
    def changes_size(self) -> bool:
        """Whether memory and compute get smaller, so that both must be checked."""
        return self.action not in {Action.SUSPEND, Action.SPOT}

    def __str__(self) -> str:
        match self.action:
            case Action.SUSPEND:
                return "suspend it"
            case Action.MIG_PROFILE:
                return f"MIG profile {self.mig_profile}"
            case Action.SHARE:
                return f"1/{self.shares} of a GPU"
            case Action.SPOT:
                return "spot capacity"
        return f"{self.devices} x {self.model}"


# How far each kind of advice can be trusted before it was tried. Slices are isolated; bursts of pods that share a GPU
# can coincide; data sheets say little about one workload.
_SLICE_CERTAINTY: Final = 0.85
_SHARE_CERTAINTY: Final = 0.7
_MODEL_CERTAINTY: Final = 0.6
_COUNT_CERTAINTY: Final = 0.5
_SPOT_CERTAINTY: Final = 0.9
_MOST_SHARES: Final = (8, 4, 2)


def list_alternatives(verdict: Verdict, needs: Needs, rules: Rules) -> list[Alternative]:
    """Return what a pod could use instead, in no order. Empty for an unknown state and for a pod out of balance."""
    if verdict.state is State.UNKNOWN or verdict.is_unbalanced:
        return []
    found: list[Alternative] = []
    if verdict.state.is_idle and needs.can_suspend:
        return [Alternative(Action.SUSPEND, 0, verdict.model, fraction=0.0, certainty=_trust_idle(verdict))]
    if (verdict.is_underused or verdict.state.is_idle) and not verdict.is_shared:
        found += _list_smaller(verdict, needs, rules)
    if needs.is_spot_ok and not needs.is_spot:
        found.append(_keep_devices(verdict, Action.SPOT, certainty=_SPOT_CERTAINTY))
    return found


def _trust_idle(verdict: Verdict) -> float:
    """Return how certain idleness is: power agrees on whole GPUs; slices and shares have activity alone."""
    if verdict.is_corroborated:
        return 0.98
    return 0.9 if verdict.is_shared or verdict.mig_profile else 0.85


def _keep_devices(verdict: Verdict, action: Action, *, certainty: float) -> Alternative:
    return Alternative(
        action,
        verdict.devices,
        verdict.model,
        verdict.mig_profile,
        is_spot=True,
        fraction=verdict.fraction,
        certainty=certainty,
    )


def find_memory_need(verdict: Verdict, needs: Needs, rules: Rules) -> float | None:
    """Return the memory that one device must have, in MiB. None: unknown. 0: a preallocator, whose need is unknown
    and which adapts to less.
    """
    if needs.is_preallocator:
        return 0.0
    used = [each for each in (verdict.memory_peak_mib, needs.memory_mib) if each is not None]
    if not used:
        return None
    need = max(used) * (1.0 + rules.memory_margin)
    if needs.too_small_mib is not None:
        need = max(need, needs.too_small_mib * (1.0 + rules.memory_margin))
    return need


def _list_smaller(verdict: Verdict, needs: Needs, rules: Rules) -> Iterator[Alternative]:
    memory = find_memory_need(verdict, needs, rules)
    if memory is None or verdict.p95 is None or verdict.activity is None:
        return
    if not verdict.gang:
        yield from _list_slices(verdict, memory, rules)
        if not verdict.mig_profile:
            yield from _list_shares(verdict, memory, rules)
            yield from _list_models(verdict, memory, rules)
    if verdict.devices > 1 and not verdict.mig_profile and not verdict.gang:
        yield from _list_counts(verdict, memory, rules)


def _list_slices(verdict: Verdict, memory_mib: float, rules: Rules) -> Iterator[Alternative]:
    """Return the smallest slice that is large enough."""
    model = gpu_parts.find_model(verdict.model)
    if model is None or model.geometry is None or verdict.devices != 1:
        return
    # A slice's activity is a share of the slice.
    needed = (verdict.p95 or 0.0) / rules.target_use * _compute_share(verdict)
    fitting = [
        (gpu_parts.slice_fraction(model.name, profile.name), -profile.memory_mib, profile.name)
        for profile in model.geometry.profiles.values()
        if profile.is_plain and profile.memory_mib >= memory_mib and profile.compute / model.geometry.compute >= needed
    ]
    for fraction, _, name in sorted(fitting)[:1]:
        if fraction < verdict.fraction:
            yield Alternative(Action.MIG_PROFILE, 1, verdict.model, name, fraction=fraction, certainty=_SLICE_CERTAINTY)


def _compute_share(verdict: Verdict) -> float:
    model = gpu_parts.find_model(verdict.model)
    if not verdict.mig_profile or model is None or model.geometry is None:
        return 1.0
    profile = model.geometry.profiles.get(verdict.mig_profile)
    return profile.compute / model.geometry.compute if profile else 1.0


def _list_shares(verdict: Verdict, memory_mib: float, rules: Rules) -> Iterator[Alternative]:
    """Return the smallest share that is large enough: memory must fit always, compute on average."""
    total = verdict.memory_total_mib
    if verdict.devices != 1 or total is None:
        return
    for count in _MOST_SHARES:
        if memory_mib <= total / count and (verdict.activity or 0.0) <= rules.target_use / count:
            yield Alternative(
                Action.SHARE, 1, verdict.model, shares=count, fraction=1.0 / count, certainty=_SHARE_CERTAINTY
            )
            return


def _list_models(verdict: Verdict, memory_mib: float, rules: Rules) -> Iterator[Alternative]:
    """Return every model with less memory that is large and fast enough; prices decide between them."""
    mine = gpu_parts.find_model(verdict.model)
    if mine is None:
        return
    for model in catalog.CATALOGUE.values():
        speed = gpu_parts.relative_speed(mine, model)
        if model is mine or speed is None or speed >= 1.0 or model.memory_mib - model.reserved_mib < memory_mib:
            continue
        if (verdict.p95 or 0.0) <= rules.target_use * speed:
            yield Alternative(Action.SMALLER_GPU, verdict.devices, model.name, certainty=_MODEL_CERTAINTY)


def _list_counts(verdict: Verdict, memory_mib: float, rules: Rules) -> Iterator[Alternative]:
    """Return the smallest number of GPUs whose compute and memory together are enough."""
    total = verdict.memory_total_mib
    if total is None or not total:
        return
    by_compute = math.ceil(verdict.devices * (verdict.p95 or 0.0) / rules.target_use)
    by_memory = math.ceil(verdict.devices * memory_mib / total)
    count = max(by_compute, by_memory, 1)
    if count < verdict.devices:
        yield Alternative(Action.FEWER_GPUS, count, verdict.model, certainty=_COUNT_CERTAINTY)
