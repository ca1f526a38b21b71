"""From API objects to the nouns of placement: decoded once, here, and no further."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Final

from kgwe.model.units import amounts, quantity
from kgwe.placement.fleet.constraints import Operator, Requirement
from kgwe.placement.fleet.taints import Toleration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kgwe.kube.api import core
    from kgwe.model.units.amounts import Amounts

# Labels that NVIDIA GPU feature discovery sets.
GPU_MEMORY_LABEL = "nvidia.com/gpu.memory"
GPU_PRODUCT_LABEL = "nvidia.com/gpu.product"
GPU_FAMILY_LABEL = "nvidia.com/gpu.family"
GPU_REPLICAS_LABEL = "nvidia.com/gpu.replicas"

_TERMINAL = ("Succeeded", "Failed")

# Different requests whose sum is kept: pods of one template ask for the same.
_KEPT_SUMS: Final = 1024
# (resource, quantity), as a manifest has them.
_Quantities = tuple[tuple[str, str], ...]

_MOST = 2**63 - 1
_NUMBER = re.compile(r"(?P<number>\+?\d+\.?\d*(?:[eE]\+?\d+)?)(?P<suffix>[KMGTPE]i|[numkMGTPE])?", re.ASCII)
_SCALE = {
    "": 1.0,
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    **{suffix: 1000.0 ** (power + 1) for power, suffix in enumerate("kMGTPE")},
    **{f"{suffix}i": 1024.0 ** (power + 1) for power, suffix in enumerate("KMGTPE")},
}


def sum_requests(spec: core.PodSpec) -> Amounts:
    """What a pod takes of its node, as kube-scheduler counts it, pod slot included; cut to `amounts.most_of`.

    Containers run together, init containers one after another before them; an init container that restarts
    (a sidecar) keeps running beside all that come later.
    """
    return dict(
        _sum(
            tuple((each.restartPolicy == "Always", _list_requests(each.resources)) for each in spec.initContainers),
            tuple(_list_requests(each.resources) for each in spec.containers),
            _list_requests(spec.resources),
            tuple(spec.overhead.items()),
        )
    )


@functools.lru_cache(_KEPT_SUMS)
def _sum(
    init_containers: tuple[tuple[bool, _Quantities], ...],
    containers: tuple[_Quantities, ...],
    whole_pod: _Quantities,
    overhead: _Quantities,
) -> Amounts:
    """`init_containers`: whether it is a sidecar, and its requests."""
    result: Amounts = {}
    peak: Amounts = {}
    for is_sidecar, quantities in init_containers:
        request = _parse(dict(quantities))
        if is_sidecar:
            amounts.add(result, request)
            peak = amounts.max_amounts((peak, result))
        else:
            peak = amounts.max_amounts((peak, amounts.sum_amounts((result, request))))
    for quantities in containers:
        amounts.add(result, _parse(dict(quantities)))
    if peak:
        result = amounts.max_amounts((peak, result))
    result |= _parse(dict(whole_pod))
    amounts.add(result, _parse(dict(overhead)))
    result[amounts.PODS] = 1
    return amounts.cap_request(result)


def _list_requests(resources: core.ResourceRequirements) -> _Quantities:
    # The API server copies limits to missing requests; templates not yet created need the same rule.
    return tuple((resources.limits | resources.requests).items())


def _parse(quantities: Mapping[str, str]) -> Amounts:
    """As `amounts.parse`; the API server stores numbers beyond what it can count with, and they mean "the most"."""
    try:
        return amounts.parse(quantities)
    except quantity.BadQuantity:
        return {name: _parse_one(name, text) for name, text in quantities.items()}


def _parse_one(name: str, text: str) -> int:
    try:
        return amounts.parse_one(name, text)
    except quantity.BadQuantity:
        match = _NUMBER.fullmatch(text)
        if match is None or float(match["number"]) * _SCALE[match["suffix"] or ""] <= _MOST:
            raise
        return _MOST


def is_terminal(pod: core.Pod) -> bool:
    return pod.status.phase in _TERMINAL


def read_tolerations(tolerations: Iterable[core.Toleration]) -> tuple[Toleration, ...]:
    return tuple(Toleration(t.key, t.operator, t.value, t.effect) for t in tolerations)


def required_affinity(affinity: core.Affinity) -> tuple[tuple[Requirement, ...], ...] | None:
    """The required part of node affinity; None: there is none. An unknown operator is an error."""
    required = affinity.nodeAffinity.required
    if required is None:
        return None
    return tuple(
        tuple(
            Requirement(line.key, Operator(line.operator), line.values)
            for line in (*term.matchExpressions, *term.matchFields)
        )
        for term in required.nodeSelectorTerms
    )


def read_allocatable(node: core.Node) -> Amounts:
    """Allocatable, and capacity for GPUs that allocatable does not mention.

    A GPU that only a label promises is not offered: until the device plugin reports it no pod can get it.
    """
    result = _parse(node.status.allocatable)
    for resource, text in node.status.capacity.items():
        if amounts.is_gpu(resource) and resource not in result:
            result[resource] = _parse_one(resource, text)
    return amounts.cap_offer(result)


def read_capacity(node: core.Node, resource: str) -> int:
    """How many of it the node has, in service or not."""
    text = node.status.capacity.get(resource) or node.status.allocatable.get(resource)
    return min(_parse_one(resource, text), amounts.limit_of(resource)) if text else 0


def is_ready(node: core.Node) -> bool:
    return any(c.type == "Ready" and c.status == "True" for c in node.status.conditions)


def read_architecture(family: str | None) -> str | None:
    """GPU feature discovery says `ada-lovelace` where users say Ada."""
    return None if family is None else family.partition("-")[0]


def int_label(labels: Mapping[str, str], key: str) -> int | None:
    text = labels.get(key, "")
    return min(int(text), amounts.MOST_PIECES) if text.isascii() and text.isdecimal() else None
