"""A planning pass waits for gangs whose pods are being created, and not for long."""

from __future__ import annotations

from kgwe.apps.scheduler.planning.gather_window import GatherWindow


class Bed:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.grown_s: float | None = None
        self.window = GatherWindow(lambda: self.grown_s, quiet_s=0.25, limit_s=2.0, clock=lambda: self.now_s)


def test_without_a_gang_that_needs_several_leaves_nothing_is_waited_for():
    bed = Bed()
    bed.grown_s = bed.now_s
    assert not bed.window.is_open
    assert bed.window.remaining_s() == 0


def test_a_gang_that_comes_alone_is_planned_at_once():
    bed = Bed()
    bed.window.open()
    assert bed.window.remaining_s() == 0


def test_the_pass_waits_until_no_pod_has_come_for_the_quiet_time():
    bed = Bed()
    bed.window.open()
    bed.grown_s = bed.now_s
    assert bed.window.remaining_s() == 0.25
    bed.now_s += 0.125
    assert bed.window.remaining_s() == 0.125
    bed.grown_s = bed.now_s
    assert bed.window.remaining_s() == 0.25
    bed.now_s += 0.5
    assert bed.window.remaining_s() == 0


def test_the_pass_waits_no_longer_than_the_limit_however_many_come():
    bed = Bed()
    bed.window.open()
    bed.now_s = bed.grown_s = 101.875
    bed.window.open()
    assert bed.window.remaining_s() == 0.125
    bed.now_s = bed.grown_s = 102.0
    assert bed.window.remaining_s() == 0


def test_the_pass_runs_as_soon_as_every_gang_is_complete():
    bed = Bed()
    bed.window.open()
    bed.grown_s = bed.now_s
    assert bed.window.remaining_s() > 0
    bed.grown_s = None
    assert bed.window.remaining_s() == 0


def test_each_pass_closes_the_window():
    bed = Bed()
    bed.window.open()
    bed.window.close()
    bed.grown_s = bed.now_s
    assert bed.window.remaining_s() == 0
