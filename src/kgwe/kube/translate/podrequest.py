"""What a plain pod asks for, as the engine takes it.

GPUs, CPU, memory and where it may go come from its spec. How its cards should be wired and what they must be like may
be said in annotations, in the words of GPUWorkload:

    kgwe.nvidia.io/topology-preference: NVLinkRequired     None, NVLinkOptimal, NVLinkRequired, SameNUMA, SamePCIeSwitch
    kgwe.nvidia.io/min-bandwidth-gbps: "600"
    kgwe.nvidia.io/min-memory-gb: "40"
    kgwe.nvidia.io/gpu-model: H100
    kgwe.nvidia.io/gpu-architecture: Hopper
    kgwe.nvidia.io/strategy: pack
    kgwe.nvidia.io/spot-policy: Require                    Avoid, Allow, Require

A pod that says nothing of spot nodes avoids them, unless it may be stopped for others (`kgwe.nvidia.io/preemptible`),
asks for the cheapest node, or says `gpu-autoscaler.io/spot-ok: "true"`.

A pod that asks for `nvidia.com/gpu.shared` may say how large a share it means; it then goes to nodes that divide their
cards like that:

    kgwe.nvidia.io/gpu-share: "0.5"
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from kgwe import errors
from kgwe.kube.translate import podspec
from kgwe.model.devices import shares
from kgwe.model.units import amounts as resources
from kgwe.placement.fleet.constraints import Constraints
from kgwe.placement.fleet.node import Gpus, Preference, Request, SpotPolicy, share_milli
from kgwe.placement.planning.fields import Fields
from kgwe.placement.pod.ranking import Strategy, parse_strategy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.kube.api import core
    from kgwe.model.units.amounts import Amounts

_PREFIX: Final = "kgwe.nvidia.io/"
PREFERENCE: Final = f"{_PREFIX}topology-preference"
MIN_BANDWIDTH: Final = f"{_PREFIX}min-bandwidth-gbps"
MIN_MEMORY: Final = f"{_PREFIX}min-memory-gb"
MODEL: Final = f"{_PREFIX}gpu-model"
ARCHITECTURE: Final = f"{_PREFIX}gpu-architecture"
STRATEGY: Final = f"{_PREFIX}strategy"
SHARE: Final = f"{_PREFIX}gpu-share"
SPOT_POLICY: Final = f"{_PREFIX}spot-policy"
SPOT_OK: Final = "gpu-autoscaler.io/spot-ok"
PREEMPTIBLE: Final = f"{_PREFIX}preemptible"
#: where a pod says what it asks for
FIELDS: Final = Fields(
    model=f"annotation {MODEL}",
    architecture=f"annotation {ARCHITECTURE}",
    min_memory=f"annotation {MIN_MEMORY}",
    preference=f"annotation {PREFERENCE}",
    min_bandwidth=f"annotation {MIN_BANDWIDTH}",
    share=f"annotation {SHARE}",
    profile="the requested resource",
    spot_policy=f"annotation {SPOT_POLICY}",
    hardware=f"annotation {_PREFIX}hardware",
    template="the pod",
    is_pod=True,
)
# Gigabytes, or gigabytes per second: more than any card has, and few enough for every array they are compared with.
_LARGEST_NUMBER: Final = 10**6
# All annotations that are read here.
_ANNOTATIONS: Final = frozenset(
    {PREFERENCE, MIN_BANDWIDTH, MIN_MEMORY, MODEL, ARCHITECTURE, STRATEGY, SHARE, SPOT_POLICY, SPOT_OK, PREEMPTIBLE}
)
# Different requests that are kept: pods of one template ask for the same.
_KEPT: Final = 1024
# Problems that start with this word have the pod as their subject.
_REQUESTS: Final = "requests"


@dataclass(frozen=True, slots=True)
class PodRequest:
    """What one pod requests."""

    request: Request
    #: what it takes of its node
    amounts: Amounts
    strategy: Strategy | None = None


def read_request(pod: core.Pod, *, pieces: int = 0) -> PodRequest:
    """Return what a pod requests. Raises Permanent, with what to change, for a request that KGWE cannot follow.

    `pieces`: the number of shares per GPU. It gives the size of a share if the pod does not.
    """
    spec = pod.spec
    wanted = tuple(podspec.sum_requests(spec).items())
    said = tuple((name, text) for name, text in pod.metadata.annotations.items() if name in _ANNOTATIONS)
    where = _Where(tuple(spec.nodeSelector.items()), spec.affinity, spec.tolerations)
    try:
        return _read(wanted, said, where, pieces)
    except errors.Permanent as exc:
        text = str(exc)
        joint = " " if text.startswith(_REQUESTS) else ": "
        raise errors.Permanent(f"Pod {pod.metadata.key}{joint}{text}") from exc


class _Where(NamedTuple):
    """What a spec says about nodes."""

    selector: tuple[tuple[str, str], ...]
    affinity: core.Affinity
    tolerations: tuple[core.Toleration, ...]


@functools.lru_cache(_KEPT)
def _read(
    amounts: tuple[tuple[str, int], ...],
    annotations: tuple[tuple[str, str], ...],
    where: _Where,
    pieces: int,
) -> PodRequest:
    wanted, said = dict(amounts), dict(annotations)
    try:
        affinity = podspec.required_affinity(where.affinity)
    except ValueError as exc:
        raise errors.Permanent(f"node affinity: {exc}") from exc
    strategy = said.get(STRATEGY, "")
    return PodRequest(
        request=Request(
            _gpus(wanted, said, pieces),
            cpu_milli=wanted.get(resources.CPU, 0),
            memory_bytes=wanted.get(resources.MEMORY, 0),
            preference=_preference(said),
            min_bandwidth_gbps=_number(said, MIN_BANDWIDTH),
            min_memory_gb=int(_number(said, MIN_MEMORY)),
            model=said.get(MODEL, ""),
            architecture=said.get(ARCHITECTURE, ""),
            constraints=Constraints(
                tuple(sorted(where.selector)), affinity, podspec.read_tolerations(where.tolerations)
            ),
            spot=spot_policy(said, strategy=strategy),
        ),
        amounts=wanted,
        strategy=parse_strategy(strategy) if strategy else None,
    )


def asks_for_gpus(wanted: Mapping[str, int]) -> bool:
    return any(resources.is_gpu(name) and count for name, count in wanted.items())


def says_its_share(pod: core.Pod) -> bool:
    """Whether what it asks for is the same on every node."""
    if SHARE in pod.metadata.annotations:
        return True
    # Cheaper than adding up all it asks for; a GPU is always among the limits.
    containers = (*pod.spec.initContainers, *pod.spec.containers)
    return not any(resources.SHARED in each.resources.limits for each in containers)


def _gpus(wanted: Mapping[str, int], said: Mapping[str, str], pieces: int) -> Gpus:
    kinds = {name: count for name, count in wanted.items() if resources.is_gpu(name) and count}
    if len(kinds) > 1:
        listed = ", ".join(sorted(kinds))
        raise errors.Permanent(f"{_REQUESTS} several kinds of GPU at once ({listed}): use one kind per pod")
    for name, count in kinds.items():
        if name == resources.SHARED:
            return Gpus(milli=_share(count, said.get(SHARE, ""), pieces))
        if name != resources.GPU:
            return Gpus(profile=name.removeprefix(resources.MIG_PREFIX), slices=count)
        return Gpus(count=count)
    return Gpus()


def _share(count: int, said: str, pieces: int) -> int:
    if count > 1:
        raise errors.Permanent(
            f"{_REQUESTS} {count} {resources.SHARED}. Several shares do not give more of a GPU and may be of the same"
            " GPU. Request 1."
        )
    if said:
        try:
            return share_milli(shares.shares_of_fraction(float(said)))
        except ValueError:
            raise errors.Permanent(f"annotation {SHARE}: {said!r} is not {shares.MEANING}") from None
    if not pieces:
        raise errors.Permanent(
            f"{_REQUESTS} {resources.SHARED}, which no node offers. Set the size of the share: annotation {SHARE}."
        )
    return share_milli(pieces)


def spot_policy(
    said: Mapping[str, str], *, policy: str = "", preemptible: bool = False, strategy: str = ""
) -> SpotPolicy:
    """What work says of spot nodes, by its spec (`policy`) or by annotations. When it says nothing, they are avoided
    unless it may be stopped anyway, or is to be cheap."""
    text = policy or said.get(SPOT_POLICY, "")
    if not text and (is_fine := str(said.get(SPOT_OK, "")).lower()) in ("true", "false"):
        text = SpotPolicy.ALLOW if is_fine == "true" else SpotPolicy.AVOID
    if not text:
        is_easy = preemptible or said.get(PREEMPTIBLE) == "true" or strategy == Strategy.COST_OPTIMIZED
        return SpotPolicy.ALLOW if is_easy else SpotPolicy.AVOID
    try:
        return SpotPolicy(text)
    except ValueError:
        raise errors.Permanent(f"annotation {SPOT_POLICY}: {text!r} is none of {', '.join(SpotPolicy)}") from None


def _preference(said: Mapping[str, str]) -> Preference:
    text = said.get(PREFERENCE, "")
    try:
        return Preference(text) if text else Preference.NONE
    except ValueError:
        raise errors.Permanent(f"annotation {PREFERENCE}: {text!r} is none of {', '.join(Preference)}") from None


def _number(said: Mapping[str, str], key: str) -> float:
    text = said.get(key, "")
    if not text:
        return 0.0
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= _LARGEST_NUMBER:
        raise errors.Permanent(f"annotation {key}: {text!r} is not a number from 0 to {_LARGEST_NUMBER}")
    return number
