"""However a card is cut, used, wished and interrupted: it stays legal, what is in use stays, and it gets there."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders.mig_layouts import layouts
from tests.support.examples import examples
from tests.support.machines.mig_card import A30, A100, SOMEBODYS, Bench

from kgwe.model.gpu import mig
from kgwe.model.gpu.mig import Phase
from kgwe.sharing.mig import attempt, lifecycle
from kgwe.sharing.mig.attempt import Limits
from kgwe.sharing.mig.lifecycle import DesiredLayout, Life, Mode

GEOMETRIES = (A30, A100, mig.GEOMETRIES["RTX-PRO-6000"])
MOST_STEPS = 40


@st.composite
def wishes(draw: st.DrawFn, geometry: mig.Geometry) -> DesiredLayout:
    return (
        DesiredLayout(is_enabled=True, layout=draw(layouts(geometry)))
        if draw(st.booleans())
        else DesiredLayout(is_enabled=False)
    )


@st.composite
def benches(draw: st.DrawFn) -> Bench:
    geometry = draw(st.sampled_from(GEOMETRIES))
    mode = draw(st.sampled_from(Mode))
    layout = draw(layouts(geometry)) if mode is Mode.ON else ()
    alive = [life for life in Life if life is not Life.ABSENT]
    return Bench(
        geometry,
        mode,
        {place: draw(st.sampled_from(alive)) for place in layout},
        is_occupied=mode is not Mode.ON and draw(st.booleans()),
        needs_reset=draw(st.booleans()) or mode in (Mode.ENABLING, Mode.DISABLING),
    )


def is_as(bench: Bench, wish: DesiredLayout) -> bool:
    mode = Mode.ON if wish.is_enabled else Mode.OFF
    return bench.mode is mode and tuple(sorted(bench.lives, key=lambda place: place.start)) == wish.layout


@examples(150)
@given(st.data(), benches())
def test_steps_end_and_a_kill_at_any_of_them_changes_nothing(data: st.DataObject, bench: Bench) -> None:
    """`Bench.do` holds that every state is legal and that nothing in use is touched."""
    wish = data.draw(wishes(bench.geometry))
    kills = data.draw(st.sets(st.integers(0, MOST_STEPS // 2), max_size=8))
    for number in range(MOST_STEPS):
        left = lifecycle.plan_steps(bench.geometry, bench.card(), wish)
        if not left.steps:
            break
        bench.do(left.steps[0], dies=number in kills)
    else:
        raise AssertionError(bench.log)
    if left.is_done:
        assert is_as(bench, wish)
    else:
        assert bench.is_occupied or any(life in SOMEBODYS for life in bench.lives.values()), left.waits
    # When everybody has ended, it gets there.
    bench.is_occupied = False
    bench.lives = {place: Life.FREE if life in SOMEBODYS else life for place, life in bench.lives.items()}
    for _ in range(MOST_STEPS):
        left = lifecycle.plan_steps(bench.geometry, bench.card(), wish)
        if left.is_done:
            break
        bench.do(left.steps[0])
    assert is_as(bench, wish)


@examples(150)
@given(st.data(), benches())
def test_all_steps_of_a_plan_can_be_done_in_its_order(data: st.DataObject, bench: Bench) -> None:
    wish = data.draw(wishes(bench.geometry))
    bench.needs_reset = bench.mode in (Mode.ENABLING, Mode.DISABLING)
    for step in lifecycle.plan_steps(bench.geometry, bench.card(), wish).steps:
        bench.do(step)


@examples(150)
@given(st.data(), benches())
def test_with_failures_it_rests_in_a_legal_layout_and_gets_there_later(data: st.DataObject, bench: Bench) -> None:
    wish, limits = data.draw(wishes(bench.geometry)), Limits(timeout_s=30, max_failures=2, backoff_s=100)
    used = {place for place, life in bench.lives.items() if life in SOMEBODYS}
    running, now, failing = attempt.start_attempt(bench.card(), wish, 0.0), 0.0, True
    for _ in range(10 * MOST_STEPS):
        now += data.draw(st.sampled_from((0.1, 7.0)))
        decision = attempt.decide_step(bench.geometry, running, bench.card(), now, limits)
        running = decision.attempt
        if decision.step is None:
            break
        if failing and data.draw(st.integers(0, 2)) == 0:
            running = attempt.record_failure(
                running, decision.step, "broken", now, limits, is_final=data.draw(st.booleans())
            )
        else:
            bench.do(decision.step)
            running = attempt.record_success(running)
    else:
        raise AssertionError(bench.log)
    assert used <= set(bench.lives)
    if decision.phase == Phase.ROLLED_BACK:
        assert not any(life is Life.HALFWAY for life in bench.lives.values())
    if decision.phase in (Phase.FAILED, Phase.ROLLED_BACK):
        bench.is_occupied = False
        bench.lives = {place: Life.FREE if life in SOMEBODYS else life for place, life in bench.lives.items()}
        now += 16 * limits.backoff_s
        for _ in range(MOST_STEPS):
            decision = attempt.decide_step(bench.geometry, running, bench.card(), now, limits)
            running = decision.attempt
            if decision.step is None:
                break
            bench.do(decision.step)
        assert decision.phase == ""
        assert is_as(bench, wish)
