"""The meter of one node: keeps recent facts, and says which segments are new or different.

Facts of the last minutes may still change: a pod ended earlier than it seemed, or holds another GPU. So the meter
derives all segments since the settled time again from the facts, and returns those that differ from what it wrote.
Facts from before the settled time are cut there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kgwe.costing.metering.division import GpuCut, NodeCut, divide_node
from kgwe.costing.metering.timeline import ClaimSpan, LineKey, NodeSpan, OpenLine, sweep_node
from kgwe.costing.metering.use import Use, UseRecord
from kgwe.costing.prices.book import Capacity, Quote
from kgwe.costing.prices.commitments import PREFIX
from kgwe.costing.segments import HELD, Account, Holder
from kgwe.costing.split import HostShape, Rates, SplitMethod, split_rate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kgwe.costing.metering.division import Line
    from kgwe.costing.metering.use import UseKey
    from kgwe.costing.prices.book import NodeKind, PriceBook
    from kgwe.costing.segments import Segment, SegmentKey


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node as the cluster describes it, before it is priced."""

    name: str
    kind: NodeKind
    gpus: tuple[GpuCut, ...]
    host: HostShape
    """What pods can request of it."""


@dataclass(frozen=True, slots=True)
class _StateSpan:
    start_s: int
    end_s: int | None
    state: NodeState


