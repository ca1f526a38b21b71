"""Histories of nodes for tests of the cost engine: random prices, MIG cuts, shares and claims."""

from __future__ import annotations

import random
from dataclasses import replace

from kgwe.costing.metering.division import Claim, GpuClaim, GpuCut, NodeCut
from kgwe.costing.metering.mig_weights import SlicePlace
from kgwe.costing.metering.timeline import ClaimSpan, NodeSpan
from kgwe.costing.prices.book import Capacity
from kgwe.costing.segments import Account, Holder, Part
from kgwe.costing.split import Rates
from kgwe.model.gpu.mig import GEOMETRIES

A100 = GEOMETRIES["A100-40GB"]
# Not a multiple of anything.
T0 = 1_700_000_123


def holder(uid: str, namespace: str = "ml", team: str = "") -> Holder:
    return Holder(uid, f"pod-{uid}", f"Job/{uid}", Account(namespace, team))


class Everyone(dict[str, Holder]):
    """Every UID is a pod."""

    def __missing__(self, uid: str) -> Holder:
        return holder(uid, f"ns-{uid[-1]}")


LAYOUTS = (
    (),
    (SlicePlace("3g.20gb", 0), SlicePlace("3g.20gb", 4)),
    (SlicePlace("1g.5gb", 0), SlicePlace("2g.10gb", 2)),
    tuple(SlicePlace("1g.5gb", start) for start in range(7)),
)


def make_history(seed: int, length: int = 400) -> tuple[list[NodeSpan], list[ClaimSpan]]:
    """A node with price changes, MIG re-cuts and shares, and pods that claim whatever they like."""
    rng = random.Random(seed)
    edges = sorted(rng.sample(range(1, length), rng.randint(0, 3)))
    nodes = []
    for start, end in zip([0, *edges], [*edges, None], strict=True):
        if rng.random() < 0.1:
            continue  # the node was gone for a while
        cards = tuple(
            GpuCut(f"GPU-{number}", "A100", A100, rng.choice(LAYOUTS), rng.choice((1, 1, 4, 7)))
            for number in range(rng.randint(1, 3))
        )
        rates = Rates(rng.randint(0, 10**8), rng.randint(0, 10**6), rng.randint(0, 10**6))
        capacity = rng.choice((Capacity.ON_DEMAND, Capacity.SPOT, Capacity.RESERVED))
        price = rng.choice(("v1", "v2", ""))
        finish = None if end is None else T0 + end
        cut = NodeCut("node", rates, cards, 8000, 2**34, capacity, "p4d", price)
        nodes.append(NodeSpan(T0 + start, finish, cut))
    claims = []
    for number in range(rng.randint(0, 8)):
        start = rng.randint(-50, length)
        end = rng.choice((None, start + rng.randint(0, length)))
        held = tuple(
            GpuClaim(
                f"GPU-{rng.randint(0, 3)}",
                rng.choice((Part.GPU, Part.SLICE, Part.SHARE)),
                rng.choice((-1, 0, 2, 4)),
                rng.randint(1, 3),
            )
            for _ in range(rng.randint(0, 2))
        )
        claim = Claim(f"pod-{number}", rng.random() < 0.1, held, rng.randint(0, 4000), rng.randint(0, 2**33))
        claims.append(ClaimSpan(T0 + start, None if end is None else T0 + end, claim))
    return nodes, claims


def use_of(segment, seed):
    """The same segment with some use measured."""

    rng = random.Random(f"{seed}{segment.key}")
    known = rng.randint(0, segment.seconds)
    return replace(segment, measured_s=known, busy_ms=rng.randint(0, known * 1000))
