"""Inference on spot nodes: spread, extra replicas, fallback and return."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kgwe.bench.scaling.spot_serving import Prices, Region, replay_service
from kgwe.scaling.spot.serving import Domains, Service, ServingPlan, plan_serving

ABC = Domains(usable=("a", "b", "c"))


def test_replicas_are_spread_and_the_extra_ones_run_on_spot() -> None:
    plan = plan_serving(Service(wanted=3, extra=1, spot={"a": 1}), ABC)
    assert plan == ServingPlan(("b", "c", "a"))


def test_a_domain_that_was_lost_lately_is_used_only_if_there_is_no_other() -> None:
    service = Service(wanted=2, extra=0, spot={})
    assert plan_serving(service, Domains(usable=("a", "b"), avoided=frozenset({"a"}))).spot == ("b", "b")
    assert plan_serving(service, Domains(usable=("a",), avoided=frozenset({"a"}))).spot == ("a", "a")


def test_without_spot_only_the_wanted_replicas_run_on_demand() -> None:
    assert plan_serving(Service(wanted=3, extra=2, spot={"a": 1}), Domains(usable=())) == ServingPlan(
        on_demand=2, waiting=2
    )


def test_a_replica_goes_back_to_spot_when_it_can_be_spared() -> None:
    full = Service(wanted=3, extra=1, spot={"a": 2}, on_demand=2, ready=4)
    assert plan_serving(full, ABC).to_spot == 1
    assert plan_serving(full, Domains(usable=("a",), avoided=frozenset({"a"}))).to_spot == 0
    assert plan_serving(Service(wanted=3, extra=1, spot={"a": 2}, on_demand=2, ready=3), ABC).to_spot == 0


@given(
    wanted=st.integers(0, 5),
    extra=st.integers(0, 3),
    spot=st.dictionaries(st.sampled_from("abcd"), st.integers(0, 3)),
    on_demand=st.integers(0, 3),
    usable=st.sets(st.sampled_from("abcd")),
    avoided=st.frozensets(st.sampled_from("abcd")),
)
def test_every_missing_replica_is_started_or_waits_and_on_demand_is_bought_for_wanted_ones_only(
    *, wanted: int, extra: int, spot: dict[str, int], on_demand: int, usable: set[str], avoided: frozenset[str]
) -> None:
    service = Service(wanted=wanted, extra=extra, spot=spot, on_demand=on_demand, ready=wanted)
    plan = plan_serving(service, Domains(usable=tuple(sorted(usable)), avoided=avoided))
    running = sum(spot.values()) + on_demand
    assert len(plan.spot) + plan.on_demand + plan.waiting == max(wanted + extra - running, 0)
    assert plan.on_demand == 0 or running + plan.on_demand <= wanted
    assert set(plan.spot) <= usable


def test_a_replay_counts_what_serves_and_what_is_paid() -> None:
    available = np.array([[True, True]] * 4 + [[False, True]] * 4 + [[False, False]] * 4)
    region = Region(("a", "b"), available, 1.0)
    found = replay_service(region, plan_serving, wanted=1, extra=1, start_h=1.0, prices=Prices(4.0, 1.0))
    # Step 4 loses a, b serves on; step 8 loses b, an on-demand replica serves from step 9.
    assert found["availability"] == round(10 / 11, 5)
    assert found["cost_ratio"] == round((7 * 2 + 4 * 4) / (11 * 4), 4)
