"""Decisions that were recorded come out the same when they are taken again, whatever happened in between."""

from __future__ import annotations

import random
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders import small_fleet
from tests.support.examples import examples

from kgwe import errors
from kgwe.apps.scheduler.recording.files import files
from kgwe.apps.scheduler.recording.recorder import Draws, Recorder
from kgwe.model.network import domains
from kgwe.placement.fleet.node import Gpus, Node, Request
from kgwe.placement.gang.request import GangRequest, Role
from kgwe.placement.live.fleet import LiveFleet
from kgwe.placement.live.ledger import Ledger
from kgwe.placement.live.scratch import ScratchFleet
from kgwe.placement.planning import planner
from kgwe.placement.planning.ask import Ask, TopologyRequest
from kgwe.placement.planning.plan import Plan
from kgwe.placement.planning.planner import pod_amounts
from kgwe.placement.pod.engine import Decision
from kgwe.placement.pod.ranking import Strategy
from kgwe.records import codec, decisions, rows
from kgwe.sim import replay

if TYPE_CHECKING:
    from collections.abc import Sequence

NODES = [small_fleet.node(number, cut=number % 3 == 2, taints=()) for number in range(6)]
SHAPES = st.sampled_from(
    [Gpus(count=1), Gpus(count=2), Gpus(count=4), Gpus(profile="1g.10gb", slices=1), Gpus(profile="2g.20gb", slices=1)]
)
REQUESTS = st.builds(Request, SHAPES, cpu_milli=st.sampled_from([0, 1000, 30_000]))
STRATEGIES = st.sampled_from(["", "pack", "spread", "random", "distributed", "leastLoaded"])


def tree(nodes: Sequence[Node]) -> domains.Tree:
    places = [domains.Place(node.name, (node.labels[small_fleet.LEAF], "spine-0"), gb_per_s=50.0) for node in nodes]
    return domains.build_tree(places, ("leaf", "spine"))


@st.composite
def asks(draw: Any) -> Ask:
    request, pods = draw(REQUESTS), draw(st.sampled_from([1, 1, 2, 4]))
    near = TopologyRequest(required=draw(st.sampled_from(["", "leaf"]))) if pods > 1 else TopologyRequest()
    ask = Ask(
        owner="",
        request=request,
        amounts=pod_amounts(request),
        pods=pods,
        nearness=near,
        strategy=draw(STRATEGIES),
        divisible=pods == 1 and request.gpus.count == 4 and draw(st.booleans()),
    )
    if pods > 1 and draw(st.booleans()):
        roles = (Role("head", Request(Gpus(count=1)), 1), Role("worker", request, pods))
        return replace(ask, strategy="", gang=GangRequest(roles, required=near.required))
    return ask


class Run:
    """A scheduler in small: a live fleet, a copy to plan on, and a recorder of both."""

    def __init__(self, directory: Path) -> None:
        self.ledger = Ledger(LiveFleet())
        self.fleet.set_nodes(NODES, tree(NODES))
        self.copy = ScratchFleet(self.fleet)
        self.recorder = Recorder(directory, 8, version="test", clock=self.tick)
        self.rng = random.Random(7)
        self.now_s = 0.0
        self.held: list[str] = []

    @property
    def fleet(self) -> LiveFleet:
        return self.ledger.fleet

    def tick(self) -> float:
        self.now_s += 1.0
        return self.now_s

    def plan(self, ask: Ask, avoid: frozenset[str]) -> None:
        self.copy.sync()
        place: Any = self.copy
        if avoid:
            place = ScratchFleet(self.copy)
            place.sync(avoid)
        ask = replace(ask, owner=f"w{self.now_s:g}")
        draws = Draws(self.rng)
        answer = planner.make_plan(place, ask, rng=draws, explain=False)
        self.recorder.record_plan(self.copy, ask, answer, avoid=avoid, draws=draws.said)
        if isinstance(answer, Plan):
            self.ledger.commit_plan(
                ask.owner, answer.amounts_by_seat, answer.grants, [seat.node for seat in answer.seats]
            )
            self.held.append(ask.owner)

    def pod(self, ask: Ask, among: Sequence[str] | None) -> None:
        uid = f"p{self.now_s:g}"
        strategy = Strategy.PACK
        index = self.fleet.snapshot.index
        offered = None if among is None else [name for name in among if name in index]
        numbers = None if offered is None else np.array([index[each] for each in offered], np.intp)
        found = self.fleet.engine.decide(ask.request, strategy=strategy, candidates=numbers)
        asked = Ask(uid, ask.request, ask.amounts, strategy=strategy)
        self.recorder.record_pod(self.fleet, asked, found, among=offered)
        if isinstance(found, Decision):
            self.ledger.assume_pod(uid, ask.amounts, found.grant, 1e9)

    def end(self, which: int) -> None:
        if self.held:
            self.ledger.release_seats(self.held.pop(which % len(self.held)))
        self.recorder.record_ends(self.ledger)

    def change_node(self, number: int, *, there: bool, ready: bool) -> None:
        changed = NODES[number]
        left = [node for node in self.fleet.snapshot.nodes if node.name != changed.name]
        if there:
            left.append(replace(changed, ready=ready))
        self.fleet.set_nodes(left, tree(sorted(left, key=lambda node: node.name)))


