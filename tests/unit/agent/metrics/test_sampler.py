"""One sample out of what driver, DCGM, processes and kubelet say."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.builders.samples import A100, card, cut_into, machine, reading, to_card, to_switch

from kgwe.apps.agent.metrics import sampler
from kgwe.apps.agent.metrics.sampler import Sampler, Surroundings
from kgwe.model.gpu.driver_data import Process
from kgwe.model.telemetry import window
from kgwe.model.telemetry.attribution import WHOLE, TimeShares
from kgwe.model.telemetry.sample import Activity, Sample, Series, Traffic

GB = 10**9


def take(*readings, on=None, around=None) -> Sample:
    return Sampler().take(on or machine(*(card(i) for i in range(len(readings)))), readings, 1.0, around)


def test_four_pods_on_one_card_share_it_and_do_not_each_have_all_of_it():
    processes = tuple(Process(100 + i, 1000, 0.99) for i in range(4))
    around = Surroundings(pods={100 + i: f"team/pod-{i}" for i in range(4)})
    told = take(reading(0, util=0.99, processes=processes), around=around).gpus[0]
    assert [part / WHOLE for _, part in told.shares.pods] == [0.2475] * 4
    assert told.shares.idle == WHOLE // 100


def test_a_card_given_to_one_pod_is_that_pods_even_where_its_name_is_not_known():
    around = Surroundings(pods={7: "8d5f1a3c-uid"}, holders={"GPU-0": ["team/a"]})
    told = take(reading(0, util=0.5, processes=(Process(7, 10, 0.3),)), around=around).gpus[0]
    assert told.shares == TimeShares((("team/a", 500_000),), idle=500_000)


def test_a_card_given_to_several_is_split_by_what_their_processes_do():
    around = Surroundings(pods={7: "team/a", 8: "uid-b"}, holders={"GPU-0": ["team/a", "team/b", "team/a"]})
    processes = (Process(7, 10, 0.3), Process(8, 10, 0.1))
    told = take(reading(0, util=0.5, processes=processes), around=around).gpus[0]
    assert told.shares == TimeShares((("team/a", 300_000), ("uid-b", 100_000)), other=100_000, idle=500_000)


def test_clients_of_an_mps_server_have_its_time_by_memory():
    around = Surroundings(pods={7: "t/a", 8: "t/b"}, mps={1: (7, 8)})
    processes = (Process(1, 30, 0.8), Process(7, 300), Process(8, 100))
    told = take(reading(0, util=0.8, processes=processes), around=around).gpus[0]
    assert dict(told.shares.pods) == {"t/a": 600_000, "t/b": 200_000}
    assert told.shares.is_estimate


def test_without_a_driver_figure_the_card_has_that_of_dcgm_and_without_both_none():
    active = Surroundings(activities={("GPU-0", None): Activity(engine=0.25)})
    assert take(reading(0), around=active).gpus[0].util == 0.25
    told = take(reading(0)).gpus[0]
    assert (told.util, told.shares.unknown) == (None, WHOLE)


def test_a_busy_instance_is_not_idle_though_the_driver_reads_nothing_there():
    """dcgm-exporter's GPU_UTIL is 0 on MIG; the instance's engine activity tells."""
    on = machine(card(0, A100, cut=cut_into("3g.40gb@0", "3g.40gb@4")))
    around = Surroundings(
        activities={("GPU-0", 1): Activity(engine=0.9), ("GPU-0", 2): Activity(engine=0.0)},
        holders={"MIG-0-0": ["team/a"]},
    )
    told = take(reading(0, util=0.0, instance_memory_mib=((1, 30_000),)), on=on, around=around).gpus[0]
    assert told.util is None
    assert [each.util for each in told.instances] == [0.9, 0.0]
    assert [each.in_use for each in told.instances] == [True, False]
    assert told.instances[0].shares == TimeShares((("team/a", 900_000),), idle=100_000)
    # Half of the card each: two 3g.40gb leave nothing anyone could use.
    assert told.shares == TimeShares((("team/a", 450_000),), idle=550_000)
    assert told.instances[0].memory is not None
    assert told.instances[0].memory_used_mib == 30_000
    assert told.instances[1].memory_used_mib is None


def test_an_instance_nobody_measures_is_unknown_and_what_is_not_cut_is_idle():
    on = machine(card(0, A100, cut=cut_into("3g.40gb@0")))
    told = take(reading(0), on=on).gpus[0]
    assert told.shares == TimeShares(idle=500_000, unknown=500_000)
    assert take(reading(0), on=machine(card(0, A100, cut=cut_into()))).gpus[0].shares == TimeShares(idle=WHOLE)


def test_a_cut_nobody_knows_is_unknown():
    on = machine(replace(card(0, A100, cut=cut_into("3g.40gb@0")), product="NVIDIA Z9000"))
    assert take(reading(0), on=on).gpus[0].shares.unknown == WHOLE


def test_a_lost_card_is_unknown_and_a_card_without_reading_is_left_out():
    told = take(reading(0, is_lost=True, util=0.5), on=machine(card(0), card(1)))
    assert [each.device.uuid for each in told.gpus] == ["GPU-0"]
    assert told.gpus[0].shares.unknown == WHOLE


def test_memory_of_pods_and_of_nobody_and_free_is_the_card():
    around = Surroundings(pods={7: "t/a"})
    processes = (Process(7, 300, 0.1), Process(9, 50, 0.1))
    told = take(reading(0, util=0.2, memory_used_mib=1000, memory_total_mib=4000, processes=processes), around=around)
    memory = told.gpus[0].memory
    assert memory is not None
    assert (dict(memory.pods), memory.other, memory.free) == ({"t/a": 300}, 700, 3000)


# --- links ----------------------------------------------------------------------------------------------


def counters(*values: int) -> tuple[tuple[int, int], ...]:
    return tuple(enumerate(values))


def test_traffic_comes_from_counters_and_a_reset_makes_it_unknown_once():
    on = machine(card(0, links=to_switch(2)))
    keeps = Sampler()
    first = keeps.take(on, [reading(0, nvlink_tx_bytes=counters(0, 100), nvlink_rx_bytes=counters(0, 0))], 10.0)
    assert first.gpus[0].nvlink == Traffic(None, None)
    later = reading(0, nvlink_tx_bytes=counters(5 * GB, 100 + 5 * GB), nvlink_rx_bytes=counters(0, GB))
    assert keeps.take(on, [later], 15.0).gpus[0].nvlink == Traffic(2 * GB, GB / 5)
    reset = reading(0, nvlink_tx_bytes=counters(1, 100 + 6 * GB), nvlink_rx_bytes=counters(0, GB))
    assert keeps.take(on, [reset], 20.0).gpus[0].nvlink == Traffic(None, 0.0)
    after = reading(0, nvlink_tx_bytes=counters(1 + GB, 100 + 6 * GB), nvlink_rx_bytes=counters(0, GB))
    assert keeps.take(on, [after], 25.0).gpus[0].nvlink == Traffic(GB / 5, 0.0)


def test_a_counter_that_wraps_is_followed():
    on = machine(card(0, links=to_switch(1)))
    keeps = Sampler()
    keeps.take(on, [reading(0, nvlink_tx_bytes=((0, (1 << 64) - GB),))], 0.0)
    told = keeps.take(on, [reading(0, nvlink_tx_bytes=((0, GB),))], 1.0).gpus[0]
    assert told.nvlink.tx == 2 * GB


def test_traffic_of_a_pair_is_known_only_where_links_join_the_two_directly():
    on = machine(card(0, links=to_card(1, range(2))), card(1, links=to_card(0, range(2))))
    keeps = Sampler()
    keeps.take(on, [reading(0, nvlink_tx_bytes=counters(0, 0))], 0.0)
    told = keeps.take(on, [reading(0, nvlink_tx_bytes=counters(GB, GB))], 1.0).gpus[0]
    assert told.peers["GPU-1"].tx == 2 * GB
    switched = machine(card(0, links=to_switch(2)), card(1, links=to_switch(2)))
    assert Sampler().take(switched, [reading(0, nvlink_tx_bytes=counters(0, 0))], 0.0).gpus[0].peers == {}


def test_capacity_of_pairs():
    switched = machine(card(0, links=to_switch(18)), card(1, links=to_switch(18, up=16)), card(2))
    # 16 links at 25 GB/s in one direction.
    assert sampler.pair_gbit_per_s(switched) == {("GPU-0", "GPU-1"): pytest.approx(3200)}
    mesh = machine(card(0, links=to_card(1, range(2))), card(1, links=to_card(0, range(2))), card(2))
    assert sampler.pair_gbit_per_s(mesh) == {("GPU-0", "GPU-1"): pytest.approx(400)}


# --- windows --------------------------------------------------------------------------------------------


def test_a_window_of_samples_tells_of_devices_and_pods_and_of_gaps():
    around = Surroundings(pods={7: "t/a"})
    kept: window.Window[Series] = window.Window()
    for util in (0.2, None, 0.4):
        processes = (Process(7, 300, util),)
        kept.tick(sampler.list_series(take(reading(0, util=util, power_w=300.0, processes=processes), around=around)))
    told = kept.close()
    assert (told[Series("GPU-0", "util")].samples, told[Series("GPU-0", "util")].gaps) == (2, 1)
    assert told[Series("GPU-0", "util")].mean == pytest.approx(0.3)
    assert told[Series("GPU-0", "share", "t/a")].maximum == 0.4
    assert told[Series("GPU-0", "share", "t/a")].gaps == 1
    assert told[Series("GPU-0", "power_w")].mean == 300
    assert told[Series("GPU-0", "tensor")] == window.Aggregate(0, 3)
