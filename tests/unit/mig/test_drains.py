"""Pods that consent are moved so that a card can be cut: asked, waited for, and given up where that fails."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.fakes.mig_crowd import CONSENT, Crowd

from kgwe.apps.mig.drains import ANNOTATION
from kgwe.kube.translate import mig_layouts

WIDE = "3g.40gb@0 3g.40gb@4"


def test_a_pod_that_consents_is_evicted_and_then_the_card_is_cut() -> None:
    world = Crowd()
    assert world.open == 2
    world.workload("wide", "3g.40gb")
    world.round()
    assert world.evicted == ["small"]
    (card,) = world.asked
    assert card.mig.withheld == ("1g.10gb@6", "2g.20gb@4")
    assert card.drain is not None
    assert (card.drain.waiting, [each.pod for each in card.drain.pods]) == ("workload team/wide", ["team/small"])
    assert world.open == 1, "only what is to be left is kept from others"
    world.agents()
    assert world.cuts()[0] == "3g.40gb@0 2g.20gb@4 1g.10gb@6", "the card stays as it is"
    assert world.round() == [], "it is waited for"
    # It is gone, and its next self is there: it has a spare slice on the other card, not its old one.
    world.end("small")
    world.pod("small-2", "1g.10gb")
    world.round()
    assert world.wishes()[0] == WIDE
    assert not world.asked
    world.settle()
    assert world.cuts() == [WIDE, "3g.40gb@0 2g.20gb@4 1g.10gb@6"]
    assert world.controller.planner.waiting == 0
    assert world.controller.drain_executor.asked == {"accepted": 1, "refused": 0}
    assert [event.reason for event in world.events] == ["Drained"]
    assert world.evicted == ["small"]


def test_whoever_takes_over_in_the_middle_goes_on() -> None:
    world = Crowd()
    world.workload("wide", "3g.40gb")
    world.budgeted.add("small")
    world.round()
    world.budgeted.clear()
    world.start()
    world.round()
    assert world.evicted == ["small"]
    world.start()
    assert world.round() == ["status s"], "in its own words"
    assert world.evicted == ["small"], "asked once"
    world.end("small")
    world.start()
    world.settle()
    assert world.cuts()[0] == WIDE


def test_killed_between_asking_and_evicting_the_next_one_evicts() -> None:
    world = Crowd()
    world.workload("wide", "3g.40gb")
    world.stop_short()
    assert (len(world.asked), world.evicted) == (1, [])
    world.start()
    world.round()
    assert world.evicted == ["small"]


def test_where_a_budget_says_no_nothing_is_cut_and_all_is_in_service_again() -> None:
    world = Crowd()
    world.budgeted.add("small")
    world.workload("wide", "3g.40gb")
    world.round()
    assert (world.asked, world.open) == ([], 2)
    assert world.controller.drain_executor.asked == {"accepted": 0, "refused": 1}
    assert [event.reason for event in world.events] == ["DrainRefused"]
    assert world.round() == [], "and it is not asked again at once"
    world.agents()
    assert world.cuts()[0] == "3g.40gb@0 2g.20gb@4 1g.10gb@6"
    world.budgeted.clear()
    world.now += 300
    world.round()
    assert world.evicted == ["small"]


@pytest.mark.parametrize(
    ("what", "small"),
    [
        ("does not consent", {"annotations": {}}),
        ("says something else", {"annotations": {ANNOTATION: "no"}}),
        ("has nobody who would make it anew", {"owner": ""}),
        ("would come back to its node", {"owner": "DaemonSet"}),
        ("is one of a gang", {"annotations": {**CONSENT, "kgwe.nvidia.io/seat": "x/1"}}),
        ("could go nowhere else", {"nodeSelector": {"no": "where"}}),
    ],
)
def test_a_pod_is_left_alone_that(what: str, small: dict[str, Any]) -> None:
    world = Crowd(small=small)
    world.workload("wide", "3g.40gb")
    world.round()
    assert (world.asked, world.evicted) == ([], []), what
    assert world.controller.planner.waiting == 1


def test_a_pod_that_has_hardly_begun_is_left_alone_for_a_while() -> None:
    world = Crowd(drain_min_run_seconds=1000.0)
    world.workload("wide", "3g.40gb")
    world.round()
    assert world.evicted == []
    world.now += 1000
    world.round()
    assert world.evicted == ["small"]


def test_it_can_be_switched_off() -> None:
    world = Crowd(enable_draining=False)
    world.workload("wide", "3g.40gb")
    world.round()
    assert world.evicted == []


def test_nobody_is_asked_where_a_cut_helps() -> None:
    world = Crowd()
    world.end("c")
    world.workload("wide", "3g.40gb")
    world.round()
    assert (world.wishes()[1], world.evicted) == (WIDE, [])


def test_a_workload_consents_for_its_pods_and_they_may_go_where_it_may() -> None:
    world = Crowd()
    world.end("small")
    world.workload("w", "1g.10gb", phase="Running")
    consenting = msgspec.structs.replace(world.workloads["w"].metadata, annotations=CONSENT)
    world.workloads["w"] = msgspec.structs.replace(world.workloads["w"], metadata=consenting)
    pinned: dict[str, Any] = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}
    }
    world.hold("w-pod", "1g.10gb", "0@6", owner="Job", affinity=pinned)
    labelled = msgspec.structs.replace(world.pods["w-pod"].metadata, labels={"kgwe.nvidia.io/workload-uid": "w"})
    world.pods["w-pod"] = msgspec.structs.replace(world.pods["w-pod"], metadata=labelled)
    world.workload("wide", "3g.40gb")
    world.round()
    assert world.evicted == ["w-pod"]


@pytest.mark.parametrize("why", ["who waited is gone", "somebody else has the slice", "it takes too long"])
def test_it_is_given_up_when(why: str) -> None:
    world = Crowd(drain_timeout_seconds=60.0)
    world.workload("wide", "3g.40gb")
    world.round()
    assert len(world.asked) == 1
    if why == "who waited is gone":
        world.workloads.clear()
    elif why == "somebody else has the slice":
        world.end("small")
        world.hold("stranger", "1g.10gb", "0@6")
    else:
        world.now += 61
    world.round()
    assert (world.asked, world.wishes()[0]) == ([], "3g.40gb@0 2g.20gb@4 1g.10gb@6")


def test_one_who_takes_his_consent_back_in_time_stays() -> None:
    world = Crowd()
    world.workload("wide", "3g.40gb")
    world.stop_short()
    assert len(world.asked) == 1
    world.hold("small", "1g.10gb", "0@6")
    world.start()
    world.round()
    assert (world.asked, world.evicted) == ([], [])


def test_what_others_write_into_a_gpunode_evicts_nobody_who_does_not_consent() -> None:
    world = Crowd()
    world.workload("wide", "3g.40gb")
    world.stop_short()
    (card,) = world.asked
    assert card.drain is not None
    forged = msgspec.structs.replace(
        card, drain=msgspec.structs.replace(card.drain, pods=(msgspec.structs.replace(card.drain.pods[0], uid="a"),))
    )
    obj = world.gpu_nodes[world.name]
    cards = tuple(forged if each is card else each for each in obj.spec.cards)
    world._put(msgspec.structs.replace(obj, spec=msgspec.structs.replace(obj.spec, cards=cards)))
    world.strategies.clear()
    world.start()
    world.round()
    assert world.evicted == []


def test_slices_to_be_left_are_offered_to_nobody() -> None:
    world = Crowd()
    world.workload("wide", "3g.40gb")
    world.round()
    obj = world.gpu_nodes[world.name]
    device = obj.status.gpus[0]
    layout = mig_layouts.read_layouts(obj)[device.uuid]
    assert [mig_layouts.is_offered(device, each, layout) for each in device.mig.instances] == [True, False, False]
