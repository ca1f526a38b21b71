"""Cases of shared cards that other exporters get wrong."""

import pytest

from kgwe import errors
from kgwe.model.gpu.driver_data import Process
from kgwe.model.telemetry import attribution
from kgwe.model.telemetry.attribution import WHOLE, Load, TimeShares


def percent(parts: int) -> float:
    return parts * 100 / WHOLE


def test_four_pods_on_a_card_at_99_percent_have_a_quarter_each_not_99_each():
    """What dcgm-exporter showed of time-sliced cards: the device's figure, once per pod."""
    shares = attribution.split_time(0.99, [Load(f"pod-{i}", util=0.99) for i in range(4)])
    assert [percent(part) for _, part in shares.pods] == [24.75] * 4
    assert percent(shares.idle) == 1.0
    assert not shares.is_estimate


def test_four_pods_that_hold_a_quarter_each_hold_the_card():
    """HAMi's 4 x 25 %, which OpenCost prices as four cards."""
    shares = attribution.split_by_shares({f"pod-{i}": 25 for i in range(4)}, of=100)
    assert [percent(part) for _, part in shares.pods] == [25.0] * 4
    assert shares.idle == 0


def test_three_thirds_are_still_one_card():
    shares = attribution.split_by_shares({"a": 1, "b": 1, "c": 1}, of=3)
    assert sum(part for _, part in shares.pods) == WHOLE
    assert [part for _, part in shares.pods] == [333334, 333333, 333333]


def test_busy_time_that_no_process_accounts_for_is_shown_as_nobodys():
    shares = attribution.split_time(0.9, [Load("a", util=0.3)])
    assert shares == TimeShares((("a", 300_000),), other=600_000, idle=100_000)


def test_a_pod_that_has_the_card_to_itself_did_all_that_was_done():
    shares = attribution.split_time(0.9, [Load("a", util=0.3)], holder="a")
    assert shares == TimeShares((("a", 900_000),), idle=100_000)


def test_a_process_of_the_host_is_not_the_holders():
    shares = attribution.split_time(0.9, [Load("a", util=0.3), Load("", util=0.1)], holder="a")
    assert shares == TimeShares((("a", 800_000),), other=100_000, idle=100_000)


def test_what_was_not_measured_is_unknown_and_not_idle():
    assert attribution.split_time(None, []) == attribution.UNKNOWN
    assert attribution.split_time(None, [Load("a")]) == TimeShares((("a", 0),), unknown=WHOLE)
    assert attribution.split_time(None, [Load("a", 0.4), Load("b")]) == TimeShares(
        (("a", 400_000), ("b", 0)), unknown=600_000
    )


def test_measured_processes_alone_are_the_card_when_every_one_was_measured():
    assert attribution.split_time(None, [Load("a", 0.4)]) == TimeShares((("a", 400_000),), idle=600_000)


def test_processes_without_a_figure_share_the_rest_by_memory_and_that_is_an_estimate():
    shares = attribution.split_time(1.0, [Load("a", 0.4), Load("b", None, 3000), Load("c", None, 1000)])
    assert dict(shares.pods) == {"a": 400_000, "b": 450_000, "c": 150_000}
    assert shares.is_estimate
    assert not attribution.split_time(1.0, [Load("a", 0.4), Load("b", None, 3000)]).is_estimate


@pytest.mark.parametrize("own", [None, 0.0])
def test_clients_of_an_mps_server_are_given_what_the_server_did(own):
    processes = [Process(1, 30, 0.8), Process(11, 3000, own), Process(12, 1000, own)]
    told = attribution.group_loads(processes, {11: "a", 12: "b"}, {1: [11, 12]})
    shares = attribution.split_time(0.8, told)
    assert dict(shares.pods) == {"a": 600_000, "b": 200_000}
    assert (shares.other, shares.is_estimate) == (0, True)


def test_clients_with_figures_of_their_own_keep_them():
    processes = [Process(1, 30, 0.0), Process(11, 3000, 0.1), Process(12, 1000, 0.5)]
    shares = attribution.split_time(0.6, attribution.group_loads(processes, {11: "a", 12: "b"}, {1: [11, 12]}))
    assert dict(shares.pods) == {"a": 100_000, "b": 500_000}
    assert not shares.is_estimate


def test_a_pid_that_is_gone_or_not_a_pods_is_shown_as_not_attributed():
    told = attribution.group_loads([Process(7, 500, 0.5), Process(8, 500, 0.25)], {8: "a"})
    assert attribution.split_time(0.75, told) == TimeShares((("a", 250_000),), other=500_000, idle=250_000)
    memory = attribution.split_memory(2000, 1100, told)
    assert memory == attribution.Memory((("a", 500),), other=600, free=900)


def test_a_cut_card_is_its_instances_by_their_weight_and_the_uncut_rest():
    half = attribution.split_time(1.0, [], holder="a")
    quarter = attribution.UNKNOWN
    card = attribution.combine_instances([(4, half), (2, quarter)], whole=8)
    assert card == TimeShares((("a", 500_000),), idle=250_000, unknown=250_000)
    with pytest.raises(errors.InvariantBroken):
        attribution.combine_instances([(4, half), (5, quarter)], whole=8)


def test_memory_that_processes_share_is_not_counted_twice():
    memory = attribution.split_memory(1000, 900, [Load("a", memory_mib=900), Load("b", memory_mib=900)])
    assert memory == attribution.Memory((("a", 500), ("b", 500)), other=0, free=0)
    assert attribution.split_memory(1000, None, [Load("a", memory_mib=900)]) is None


def test_shares_that_do_not_add_up_cannot_be_made():
    with pytest.raises(errors.InvariantBroken):
        TimeShares((("a", 1),))
    with pytest.raises(errors.InvariantBroken):
        TimeShares((("a", -1),), idle=WHOLE + 1)
