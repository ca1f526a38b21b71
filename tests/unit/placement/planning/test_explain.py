"""Why work has no place, and that what is suggested really starts it."""

from __future__ import annotations

import pytest
from tests.support.builders.places import Place
from tests.support.builders.plans import NOW, Fleet, whole

from kgwe.placement.disruption.preemption import Evictable
from kgwe.placement.gang.request import GangRequest, Role
from kgwe.placement.planning.ask import Ask, TopologyRequest
from kgwe.placement.planning.explain import Why, explain
from kgwe.placement.planning.plan import Plan
from kgwe.placement.pod.fit_status import FitStatus
from kgwe.records import rows


def why(fleet: Fleet, ask: Ask, **more) -> Why:
    before = rows.digest(fleet.snapshot)
    found = explain(Place(fleet), ask, **more)
    assert rows.digest(fleet.snapshot) == before
    assert isinstance(found, Why), found
    return found


def kinds(found: Why) -> list[str]:
    return [change.kind for change in found.changes]


def test_what_fits_is_a_plan() -> None:
    assert isinstance(explain(Place(Fleet("ab", cards=4)), Ask("w", whole(4))), Plan)


@pytest.mark.parametrize("strategy", ["random", "spread", ""])
def test_every_strategy_is_explained(strategy: str) -> None:
    fleet = Fleet("a", cards=4)
    assert isinstance(explain(Place(fleet), Ask("w", whole(2), strategy=strategy)), Plan)
    assert why(fleet, Ask("w", whole(5), strategy=strategy)).refusal.code == "TooLarge"


def test_a_pod_without_room_is_told_the_nearest_node_and_the_most_it_could_have() -> None:
    fleet = Fleet("abc", cards=4)
    fleet.run("x", "a", 3)
    fleet.run("y", "b", 2)
    fleet.run("z", "c", 4)
    found = why(fleet, Ask("w", whole(4)))
    assert found.best is not None
    assert (found.best.level, found.best.domain, found.best.room, found.best.short) == ("node", "b", 2, 2)
    assert [(each.verdict, each.count, each.examples) for each in found.nodes[""]] == [
        (FitStatus.GPUS_TAKEN, 3, ("a", "b", "c"))
    ]
    assert kinds(found) == ["FewerGPUs"]
    assert found.changes[0].text == "ask for 2 GPUs instead of 4 (b has 2 free)"
    assert isinstance(explain(Place(fleet), Ask("w", whole(2))), Plan)


def test_cards_may_be_divided_where_the_work_allows_it() -> None:
    fleet = Fleet("ab", cards=4)
    fleet.run("x", "a", 2)
    fleet.run("y", "b", 2)
    assert "MorePods" not in kinds(why(fleet, Ask("w", whole(4))))
    found = why(fleet, Ask("w", whole(4), divisible=True))
    assert "set gpusPerPod to 2: 2 pods (leaf leaf-0" in found.changes[-1].text
    # Ranks that cannot be shared out equally over two pods.
    assert "MorePods" not in kinds(why(fleet, Ask("w", whole(4), divisible=True, ranks=1)))


def test_fewer_gpus_name_what_limits_them() -> None:
    fleet = Fleet("a", cards=4)
    found = why(fleet, Ask("w", whole(4, min_bandwidth_gbps=2000), divisible=True))
    assert found.refusal.code == "TopologyNotMet"
    assert [change.text for change in found.changes] == [
        "accept GPUs that are not connected as required (topology.minBandwidthGBps)",
        "ask for 1 GPU instead of 4 (a; no 2 of its 4 free GPUs are connected as required)",
    ]


def test_who_would_be_stopped_is_named() -> None:
    fleet = Fleet("a", cards=4)
    fleet.run("low", "a", 3, priority=0)
    evictable = Evictable(fleet.running, NOW)
    found = why(fleet, Ask("w", whole(4), priority=5), evictable=evictable)
    assert [change.stops for change in found.changes if change.kind == "Evict"] == [("low",)]
    same = why(fleet, Ask("w", whole(4), priority=0), evictable=evictable)
    assert "Evict" not in kinds(same)


def test_a_gang_is_told_the_level_that_binds() -> None:
    fleet = Fleet("ab cd", cards=4)
    fleet.run("x", "a", 1)
    fleet.run("y", "c", 1)
    found = why(fleet, Ask("w", whole(4), pods=2, nearness=TopologyRequest(required="leaf")))
    assert "no single domain of the required level" in found.binding
    assert found.best is not None
    assert (found.best.level, found.best.room, found.best.needed) == ("leaf", 1, 2)
    assert "LowerLevel" in kinds(found)
    assert any(look.level == "leaf" and not look.holding for look in found.looks)
    assert isinstance(
        explain(Place(fleet), Ask("w", whole(4), pods=2, nearness=TopologyRequest(required="spine"))), Plan
    )


def test_roles_are_told_apart() -> None:
    fleet = Fleet("a", cards=4)
    roles = (Role("head", whole(1), 1), Role("worker", whole(4), 1))
    found = why(fleet, Ask("w", whole(1), pods=2, gang=GangRequest(roles)))
    assert set(found.nodes) == {"head", "worker"}


def test_levels_nobody_has_are_said_so() -> None:
    found = why(Fleet("ab", cards=4), Ask("w", whole(4), pods=2, nearness=TopologyRequest(required="row")))
    assert found.refusal.code == "UnknownTopologyLevel"
    assert found.refusal.message.endswith(" Set topology.requiredLevel to one of these.")
    assert found.changes == ()