NUMBERS = st.integers(0, len(NODES) - 1)
SUBSETS = st.frozensets(st.sampled_from([node.name for node in NODES]), max_size=3)
STEPS: st.SearchStrategy[tuple[str, Any, Any]] = st.one_of(
    st.tuples(st.just("plan"), asks(), SUBSETS),
    st.tuples(st.just("plan"), asks(), st.just(frozenset())),
    st.tuples(st.just("pod"), asks(), st.one_of(st.none(), SUBSETS.map(sorted))),
    st.tuples(st.just("end"), st.integers(0, 9), st.none()),
    st.tuples(st.just("node"), NUMBERS, st.tuples(st.booleans(), st.booleans())),
)


def perform(run: Run, steps: list[Any]) -> None:
    for verb, what, how in steps:
        if verb == "plan":
            run.plan(what, how)
        elif verb == "pod":
            run.pod(what, how)
        elif verb == "end":
            run.end(what)
        else:
            run.change_node(what, there=how[0], ready=how[1])
    run.recorder.close()


@examples(40)
@given(st.lists(STEPS, min_size=5, max_size=40))
def test_replay_by_the_same_policy_gives_every_recorded_answer(steps: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as name:
        perform(Run(Path(name)), steps)
        asked = sum(verb in ("plan", "pod") for verb, *_ in steps)
        outcomes = list(replay.replay(decisions.read_lines(files(Path(name)))))
        assert [outcome.difference for outcome in outcomes] == [""] * len(outcomes)
        placed = sum(outcome.line.refused is None for outcome in outcomes)
        assert placed <= len(outcomes) <= asked
        # The same refusal is written once.
        assert len(outcomes) == asked or any(outcome.line.refused for outcome in outcomes)


@examples(20)
@given(st.lists(STEPS, min_size=5, max_size=20), st.data())
def test_an_edited_state_is_noticed(steps: list[Any], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        perform(Run(Path(name)), [("plan", Ask("", Request(Gpus(count=1))), frozenset()), *steps])
        lines = [line for path in files(Path(name)) for line in path.read_bytes().splitlines()]
        whole = msgspec.json.decode(lines[0])
        row = data.draw(st.integers(0, len(whole["rows"]) - 1))
        whole["rows"][row][2] -= 1
        path = Path(name) / "edited.jsonl"
        path.write_bytes(b"\n".join([msgspec.json.encode(whole), *lines[1:], b""]))
        with pytest.raises(errors.InvariantBroken, match="edited"):
            list(replay.replay(decisions.read_lines([path])))


@given(asks())
def test_an_ask_is_read_back_as_it_was(ask: Ask) -> None:
    text = msgspec.json.encode(codec.encode_ask(ask))
    assert codec.decode_value(Ask, msgspec.json.decode(text)) == ask


@given(st.lists(st.tuples(NUMBERS, SHAPES), max_size=20), st.lists(st.integers(0, 19), max_size=10))
def test_what_is_free_is_put_back_bit_for_bit(taken: list[tuple[int, Gpus]], given_back: list[int]) -> None:
    fleet = LiveFleet()
    fleet.set_nodes(NODES, tree(NODES))
    undos = []
    for number, gpus in taken:
        grant = fleet.fitter.find_grant(Request(gpus, cpu_milli=100), number)
        if grant is not None:
            undos.append(fleet.snapshot.commit(grant))
    for which in given_back:
        if which < len(undos):
            undos.pop(which)()
    other = LiveFleet()
    other.set_nodes(NODES, tree(NODES))
    for number in range(len(NODES)):
        rows.put_row(other.snapshot, rows.row_of(fleet.snapshot, number))
    assert rows.FreeCopy.copy_from(fleet.snapshot).find_differing(other.snapshot) == []
    assert rows.digest(fleet.snapshot) == rows.digest(other.snapshot)
    for profile, counts in fleet.snapshot.slices.items():
        assert counts.tolist() == other.snapshot.slices[profile].tolist()
