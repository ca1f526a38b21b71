"""The instruments of a node: one row per card or slice, counters that only grow, labels of the pod on it."""

from __future__ import annotations

from typing import Any

import pytest

from kgwe.hardware.dcgm import metrics
from kgwe.local.fleet import device_assignment, gpunodes, models
from kgwe.local.fleet.meter import NodeMeter
from kgwe.model.simfleet import inventory, usage

NODES = {node.pool.name: node for node in inventory.expand_fleet(models.load("mixed"), 64)}
FIELDS = list(metrics.Field)
T0 = 1_800_000_000.0


def meter(pool: str, *broken: gpunodes.CardFault) -> NodeMeter:
    return NodeMeter(gpunodes.gpu_node(NODES[pool], "uid", broken), T0)


def holder(profile: str = "constant(util=0.8, mem=0.5, noise=0)", pod: str = "pod") -> device_assignment.Holder:
    return device_assignment.Holder(metrics.Owner("team", pod, "main"), usage.parse_profile(profile), T0 - 1000, 1)


def column(rows: list[metrics.Row], field: metrics.Field) -> list[Any]:
    return [values[FIELDS.index(field)] for _, values in rows]


def test_a_whole_node_has_a_row_per_card_and_a_cut_one_a_row_per_slice():
    assert len(meter("h100").rows(T0)) == 8
    assert len(meter("a100-mig").rows(T0)) == 24


def test_a_used_card_carries_its_pod_and_its_use():
    node = meter("h100")
    node.set_holders({(2, None): holder()})
    rows = node.rows(T0)
    assert column(rows, metrics.Field.GPU_UTIL) == [0, 0, 80, 0, 0, 0, 0, 0]
    assert ['pod="pod"' in labels for labels, _ in rows].index(True) == 2
    node.set_holders({})
    assert column(node.rows(T0), metrics.Field.GPU_UTIL) == [0] * 8
    assert not any("pod=" in labels for labels, _ in node.rows(T0))


def test_a_busy_slice_shows_in_its_engine_and_in_the_power_of_its_card():
    node = meter("a100-mig")
    idle_w = column(node.rows(T0), metrics.Field.POWER_USAGE)
    node.set_holders({(0, 5): holder()})
    rows = node.rows(T0)
    assert column(rows, metrics.Field.GPU_UTIL) == [0] * 24
    assert column(rows, metrics.Field.GR_ENGINE_ACTIVE)[:3] == [0, 0.8, 0]
    busy_w = column(rows, metrics.Field.POWER_USAGE)
    assert busy_w[0] == busy_w[1] == busy_w[2]
    assert busy_w[0] > idle_w[0]
    assert busy_w[3:] == idle_w[3:]


def test_energy_is_power_times_time_and_only_grows():
    node = meter("h100")
    node.set_holders({(0, None): holder()})
    first = column(node.rows(T0 + 10), metrics.Field.ENERGY)
    later = column(node.rows(T0 + 110), metrics.Field.ENERGY)
    power_w = column(node.rows(T0 + 110), metrics.Field.POWER_USAGE)
    for before, after, watts in zip(first, later, power_w, strict=True):
        assert after - before == pytest.approx(watts * 100 * 1000, rel=0.01)
    again = column(node.rows(T0 + 100), metrics.Field.ENERGY)  # a clock that was set back
    assert all(after >= before for before, after in zip(later, again, strict=True))


def test_counters_survive_a_change_of_the_node():
    node = meter("h100")
    node.rows(T0)
    before = column(node.rows(T0 + 100), metrics.Field.ENERGY)
    node.update(gpunodes.gpu_node(NODES["h100"], "uid", [gpunodes.Xid(0, 79, "2026-11-15T10:00:00Z")]), T0 + 100)
    assert column(node.rows(T0 + 100), metrics.Field.ENERGY) == before
    assert column(node.rows(T0 + 100), metrics.Field.XID_ERRORS) == [79, 0, 0, 0, 0, 0, 0, 0]


def test_a_card_with_links_down_moves_less_over_nvlink():
    whole, hurt = meter("h100"), meter("h100", gpunodes.LinkDown(0, 9))
    for node in (whole, hurt):
        node.set_holders({(0, None): holder()})
        node.rows(T0)
    moved = [column(node.rows(T0 + 100), metrics.Field.NVLINK)[0] for node in (whole, hurt)]
    assert moved[1] == pytest.approx(moved[0] / 2)


def test_a_card_without_nvlink_has_no_figure_for_it():
    assert column(meter("l40s").rows(T0), metrics.Field.NVLINK) == [None] * 8


def test_who_share_a_card_have_a_row_each_with_what_the_card_does():
    node = meter("h100")
    idle_w = column(node.rows(T0), metrics.Field.POWER_USAGE)[2]
    node.set_holders({(2, -2): holder("constant(util=0.3, mem=0.2, noise=0)", "b"), (2, -1): holder(pod="a")})
    rows = node.rows(T0)
    assert len(rows) == 9
    ours = [(labels, values) for labels, values in rows if "pod=" in labels]
    assert ['pod="a"' in ours[0][0], 'pod="b"' in ours[1][0]] == [True, True]
    assert column(ours, metrics.Field.GPU_UTIL) == [100, 100]
    assert column(ours, metrics.Field.POWER_USAGE)[0] > idle_w
    node.set_holders({(2, -2): holder(pod="b")})
    assert column(node.rows(T0), metrics.Field.GPU_UTIL) == [0, 0, 80, 0, 0, 0, 0, 0]
    node.set_holders({})
    assert len(node.rows(T0)) == 8
    assert not any("pod=" in labels for labels, _ in node.rows(T0))
