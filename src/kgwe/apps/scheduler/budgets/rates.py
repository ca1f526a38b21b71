"""What the places of a plan cost per hour."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kgwe import errors
from kgwe.costing.prices.book import Quote
from kgwe.costing.rates import HourlyRate, PricedNode, weigh_profiles
from kgwe.costing.segments import PPM
from kgwe.costing.split import HostShape, split_rate
from kgwe.kube.translate.node_prices import read_node_kind
from kgwe.model.gpu import catalog

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kgwe.costing.prices.book import PriceBook
    from kgwe.costing.split import SplitMethod
    from kgwe.model.gpu.mig import Profile
    from kgwe.placement.fleet.node import Node
    from kgwe.placement.fleet.snapshot import Grant

_PPM_PER_MILLI = PPM // 1000


class RateSource(Protocol):
    """Prices of places. It never waits, and never guesses: a node without a price is not priced."""

    def price(self, nodes: Sequence[Node], grants: Iterable[Grant], now_s: int) -> HourlyRate:
        """Return what these grants cost per hour now. `nodes`: those that the grants number."""

    def price_gpu(self, nodes: Sequence[Node], number: int, now_s: int) -> int | None:
        """Return what one whole GPU of a node costs per hour, in micro-dollars; None without a price."""


class BookRates:
    """Prices of a price book, as the cost engine will meter them."""

    def __init__(self, book: PriceBook, method: SplitMethod) -> None:
        self._book = book
        self._method = method
        # Node -> what it was priced as, and until when that holds.
        self._known: dict[str, tuple[Node, int, PricedNode]] = {}

    def price(self, nodes: Sequence[Node], grants: Iterable[Grant], now_s: int) -> HourlyRate:
        total = HourlyRate()
        for grant in grants:
            node = nodes[grant.node]
            ppm = grant.gpus.bit_count() * PPM
            if grant.share is not None:
                ppm += grant.share[1] * _PPM_PER_MILLI
            if grant.slices and node.shape.geometry is not None:
                by_gpu: dict[int, list[Profile]] = {}
                for gpu, placed in grant.slices:
                    by_gpu.setdefault(gpu, []).append(placed.profile)
                ppm += sum(weigh_profiles(node.shape.geometry, each) for each in by_gpu.values())
            total = total.plus(self._find(node, now_s).price(ppm, grant.cpu_milli, grant.memory_bytes))
        return total

    def price_gpu(self, nodes: Sequence[Node], number: int, now_s: int) -> int | None:
        found = self._find(nodes[number], now_s).price(PPM, 0, 0)
        return found.micros if found.is_priced else None

    def _find(self, node: Node, now_s: int) -> PricedNode:
        known = self._known.get(node.name)
        if known is None or known[0] is not node or known[1] <= now_s:
            quote = self._book.quote(read_node_kind(node.labels, _name_model(node), node.shape.gpu_count), now_s)
            rates = None
            if isinstance(quote, Quote):
                host = HostShape(node.cpu_milli, node.memory_bytes)
                rates = split_rate(self._method, quote.micros_per_hour, host, self._book.host_price())
            priced = PricedNode(rates, node.shape.gpu_count, node.cpu_milli, node.memory_bytes)
            known = self._known[node.name] = node, quote.until_s, priced
        return known[2]


def _name_model(node: Node) -> str:
    """Return the model as the price book names it."""
    try:
        return catalog.find_model(node.shape.model).name
    except errors.Permanent:
        return node.shape.model
