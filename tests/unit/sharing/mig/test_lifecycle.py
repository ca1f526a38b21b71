"""Steps to a layout, one card at a time."""

from __future__ import annotations

import pytest
from tests.support.machines.mig_card import A30, A100, SOMEBODYS, Bench, places, wish

from kgwe import errors
from kgwe.model.gpu.driver_data import Device, Instance, MigState
from kgwe.model.gpu.mig import Phase
from kgwe.model.gpu.topology import Slot
from kgwe.sharing.mig import attempt, lifecycle
from kgwe.sharing.mig.attempt import Direction, Limits
from kgwe.sharing.mig.lifecycle import Event, Life, Mode, Step

LIMITS = Limits(timeout_s=60, max_failures=3, backoff_s=300)


def finish(bench: Bench, goal: lifecycle.DesiredLayout) -> lifecycle.Plan:
    for _ in range(40):
        left = lifecycle.plan_steps(bench.geometry, bench.card(), goal)
        if not left.steps:
            return left
        bench.do(left.steps[0])
    raise AssertionError(f"no end: {bench.log}")


def test_a_whole_card_is_cut() -> None:
    bench = Bench(A100, mode=Mode.OFF)
    assert finish(bench, wish(A100, "3g.40gb@0 2g.20gb@4 1g.10gb@6")).is_done
    assert bench.log == ["enable MIG mode", "create 3g.40gb@0", "create 2g.20gb@4", "create 1g.10gb@6"]


def test_where_the_mode_needs_a_reset_the_card_is_reset_once_it_shows() -> None:
    bench = Bench(A100, mode=Mode.OFF, needs_reset=True)
    assert finish(bench, wish(A100, "7g.80gb@0")).is_done
    assert bench.log == ["enable MIG mode", "reset the GPU", "create 7g.80gb@0"]
    assert finish(bench, wish(A100, None)).is_done
    assert bench.mode is Mode.OFF
    assert bench.log[3:] == ["destroy 7g.80gb@0", "disable MIG mode", "reset the GPU"]


def test_neighbours_in_use_are_not_touched() -> None:
    bench = Bench(A100)
    bench.cut("3g.40gb@0", Life.IN_USE)
    bench.cut("1g.10gb@4 1g.10gb@5")
    assert finish(bench, wish(A100, "3g.40gb@0 3g.40gb@4")).is_done
    assert bench.log == ["destroy 1g.10gb@4", "destroy 1g.10gb@5", "create 3g.40gb@4"]


@pytest.mark.parametrize("life", SOMEBODYS)
def test_what_somebody_has_is_waited_for(life: Life) -> None:
    bench = Bench(A100)
    bench.cut("1g.10gb@5", life)
    left = finish(bench, wish(A100, "3g.40gb@0 3g.40gb@4"))
    assert bench.names() == ["3g.40gb@0", "1g.10gb@5"], "what does not stand in the way is done"
    assert left.waits == (f"1g.10gb@5 is {life}", "3g.40gb@4 waits: 3g.40gb@4 overlaps 1g.10gb@5")
    bench.cut("1g.10gb@5", Life.FREE)
    assert finish(bench, wish(A100, "3g.40gb@0 3g.40gb@4")).is_done


def test_a_whole_card_in_use_is_waited_for() -> None:
    bench = Bench(A100, mode=Mode.OFF, is_occupied=True)
    left = lifecycle.plan_steps(A100, bench.card(), wish(A100, "7g.80gb@0"))
    assert left == lifecycle.Plan(waits=("the GPU is in use, so it cannot enable MIG mode now",))


def test_halfway_instances_are_completed_or_removed() -> None:
    bench = Bench(A100)
    bench.cut("3g.40gb@0 1g.10gb@4", Life.HALFWAY)
    assert finish(bench, wish(A100, "3g.40gb@0")).is_done
    assert bench.log == ["destroy 1g.10gb@4", "create 3g.40gb@0"]


