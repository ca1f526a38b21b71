"""How the rate of a node is divided at one moment: among GPUs, their slices and shares, and the pods that hold them.

The lines sum to the rate of the node, whatever pods claim. More claims on a GPU than it has room for share it in
proportion: no GPU is paid for twice, and nothing without a pod is ever negative.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kgwe.costing import money
from kgwe.costing.metering.mig_weights import SlicePlace, SliceWeights, weigh_slices
from kgwe.costing.segments import PPM, Bucket, Part, Piece

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kgwe.costing.prices.book import Capacity
    from kgwe.costing.split import Rates
    from kgwe.model.gpu.mig import Geometry


@dataclass(frozen=True, slots=True)
class GpuCut:
    """One GPU of a node, and how it can be held at this moment."""

    uuid: str
    model: str = ""
    geometry: Geometry | None = None
    slices: tuple[SlicePlace, ...] = ()
    """The MIG slices that exist; empty: the GPU is not cut."""
    shares: int = 1
    """Equal shares by time-slicing or MPS; 1: the GPU is not shared."""


@dataclass(frozen=True, slots=True)
class NodeCut:
    """A node as it is divided: its rate in parts, its GPUs, and what pods can request of its host."""

    name: str
    rates: Rates
    gpus: tuple[GpuCut, ...]
    cpu_milli: int = 0
    memory_bytes: int = 0
    capacity: Capacity | None = None
    instance_type: str = ""
    price: str = ""
    owner: str = ""
    """Holder of what no pod holds, on a node that a commitment pays."""


class GpuClaim(NamedTuple):
    """What a pod holds of one GPU: the whole GPU, a slice, or shares."""

    gpu: str
    part: Part = Part.GPU
    start: int = -1
    shares: int = 1


@dataclass(frozen=True, slots=True)
class Claim:
    """What one pod holds of a node."""

    holder: str
    """UID of the pod."""
    is_overhead: bool = False
    gpus: tuple[GpuClaim, ...] = ()
    cpu_milli: int = 0
    memory_bytes: int = 0


class Line(NamedTuple):
    """The rate of one holder, or of no holder, for one piece."""

    bucket: Bucket
    holder: str
    piece: Piece
    rate: int
    ppm: int


class _Part(NamedTuple):
    """A weighed part of a GPU before it is priced."""

    weight: int
    claim: Claim | None
    part: Part
    place: str = ""


def divide_node(node: NodeCut, claims: Sequence[Claim]) -> list[Line]:
    """Return the lines of a node. The first is the node itself; the others sum to it."""
    spare = Bucket.RESERVED_IDLE if node.capacity == "reserved" else Bucket.UNALLOCATED
    whole = Piece(node.name, Part.NODE, "", "", "", node.capacity or "", node.instance_type)
    lines = [Line(Bucket.FLEET, "", whole, node.rates.total, PPM * len(node.gpus))]
    gpu_rates = money.divide(node.rates.gpu, [1] * len(node.gpus)) if node.gpus else []
    host_rates = [node.rates.cpu + (0 if node.gpus else node.rates.gpu), node.rates.memory]
    on_gpu: dict[str, list[tuple[Claim, GpuClaim]]] = {}
    for claim in claims:
        for held in claim.gpus:
            on_gpu.setdefault(held.gpu, []).append((claim, held))
    for gpu, rate in zip(node.gpus, gpu_rates, strict=True):
        lines += _divide_gpu(node, gpu, rate, on_gpu.get(gpu.uuid, ()), spare)
    lines += _divide_host(node, host_rates, claims, spare)
    return lines


def _divide_gpu(
    node: NodeCut, gpu: GpuCut, rate: int, held: Sequence[tuple[Claim, GpuClaim]], spare: Bucket
) -> Iterator[Line]:
    parts = _weigh_sliced(gpu, held) if gpu.slices else _weigh_shared(gpu, held)
    weights = [each.weight for each in parts]
    if not sum(weights):
        parts, weights = [_Part(1, None, Part.GPU)], [1]
    rates, ppms = money.divide(rate, weights), money.divide(PPM, weights)
    free_rate = free_ppm = 0
    # A pod with several shares of a GPU has one line, like a pod with one.
    merged: dict[tuple[Claim, Part, str], tuple[int, int]] = {}
    for each, part_rate, ppm in zip(parts, rates, ppms, strict=True):
        if each.claim is None:
            free_rate, free_ppm = free_rate + part_rate, free_ppm + ppm
        else:
            key = each.claim, each.part, each.place
            before = merged.get(key, (0, 0))
            merged[key] = before[0] + part_rate, before[1] + ppm
    for (claim, part, place), (part_rate, ppm) in merged.items():
        piece = Piece(node.name, part, gpu.uuid, place, gpu.model, node.capacity or "", node.instance_type)
        yield Line(_bucket_of(claim), claim.holder, piece, part_rate, ppm)
    if free_rate or free_ppm:
        piece = Piece(node.name, Part.GPU, gpu.uuid, "", gpu.model, node.capacity or "", node.instance_type)
        yield Line(spare, node.owner, piece, free_rate, free_ppm)


def _weigh_shared(gpu: GpuCut, held: Iterable[tuple[Claim, GpuClaim]]) -> list[_Part]:
    """Weigh whole GPUs and shares: a share weighs 1, a whole GPU as much as all its shares."""
    parts = []
    for claim, each in held:
        is_share = each.part is Part.SHARE
        weight = max(each.shares, 1) if is_share else gpu.shares
        parts.append(_Part(weight, claim, Part.SHARE if is_share else Part.GPU))
    rest = gpu.shares - sum(each.weight for each in parts)
    return [*parts, _Part(rest, None, Part.GPU)] if rest > 0 else parts


def _weigh_sliced(gpu: GpuCut, held: Sequence[tuple[Claim, GpuClaim]]) -> list[_Part]:
    """Weigh slices. Pods that hold the same slice, such as through one claim, share it."""
    weights = (
        weigh_slices(gpu.geometry, gpu.slices) if gpu.geometry is not None else SliceWeights((1,) * len(gpu.slices), 0)
    )
    parts = [_Part(weights.rest, None, Part.GPU)]
    known = {place.start for place in gpu.slices}
    for place, weight in zip(gpu.slices, weights.slices, strict=True):
        holders = [claim for claim, each in held if each.part is not Part.GPU and each.start == place.start]
        name = f"{place.profile}@{place.start}"
        for claim, part in zip(holders, money.divide(weight, [1] * len(holders)) if holders else (), strict=True):
            parts.append(_Part(part, claim, Part.SLICE, name))
        if not holders:
            parts.append(_Part(weight, None, Part.GPU))
    # A pod that is reported on the whole GPU, or on a slice that is gone, while the GPU is cut.
    total = sum(weights.slices) + weights.rest
    strangers = [claim for claim, each in held if each.part is Part.GPU or each.start not in known]
    return [*parts, *(_Part(total, claim, Part.GPU) for claim in strangers)]


def _divide_host(node: NodeCut, rates: Sequence[int], claims: Sequence[Claim], spare: Bucket) -> Iterator[Line]:
    """Divide CPUs and memory by requests. What is not requested is held by no pod."""
    piece = Piece(node.name, Part.HOST, "", "", "", node.capacity or "", node.instance_type)
    asked = ([each.cpu_milli for each in claims], [each.memory_bytes for each in claims])
    sums = [0] * (len(claims) + 1)
    for rate, wanted, offered in zip(rates, asked, (node.cpu_milli, node.memory_bytes), strict=True):
        rest = max(offered - sum(wanted), 0)
        weights = [*wanted, rest] if rest or any(wanted) else [*([0] * len(wanted)), 1]
        for position, part in enumerate(money.divide(rate, weights)):
            sums[position] += part
    for claim, rate in zip(claims, sums, strict=False):
        if rate:
            yield Line(_bucket_of(claim), claim.holder, piece, rate, 0)
    if sums[-1]:
        yield Line(spare, node.owner, piece, sums[-1], 0)


def _bucket_of(claim: Claim) -> Bucket:
    return Bucket.OVERHEAD if claim.is_overhead else Bucket.ALLOCATED
