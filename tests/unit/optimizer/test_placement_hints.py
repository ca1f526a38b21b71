"""Hints over the live fleet: interference on shared GPUs and the history of network domains."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.builders import optimizer_pods
from tests.support.machines.reference import pcie_pairs

from kgwe.apps.optimizer.placement_hints import PlacementHints
from kgwe.apps.optimizer.waste.needs import NO_HISTORY, UsageHistory
from kgwe.forecast.domains import NEUTRAL, DomainHistory
from kgwe.model.network import domains
from kgwe.model.usage.description import WorkloadDescription
from kgwe.model.usage.history import UsagePeak
from kgwe.placement.fleet.node import Node, Shape
from kgwe.placement.fleet.snapshot import Grant
from kgwe.placement.live.fleet import LiveFleet

SHAPE = Shape(pcie_pairs(4), "NVIDIA-L40S", 46_068, "Ada")
NEW = WorkloadDescription("ml", "new", owner_kind="Job", owner_name="new", image="new:1", milli_gpus=500)
NEW_KEY = NEW.make_fingerprint().key
RESIDENT = optimizer_pods.read("resident-0", owner="resident")


def use(activity: float) -> UsageHistory:
    peak = UsagePeak("f", 0, 60, 0, 1000.0, 46_068.0, activity_mean=activity, activity_p95=activity, power_mean_w=100.0)
    return UsageHistory((peak,))


class Fleet(LiveFleet):
    """Two nodes on two leaves; the pod `resident-0` has half of a GPU of n0."""

    def __init__(self) -> None:
        super().__init__()
        nodes = [Node(f"n{number}", SHAPE, 64_000, 2**40) for number in range(2)]
        places = [domains.Place(each.name, (f"leaf-{each.name}",), gb_per_s=50.0) for each in nodes]
        self.set_nodes(nodes, domains.build_tree(places, ("leaf",)))
        self.held = Grant(0, share=(0, 500, 23_000))
        self.snapshot.commit(self.held)

    def grants(self, key: str) -> tuple[Grant, ...]:
        return (self.held,) if key == RESIDENT.uid else ()


def find(workload: WorkloadDescription, **known: Any) -> dict[str, float]:
    fleet = Fleet()
    hints = PlacementHints(lambda: fleet, list_pods=lambda: [RESIDENT], **known).find(workload, [])
    return {each.node: each.points for each in hints}


def histories(own: UsageHistory, resident: UsageHistory) -> Any:
    known = {NEW_KEY: own, RESIDENT.fingerprint.key: resident}
    return lambda key: known.get(key, NO_HISTORY)


def test_a_gpu_with_a_busy_resident_costs_points():
    busy = find(NEW, histories=histories(use(0.9), use(0.9)))
    calm = find(NEW, histories=histories(use(0.9), use(0.1)))
    assert set(busy) == {"n0"}
    assert busy["n0"] < calm.get("n0", 0.0) <= 0
    assert busy["n0"] >= -10


@pytest.mark.parametrize(("own", "resident"), [(NO_HISTORY, use(0.9)), (use(0.9), NO_HISTORY)])
def test_without_history_nothing_is_said_about_sharing(own, resident):
    assert find(NEW, histories=histories(own, resident)) == {}


def test_a_whole_gpu_is_not_disturbed():
    whole = WorkloadDescription("ml", "new", owner_kind="Job", owner_name="new", image="new:1", milli_gpus=1000)
    assert find(whole, histories=lambda _: use(0.9)) == {}


def test_a_domain_in_which_runs_fail_or_are_slow_costs_points():
    rated = {"leaf-n1": DomainHistory(0.5, 0.5, 1.0, 20.0, ("half of the runs fail",)), "leaf-n0": NEUTRAL}
    assert find(NEW, domains=lambda: rated) == {"n1": pytest.approx(-5.0)}
