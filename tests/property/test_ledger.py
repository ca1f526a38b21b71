"""Whatever happens in whatever order: the books are exact and nothing is given twice."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kgwe.model import amounts
from kgwe.placement.ask import Ask, NodeFacts
from kgwe.placement.dispatch import Dispatcher, Placed
from kgwe.placement.ledger import Ledger
from kgwe.placement.strategies import CostOptimized, LeastLoaded, Random, Strategy

STRATEGIES: dict[str, Strategy] = {"leastLoaded": LeastLoaded(), "random": Random(), "costOptimized": CostOptimized()}
NODES = {"a": 8, "b": 4, "c": 1}


def for_gpus(owner, count, **more):
    return Ask(owner, amounts.GPU, count, {amounts.GPU: count, amounts.PODS: 1}, **more)


def offers(gpus):
    return {amounts.GPU: gpus, amounts.PODS: 110}


class Life(RuleBasedStateMachine):
    """Work is placed, its pods are bound, evicted, end; others' pods come and go; nodes shrink and grow."""

    def __init__(self):
        super().__init__()
        self.ledger = Ledger()
        for name, gpus in NODES.items():
            self.ledger.set_node(NodeFacts(name, offers(gpus)))
        self.dispatcher = Dispatcher(STRATEGIES, random.Random(7))
        self.placed: dict[str, Placed] = {}
        self.bound: dict[str, str] = {}
        self.count = 0

    @rule(gpus=st.integers(1, 8), strategy=st.sampled_from(sorted(STRATEGIES)))
    def submit(self, gpus, strategy):
        self.count += 1
        wanted = for_gpus(f"w{self.count}", gpus, strategy=strategy)
        before = {name: self.ledger.free(name, amounts.GPU) for name in NODES}
        (decision,) = self.dispatcher.dispatch(self.ledger, [wanted])
        if isinstance(decision, Placed):
            assert before[decision.node] >= gpus
            assert self.ledger.free(decision.node, amounts.GPU) == before[decision.node] - gpus
            self.placed[wanted.owner] = decision
        else:
            assert max(before.values()) < gpus

    @precondition(lambda self: bool(set(self.placed) - set(self.bound)))
    @rule(data=st.data())
    def bind(self, data):
        owner = data.draw(st.sampled_from(sorted(set(self.placed) - set(self.bound))))
        decision = self.placed[owner]
        free = self.ledger.free(decision.node, amounts.GPU)
        self.ledger.set_pod(f"pod-{owner}", owner, decision.node, decision.ask.amounts)
        assert self.ledger.free(decision.node, amounts.GPU) == free, "binding planned work changes nothing"
        self.bound[owner] = f"pod-{owner}"

    @precondition(lambda self: bool(self.bound))
    @rule(data=st.data())
    def evict(self, data):
        owner = data.draw(st.sampled_from(sorted(self.bound)))
        node = self.placed[owner].node
        free = self.ledger.free(node, amounts.GPU)
        self.ledger.remove_pod(self.bound.pop(owner))
        assert self.ledger.free(node, amounts.GPU) == free, "evicted but unfinished work keeps its place"

    @precondition(lambda self: bool(self.placed))
    @rule(data=st.data())
    def finish(self, data):
        owner = data.draw(st.sampled_from(sorted(self.placed)))
        decision = self.placed.pop(owner)
        free = self.ledger.free(decision.node, amounts.GPU)
        if owner in self.bound:
            self.ledger.remove_pod(self.bound.pop(owner))
        self.ledger.release(owner)
        assert self.ledger.free(decision.node, amounts.GPU) == free + decision.ask.count

    @rule(name=st.sampled_from(sorted(NODES)), gpus=st.integers(0, 8))
    def resize(self, name, gpus):
        self.ledger.set_node(NodeFacts(name, offers(gpus)))

    @invariant()
    def books_balance(self):
        self.ledger.check()
        for name in NODES:
            facts = self.ledger.node(name)
            held = sum(d.ask.count for d in self.placed.values() if d.node == name)
            assert facts is not None
            assert self.ledger.free(name, amounts.GPU) == facts.allocatable[amounts.GPU] - held


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(
    sizes=st.lists(st.integers(0, 8), min_size=1, max_size=6),
    wanted=st.lists(st.tuples(st.integers(1, 8), st.integers(0, 3)), max_size=25),
    order=st.randoms(use_true_random=False),
)
def test_who_is_placed_does_not_depend_on_the_order_of_arrival(sizes, wanted, order):
    def run(asked):
        ledger = Ledger()
        for number, gpus in enumerate(sizes):
            ledger.set_node(NodeFacts(f"n{number}", offers(gpus)))
        decisions = Dispatcher(STRATEGIES, random.Random(0)).dispatch(ledger, asked)
        return {d.ask.owner: d.node if isinstance(d, Placed) else d.reason for d in decisions}

    asked = [for_gpus(f"w{i}", gpus, priority=priority) for i, (gpus, priority) in enumerate(wanted)]
    shuffled = list(asked)
    order.shuffle(shuffled)
    assert run(asked) == run(shuffled)


@given(pods=st.integers(1, 4), bound=st.integers(0, 6), elsewhere=st.booleans())
def test_a_reservation_counts_only_for_what_is_not_bound_yet(pods, bound, elsewhere):
    ledger = Ledger()
    ledger.set_node(NodeFacts("a", offers(16)))
    ledger.reserve("w", "a", {amounts.GPU: 2 * pods})
    for number in range(bound):
        ledger.set_pod(f"p{number}", "w", "b" if elsewhere else "a", {amounts.GPU: 2})
    here = 0 if elsewhere else bound
    assert ledger.free("a", amounts.GPU) == 16 - 2 * max(pods, here)
    ledger.check()
