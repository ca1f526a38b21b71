"""What a device plugin offers of a node."""

from __future__ import annotations

from dataclasses import replace

from tests.support.fakes.kubelet import machine

from kgwe.model.devices import advertised

GPU, SHARED, SLICE = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-3g.40gb"
CUT = {1: (("3g.40gb", 0, 4), ("3g.40gb", 4, 4))}


def ids(offers, resource, *, healthy=True):
    return [each.id for each in offers[resource] if each.is_healthy == healthy]


def test_cards_are_whole_unless_they_are_shared():
    assert ids(advertised.list_advertised(machine(2)), GPU) == ["GPU-0", "GPU-1"]
    assert SHARED not in advertised.list_advertised(machine(2))


def test_a_shared_card_is_so_many_pieces_and_not_whole():
    found = advertised.list_advertised(machine(2), pieces=3)
    assert ids(found, SHARED) == ["GPU-0::0", "GPU-0::1", "GPU-0::2", "GPU-1::0", "GPU-1::1", "GPU-1::2"]
    assert found[GPU] == (), "listed, so that the kubelet forgets those it knew"
    assert {(each.gpu, each.uuid, each.minor, each.numa) for each in found[SHARED]} == {
        (0, "GPU-0", 0, 0),
        (1, "GPU-1", 1, 1),
    }


def test_more_than_ten_pieces_are_in_order():
    found = advertised.list_advertised(machine(1), pieces=12)[SHARED]
    assert [each.piece for each in found] == list(range(12))


def test_a_cut_card_offers_slices_and_no_pieces():
    found = advertised.list_advertised(machine(2, cut=CUT), pieces=2)
    assert ids(found, SHARED) == ["GPU-0::0", "GPU-0::1"]
    assert ids(found, SLICE) == ["MIG-1-0", "MIG-1-4"]
    assert found[GPU] == ()


def test_pieces_are_listed_where_every_card_is_cut():
    assert advertised.list_advertised(machine(1, cut={0: (("3g.40gb", 0, 4),)}), pieces=2)[SHARED] == ()


def test_a_sick_card_takes_all_its_pieces_with_it():
    found = advertised.list_advertised(machine(2), out_of_service=("GPU-0",), pieces=2)
    assert ids(found, SHARED) == ["GPU-1::0", "GPU-1::1"]
    assert ids(found, SHARED, healthy=False) == ["GPU-0::0", "GPU-0::1"]


def test_so_does_one_that_is_lost_or_about_to_be_cut():
    built = machine(3)
    lost, pending, fine = built.devices
    pending = replace(pending, mig=replace(pending.mig, is_pending=True))
    built = replace(built, devices=(replace(lost, is_lost=True), pending, fine))
    assert ids(advertised.list_advertised(built, pieces=2), SHARED) == ["GPU-2::0", "GPU-2::1"]


def test_pieces_under_another_name():
    assert list(advertised.list_advertised(machine(1), prefix="kgwe.example", pieces=2)) == [
        "kgwe.example/gpu",
        "kgwe.example/gpu.shared",
    ]
