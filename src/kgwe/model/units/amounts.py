"""How much of which resource: integers per resource name, in one unit each.

CPU is counted in millicores, memory and storage in bytes, everything else (GPUs, MIG slices, pods) in
pieces. Amounts are plain dicts so that the hot loops stay plain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe.model.units import quantity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Amounts = dict[str, int]

GPU = "nvidia.com/gpu"
#: one of the equal shares that device plugins offer a GPU as, where they rename it
SHARED = "nvidia.com/gpu.shared"
MIG_PREFIX = "nvidia.com/mig-"
_GPUS = frozenset({GPU, SHARED})
CPU = "cpu"
MEMORY = "memory"
PODS = "pods"

#: More than any machine has: 256 TiB, 280 billion cores, a million GPUs. The engine counts in 64-bit arrays, and counts
#: GPUs and pods in 32-bit ones. Below these limits neither a product (count by pods) nor a sum over all pods of a node
#: overflows, whatever a manifest asks for.
MOST: Final = 2**48
MOST_PIECES: Final = 2**20


def parse(quantities: Mapping[str, str]) -> Amounts:
    """Amounts of a manifest's `{"cpu": "500m", "nvidia.com/gpu": "2"}`."""
    return {name: parse_one(name, text) for name, text in quantities.items()}


def parse_one(name: str, text: str) -> int:
    if name == CPU:
        return quantity.parse_milli(text)
    if is_gpu(name) or name == PODS:
        return quantity.parse_int(text)
    # Bytes, and whatever else there is: the API server allows parts of some resources, so round up.
    return quantity.parse_bytes(text)


def add(total: Amounts, more: Mapping[str, int], sign: int = 1) -> None:
    """Add `more` to `total` in place; entries that reach zero are dropped."""
    for name, amount in more.items():
        left = total.get(name, 0) + sign * amount
        if left:
            total[name] = left
        else:
            total.pop(name, None)


def sum_amounts(parts: Iterable[Mapping[str, int]]) -> Amounts:
    result: Amounts = {}
    for part in parts:
        add(result, part)
    return result


def max_amounts(parts: Iterable[Mapping[str, int]]) -> Amounts:
    """Per resource, the largest of `parts` (init containers run one after another)."""
    result: Amounts = {}
    for part in parts:
        for name, amount in part.items():
            result[name] = max(result.get(name, 0), amount)
    return result


def limit_of(name: str) -> int:
    """The limit that amounts of this resource are cut to."""
    return MOST_PIECES if is_gpu(name) or name == PODS else MOST


def cap_request(wanted: Mapping[str, int]) -> Amounts:
    """The request with amounts that no node can offer cut to the least such amount: it still fits no node."""
    return {name: min(amount, limit_of(name)) for name, amount in wanted.items()}


def cap_offer(offered: Mapping[str, int]) -> Amounts:
    """The offer with each amount below what `cap_request` cuts requests to."""
    return {name: min(amount, limit_of(name) - 1) for name, amount in offered.items()}


def filter_gpus(parts: Mapping[str, int]) -> Amounts:
    """Those of them that are GPUs or slices."""
    return {name: amount for name, amount in parts.items() if is_gpu(name)}


def is_gpu(resource: str) -> bool:
    # A shared slice is left to kube-scheduler: nothing here tells whose turn it is.
    return resource in _GPUS or (resource.startswith(MIG_PREFIX) and not resource.endswith(".shared"))
