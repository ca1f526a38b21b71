"""Which part of a GPU a workload gets by a GPUSharingPolicy, and when it keeps its whole GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgwe.sharing.policies import (
    Facts,
    Part,
    Policy,
    Why,
    choose_part,
    divide_node,
    refuse_workload,
    sort_policies,
)

SLICE, LARGE = Part(profile="1g.10gb", size=1 / 7), Part(profile="3g.40gb", size=3 / 7)
QUARTER, HALF = Part(share=0.25, size=0.25), Part(share=0.5, size=0.5)
NOTEBOOK = Facts("Visualization", is_one_gpu=True)
AUTO = Policy("p", "auto")


def allow(_: Part) -> str:
    return ""


@given(
    st.sampled_from(["mig", "mps", "timeslicing", "exclusive", "auto"]),
    st.lists(st.sampled_from([SLICE, LARGE, QUARTER, HALF])),
    st.frozensets(st.sampled_from([SLICE, LARGE, QUARTER, HALF])),
)
def test_a_part_is_one_that_is_offered_free_and_of_the_strategy(
    strategy: str, offered: list[Part], free: frozenset[Part]
):
    found = choose_part(replace(AUTO, strategy=strategy), offered, allow, free.__contains__)
    if isinstance(found, Part):
        assert found in offered
        assert found in free
        assert bool(found.profile) == (
            strategy == "mig" or (strategy == "auto" and bool({SLICE, LARGE} & free & set(offered)))
        )
    else:
        assert found[0] is Why.NO_PART


def test_the_smallest_slice_comes_first_then_the_smallest_share():
    everything = [HALF, LARGE, QUARTER, SLICE]
    assert choose_part(AUTO, everything, allow, lambda _: True) == SLICE
    assert choose_part(AUTO, [HALF, QUARTER], allow, lambda _: True) == QUARTER
    assert choose_part(replace(AUTO, profile="3g.40gb"), everything, allow, lambda _: True) == LARGE


def test_what_the_owner_does_not_allow_is_said():
    found = choose_part(AUTO, [SLICE], lambda _: "annotation optimize is 'false'", lambda _: True)
    assert found == (Why.OPTED_OUT, "annotation optimize is 'false'")


@pytest.mark.parametrize(
    ("policy", "facts", "why"),
    [
        (replace(AUTO, strategy="exclusive"), NOTEBOOK, Why.EXCLUSIVE),
        (AUTO, replace(NOTEBOOK, is_one_gpu=False), Why.NOT_ONE_GPU),
        (AUTO, replace(NOTEBOOK, workload_type="Training"), Why.NOT_LIGHT),
        (AUTO, replace(NOTEBOOK, preallocates="vLLM"), Why.PREALLOCATES),
        (AUTO, NOTEBOOK, None),
        (replace(AUTO, pod_labels=(("size", "small"),)), replace(NOTEBOOK, workload_type="Training"), None),
    ],
)
def test_only_light_workloads_of_one_gpu_get_a_part(policy: Policy, facts: Facts, why: Why | None):
    found = refuse_workload(policy, facts)
    assert (found[0] if found else None) is why


def test_priority_decides_then_the_name():
    low, high, same = Policy("a", "mig"), Policy("z", "mig", 5), Policy("b", "mig", 5)
    assert sort_policies([low, high, same]) == [same, high, low]


def test_a_policy_without_a_node_selector_divides_no_node():
    assert not AUTO.selects_node({"pool": "a"})
    assert replace(AUTO, node_labels=(("pool", "a"),)).selects_node({"pool": "a"})
    assert divide_node(AUTO, is_mig_capable=False) == ("timeslicing", 4)
    assert divide_node(AUTO, is_mig_capable=True) == ("mig", 0)
    assert divide_node(replace(AUTO, strategy="exclusive"), is_mig_capable=True) == ("", 0)