def test_a_mode_on_its_way_to_the_wrong_side_is_called_back() -> None:
    for mode, names, said in ((Mode.ENABLING, None, "disable"), (Mode.DISABLING, "", "enable")):
        bench = Bench(A100, mode=mode, is_occupied=True, needs_reset=True)
        assert finish(bench, wish(A100, names)).is_done
        assert bench.log == [f"{said} MIG mode"]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("3g.40gb@2", "is no place on"),
        ("3g.40gb@0 4g.40gb@0", "overlaps"),
        ("5g.50gb@0", "has no MIG profile"),
        ("1g.10gb+me@0 1g.10gb+me@1", "media engines"),
    ],
)
def test_what_no_card_can_be_is_refused_at_once(names: str, said: str) -> None:
    with pytest.raises(errors.Permanent, match=said):
        wish(A100, names)


def test_instances_need_the_mode() -> None:
    with pytest.raises(errors.Permanent, match="need MIG mode"):
        lifecycle.parse_desired_layout(A100, enabled=False, instances=["7g.80gb@0"])


# --- what is seen ---------------------------------------------------------------------------------------


def device(*instances: Instance, enabled: bool = True, pending: bool = False) -> Device:
    state = MigState(is_capable=True, is_enabled=enabled, is_pending=pending, instances=instances)
    return Device("GPU-0", 0, "A100", 81920, Slot(bus=""), mig=state)


def instance(uuid: str, start: int, *, busy: bool | None = False) -> Instance:
    return Instance(uuid, 7 + start, "1g.10gb", start, 1, 9856, is_busy=busy)


def test_lives_follow_from_who_has_what_and_what_runs() -> None:
    seen = device(
        instance("MIG-0", 0),
        instance("MIG-1", 1, busy=True),
        instance("MIG-2", 2),
        instance("MIG-3", 3, busy=True),
        instance("", 4),
    )
    card = lifecycle.observe_gpu(A100, seen, frozenset({"MIG-2", "MIG-3"}))
    lives = [each.life for each in card.slices]
    assert lives == [Life.FREE, Life.RELEASED, Life.ALLOCATED, Life.IN_USE, Life.HALFWAY]
    assert [name for each in card.slices if (name := each.name) and each.may_go] == ["1g.10gb@0", "1g.10gb@4"]
    assert not card.is_occupied


def test_where_nobody_can_tell_everything_is_somebodys() -> None:
    card = lifecycle.observe_gpu(A100, device(instance("MIG-0", 0)), None)
    assert [each.life for each in card.slices] == [Life.ALLOCATED]
    assert card.is_occupied


@pytest.mark.parametrize(
    ("enabled", "pending", "mode"),
    [
        (True, False, Mode.ON),
        (True, True, Mode.DISABLING),
        (False, False, Mode.OFF),
        (False, True, Mode.ENABLING),
    ],
)
def test_modes(enabled: bool, pending: bool, mode: Mode) -> None:  # noqa: FBT001 - parametrized
    assert lifecycle.observe_gpu(A100, device(enabled=enabled, pending=pending), frozenset()).mode is mode


def test_a_profile_we_do_not_know_is_still_in_the_way() -> None:
    strange = Instance("MIG-9", 1, "2g.99gb+x", 0, 4, 1, is_busy=True)
    card = lifecycle.observe_gpu(A100, device(strange), frozenset({"MIG-9"}))
    left = lifecycle.plan_steps(A100, card, wish(A100, "4g.40gb@0"))
    assert not left.steps
    assert len(left.waits) == 2


# --- time and failure -----------------------------------------------------------------------------------