class NodeMeter:
    """Facts about one node since the settled time."""

    def __init__(self, settled_s: int) -> None:
        self.settled_s = settled_s
        self._states: list[_StateSpan] = []
        self._claims: dict[str, ClaimSpan] = {}
        self._holders: dict[str, Holder] = {}
        self._opened: dict[LineKey, OpenLine] = {}
        self._written: dict[SegmentKey, Segment] = {}
        self._use = UseRecord()
        self._use_before: dict[SegmentKey, Use] = {}
        """Use before the settled time, of segments that go on."""

    @property
    def state(self) -> NodeState | None:
        """The node as it is now; None if it is gone."""
        last = self._states[-1] if self._states else None
        return last.state if last is not None and last.end_s is None else None

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to settle: the node is gone."""
        return not self._states

    def set_state(self, at_s: int, state: NodeState | None) -> None:
        """The node is described like this since a time; None: it is gone."""
        if state == self.state:
            return
        if self.state is not None:
            last = self._states.pop()
            if at_s > last.start_s:
                self._states.append(replace(last, end_s=at_s))
        if state is not None:
            self._states.append(_StateSpan(at_s, None, state))

    def list_claims(self) -> Iterator[ClaimSpan]:
        """Yield the claims that are not settled."""
        yield from self._claims.values()

    def set_claim(self, span: ClaimSpan, holder: Holder) -> None:
        """A pod holds something for a time; what was known of the pod before is replaced."""
        if span.end_s is not None and span.end_s <= self.settled_s and holder.uid not in self._claims:
            return
        self._claims[holder.uid] = span
        self._holders[holder.uid] = holder

    def find_claim(self, uid: str) -> ClaimSpan | None:
        """Return the claim of a pod; None if it is not known, or settled."""
        return self._claims.get(uid)

    def add_use(self, key: UseKey, start_s: int, end_s: int, milli: int) -> None:
        """A pod used a device this much for a time. What is older than the settled time is too late to count."""
        if end_s > self.settled_s:
            self._use.add(key, max(start_s, self.settled_s), end_s, milli)

    def derive(self, now_s: int, book: PriceBook, method: SplitMethod) -> list[Segment]:
        """Return the segments to write: new, different, and without length where one must be removed."""
        if now_s <= self.settled_s:
            return []
        swept = sweep_node(
            list(self._price_states(now_s, book, method)),
            list(self._claims.values()),
            (self.settled_s, now_s),
            self._holders,
            self._opened,
        )
        current = {each.key: self._measure(each) for each in swept.segments}
        gone = [
            replace(each, end_s=each.start_s, measured_s=0, busy_ms=0)
            for key, each in self._written.items()
            if key not in current
        ]
        changed = [each for key, each in current.items() if self._written.get(key) != each]
        self._written = current
        return [*gone, *changed]

    def price_claim(self, span: ClaimSpan, at_s: int, book: PriceBook, method: SplitMethod) -> tuple[Line, ...]:
        """Return what a claim costs on the node as it is now, at the prices of a time; nothing if it is gone."""
        state = self.state
        if state is None:
            return ()
        lines = divide_node(_price(state, book.quote(state.kind, at_s), book, method), [span.claim])
        return tuple(each for each in lines if each.holder == span.claim.holder and each.bucket in HELD)

    def settle(self, until_s: int, book: PriceBook, method: SplitMethod) -> None:
        """Take everything before a time as final."""
        if until_s <= self.settled_s:
            return
        states = list(self._price_states(until_s, book, method))
        window = self.settled_s, until_s
        swept = sweep_node(states, list(self._claims.values()), window, self._holders, self._opened)
        self._opened = swept.open
        self._use_before = {
            each.key: Use(measured.measured_s, measured.busy_ms)
            for each in swept.segments
            if each.end_s == until_s and (measured := self._measure(each)).measured_s
        }
        self._use.forget(until_s)
        self.settled_s = until_s
        self._states = [each for each in self._states if each.end_s is None or each.end_s > until_s]
        self._claims = {uid: span for uid, span in self._claims.items() if span.end_s is None or span.end_s > until_s}
        open_holders = {key.holder for key in self._opened}
        self._holders = {uid: each for uid, each in self._holders.items() if uid in self._claims or uid in open_holders}
        self._written = {key: each for key, each in self._written.items() if each.end_s > until_s}

    def _measure(self, each: Segment) -> Segment:
        """Return the segment with its use, as far as it was measured."""
        found = self._use.integrate(each, max(each.start_s, self.settled_s), each.end_s)
        found = found.plus(self._use_before.get(each.key, Use()))
        return replace(each, measured_s=found.measured_s, busy_ms=found.busy_ms) if found.measured_s else each

    def _price_states(self, now_s: int, book: PriceBook, method: SplitMethod) -> Iterator[NodeSpan]:
        """Yield the states with their prices; a state is cut where its price changes."""
        for span in self._states:
            at_s = max(span.start_s, self.settled_s)
            end_s = now_s if span.end_s is None else min(span.end_s, now_s)
            while at_s < end_s:
                quote = book.quote(span.state.kind, at_s)
                until_s = min(quote.until_s, end_s)
                if isinstance(quote, Quote) and quote.commitment:
                    owner = name_owner(quote)
                    self._holders[owner.uid] = owner
                yield NodeSpan(
                    at_s, until_s if until_s < now_s else span.end_s, _price(span.state, quote, book, method)
                )
                at_s = until_s


def _price(state: NodeState, quote: object, book: PriceBook, method: SplitMethod) -> NodeCut:
    rates, version, owner, capacity = Rates(0, 0, 0), "", "", state.kind.capacity
    if isinstance(quote, Quote):
        rates = split_rate(method, quote.micros_per_hour, state.host, book.host_price())
        version = quote.version
        if quote.commitment:
            owner, capacity = name_owner(quote).uid, Capacity.RESERVED
    return NodeCut(
        state.name,
        rates,
        state.gpus,
        state.host.cpu_milli,
        state.host.memory_bytes,
        capacity,
        state.kind.instance_type,
        version,
        owner,
    )


def name_owner(quote: Quote) -> Holder:
    """Return the holder of what no pod holds of a pool."""
    name = f"{PREFIX}{quote.commitment}"
    return Holder(name, "", f"Commitment/{quote.commitment}", Account(team=quote.owner))


def end_claim(span: ClaimSpan, end_s: int) -> ClaimSpan:
    """Return a claim that ends at a time, or earlier if it ended already."""
    return replace(span, end_s=end_s if span.end_s is None else min(span.end_s, end_s))
