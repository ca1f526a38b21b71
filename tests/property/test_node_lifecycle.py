"""The life of a bought node: legal steps only, the same stage after a restart, and an end that is final."""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kgwe.scaling.lifecycle import IN_FLIGHT, TRANSITIONS, NodeFacts, Signal, Stage, Times, advance, find_stage

TIMES = Times(join_s=100.0, gpu_ready_s=100.0, settle_s=10.0, degraded_s=20.0)

any_facts = st.builds(
    NodeFacts,
    age_s=st.sampled_from([0.0, 5.0, 11.0, 99.0, 101.0, 199.0, 201.0]),
    refused=st.booleans(),
    listed=st.booleans(),
    was_listed=st.booleans(),
    has_node=st.booleans(),
    complete=st.booleans(),
    was_complete=st.booleans(),
    degraded_s=st.sampled_from([0.0, 19.0, 21.0]),
    has_pods=st.booleans(),
    drain=st.booleans(),
    removal=st.booleans(),
)


def _make_possible(facts: NodeFacts) -> NodeFacts:
    """A node that does not exist has no readiness, pods or drain."""
    if not facts.has_node:
        facts = replace(facts, complete=False, has_pods=False, drain=False)
    return replace(facts, was_listed=facts.was_listed or facts.listed)


@given(st.lists(any_facts, min_size=1, max_size=8))
def test_every_sequence_of_facts_leads_along_the_table(history: list[NodeFacts]) -> None:
    stage, age_s, was_listed, was_complete, removal = Stage.REQUESTED, 0.0, False, False, False
    for each in history:
        age_s = max(age_s, each.age_s)
        facts = _make_possible(replace(each, age_s=age_s))
        was_listed |= facts.was_listed
        was_complete |= facts.complete
        removal |= facts.removal  # it is never undone
        facts = replace(facts, was_listed=was_listed, was_complete=was_complete, removal=removal)
        path = advance(stage, facts, TIMES)
        steps = itertools.pairwise(path)
        assert all(step in {(old, new) for (old, _), new in TRANSITIONS.items()} for step in steps)
        stage = path[-1]
        if stage is Stage.GONE:
            return
        if facts.listed:
            assert find_stage(facts, TIMES) is stage, "a restart finds another stage"


@given(any_facts)
def test_a_node_that_the_cloud_lists_is_never_forgotten(facts: NodeFacts) -> None:
    assert find_stage(_make_possible(replace(facts, listed=True)), TIMES) is not Stage.GONE


@given(any_facts)
def test_a_node_whose_gpus_are_late_counts_as_capacity_that_comes(facts: NodeFacts) -> None:
    late = replace(
        facts, listed=True, has_node=True, complete=False, was_complete=False, drain=False, removal=False, age_s=199.0
    )
    assert find_stage(late, TIMES) in IN_FLIGHT
    assert find_stage(replace(late, age_s=201.0), TIMES) is Stage.BROKEN


def test_every_stage_ends_and_the_end_is_final() -> None:
    for stage in Stage:
        ends = {new for (old, _), new in TRANSITIONS.items() if old is stage}
        assert (not ends) == (stage is Stage.GONE)
        assert stage is Stage.GONE or TRANSITIONS[stage, Signal.VANISHED] is Stage.GONE


def test_a_launch_that_no_list_shows_is_gone_only_after_the_list_has_settled() -> None:
    assert find_stage(NodeFacts(age_s=9.0), TIMES) is Stage.REQUESTED
    assert find_stage(NodeFacts(age_s=11.0), TIMES) is Stage.GONE
    assert find_stage(NodeFacts(age_s=1.0, refused=True), TIMES) is Stage.GONE