def test_a_cut_that_fails_is_taken_back() -> None:
    bench = Bench(A100)
    bench.cut("3g.40gb@0", Life.IN_USE)
    bench.cut("2g.20gb@4 1g.10gb@6")
    running = attempt.start_attempt(bench.card(), wish(A100, "3g.40gb@0 3g.40gb@4"), 0.0)
    broken = Step(Event.CREATE, places(A100, "3g.40gb@4")[0])
    for now in range(20):
        decision = attempt.decide_step(A100, running, bench.card(), float(now), LIMITS)
        running = decision.attempt
        if decision.step is None:
            break
        if decision.step == broken:
            running = attempt.record_failure(running, decision.step, "no room", now, LIMITS, is_final=False)
        else:
            bench.do(decision.step)
            running = attempt.record_success(running)
    assert decision.phase == Phase.ROLLED_BACK
    assert decision.message == "create 3g.40gb@4: no room"
    assert bench.names() == ["3g.40gb@0", "2g.20gb@4", "1g.10gb@6"]
    assert attempt.decide_step(A100, running, bench.card(), 100.0, LIMITS).step is None, "it rests"
    again = attempt.decide_step(A100, running, bench.card(), 400.0, LIMITS)
    assert (again.step, again.phase) == (Step(Event.DESTROY, places(A100, "2g.20gb@4")[0], 5), Phase.CUTTING)


def test_a_cut_that_takes_too_long_is_taken_back_and_waiting_does_not_count() -> None:
    bench = Bench(A100)
    bench.cut("1g.10gb@0", Life.IN_USE)
    running = attempt.start_attempt(bench.card(), wish(A100, "7g.80gb@0"), 0.0)
    waiting = attempt.decide_step(A100, running, bench.card(), 5000.0, LIMITS)
    assert (waiting.phase, waiting.step) == (Phase.WAITING, None)
    bench.cut("1g.10gb@0", Life.FREE)
    going = attempt.decide_step(A100, waiting.attempt, bench.card(), 5001.0, LIMITS)
    assert str(going.step) == "destroy 1g.10gb@0"
    bench.do(going.step or Step(Event.RESET))
    late = attempt.decide_step(A100, going.attempt, bench.card(), 5061.0, LIMITS)
    assert late.attempt.direction is Direction.ROLLBACK
    assert str(late.step) == "create 1g.10gb@0"
    assert "not done within 60 s" in late.message


def test_a_failure_on_the_way_back_is_said_and_what_is_there_stays() -> None:
    bench = Bench(A100, mode=Mode.OFF, needs_reset=True)
    running = attempt.start_attempt(bench.card(), wish(A100, "7g.80gb@0"), 0.0)
    bench.do(Step(Event.ENABLE))
    reset = Step(Event.RESET)
    running = attempt.record_failure(running, reset, "refused", 1.0, LIMITS, is_final=True)
    back = attempt.decide_step(A100, running, bench.card(), 1.0, LIMITS)
    assert str(back.step) == "disable MIG mode"
    running = attempt.record_failure(back.attempt, back.step or reset, "refused, too", 2.0, LIMITS, is_final=True)
    rest = attempt.decide_step(A100, running, bench.card(), 3.0, LIMITS)
    assert (rest.phase, rest.step) == (Phase.FAILED, None)
    assert rest.message == "reset the GPU: refused; could not be taken back: disable MIG mode: refused, too"


def test_what_came_into_use_meanwhile_stays_on_the_way_back() -> None:
    bench = Bench(A30)
    bench.cut("1g.6gb@0", Life.IN_USE)
    before = lifecycle.DesiredLayout(is_enabled=True, layout=places(A30, "2g.12gb@0 1g.6gb@3"))
    assert lifecycle.choose_fallback(A30, bench.card(), before).layout == places(A30, "1g.6gb@0 1g.6gb@3")
    assert lifecycle.choose_fallback(A30, bench.card(), lifecycle.DesiredLayout(is_enabled=False)).layout == places(
        A30, "1g.6gb@0"
    )


def test_a_card_that_is_there_is_looked_at_afresh_when_something_breaks_it() -> None:
    bench = Bench(A100)
    bench.cut("7g.80gb@0")
    running = attempt.start_attempt(bench.card(), wish(A100, "7g.80gb@0"), 0.0)
    there = attempt.decide_step(A100, running, bench.card(), 1000.0, LIMITS)
    assert (there.step, there.phase) == (None, "")
    bench.lives.clear()
    assert str(attempt.decide_step(A100, there.attempt, bench.card(), 1001.0, LIMITS).step) == "create 7g.80gb@0"
