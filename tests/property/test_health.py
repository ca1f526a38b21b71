"""What holds for the health of any card, whatever happens to it and whatever the clock does."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from kgwe.model.gpu.driver_data import Faults, Link, LinkErrors, Reading, Throttle
from kgwe.model.health import transitions as watching
from kgwe.model.health.health import Policy, Watch, assess_health
from kgwe.model.health.xids import XidClass, look_up

T0 = 1_800_000_000.0
# Small, so that few steps cross every limit.
POLICY = Policy(quiet_s=20, contained_quiet_s=40, hot_s=10, window_s=60, link_window_s=60, incidents_most=4,
                troubles_most=3, same_s=5, corrected_most=20, link_errors_most=20)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """Something happens so many seconds after what was before."""

    after_s: float
    what: int | Reading | tuple[Link, ...] | str


xids = st.sampled_from((13, 31, 48, 63, 74, 79, 94, 95, 140, 154, 9999))
counters = st.none() | st.integers(0, 60)
readings = st.builds(
    Reading,
    uuid=st.just("GPU-1"),
    gpu_c=st.none() | st.integers(60, 100),
    slowdown_c=st.none() | st.just(90),
    # Never lower than before: these properties are of a card that is not reset unless told.
    energy_j=st.none() | st.just(1e9),
    throttle=st.none() | st.sampled_from((Throttle.NONE, Throttle.THERMAL_HARDWARE)),
    faults=st.builds(
        Faults,
        ecc_corrected=counters,
        ecc_uncorrected=counters,
        is_remap_pending=st.none() | st.booleans(),
        links=st.lists(st.builds(LinkErrors, st.integers(0, 2), replays=counters), max_size=2).map(tuple),
    ),
    is_lost=st.sampled_from((False, False, False, True)),
)
links = st.lists(st.builds(Link, st.integers(0, 2), st.none() | st.booleans()), max_size=3).map(tuple)
times = st.sampled_from((5.0, 5.0, 5.0, 0.0, 60.0, -3600.0, 1e7, -1e9))
steps = st.lists(st.builds(Step, times, xids | readings | links | st.just("silence")), max_size=40)


def stepped(watch: Watch, step: Step, now_s: float) -> Watch:
    match step.what:
        case int(number):
            return watching.on_xid(watch, number, now_s, POLICY)
        case Reading() as reading:
            return watching.on_reading(watch, reading, now_s, POLICY)
        case tuple(found):
            return watching.on_links(watch, found, now_s, POLICY)
        case _:
            return watching.on_silence(watch, now_s, POLICY)


def followed(story: list[Step]) -> list[Watch]:
    now_s, watches = T0, [Watch.new(T0)]
    for step in story:
        now_s += step.after_s
        watches.append(stepped(watches[-1], step, now_s))
    return watches


@given(steps)
def test_a_fatal_error_is_never_forgotten_without_a_reset(story):
    is_condemned = False
    for step, watch in zip(story, followed(story)[1:], strict=True):
        is_condemned |= isinstance(step.what, int) and look_up(step.what).xid_class is XidClass.FATAL
        if is_condemned:
            assert watch.state == "Unhealthy"
    last = followed(story)[-1]
    assert watching.on_reset(last, T0, POLICY).state == "Unknown"


@given(steps)
def test_a_card_becomes_better_only_by_speaking(story):
    better = {"Unhealthy": 0, "Unknown": 1, "Degraded": 2, "Healthy": 3}
    for step, (before, after) in zip(story, itertools.pairwise(followed(story)), strict=True):
        # To fall silent is no improvement, though work is not moved for it.
        if better[after.state] > better[before.state]:
            assert isinstance(step.what, Reading)
            assert not step.what.is_lost


@given(steps)
def test_no_trouble_passes_faster_than_its_quiet_time(story):
    """Between being condemned or degraded and being healthy again the card was listened to for the quiet time."""
    for before, after in itertools.pairwise(followed(story)):
        gone = {each.key for each in before.troubles} - {each.key for each in after.troubles}
        if POLICY.troubles_most in (len(before.troubles), len(after.troubles)):
            continue  # a worse one may have taken its place
        for each in before.troubles:
            if each.key in gone:
                assert not each.until_reset
                assert after.listened_s - each.seen_s >= min(POLICY.quiet_s, POLICY.contained_quiet_s)


@given(steps)
def test_time_heals_no_more_than_was_listened_to(story):
    for before, after in itertools.pairwise(followed(story)):
        assert 0 <= after.clock_s - before.clock_s <= POLICY.longest_step_s
        assert 0 <= after.listened_s - before.listened_s <= POLICY.silent_s


@given(steps)
def test_all_that_is_kept_is_bounded(story):
    last = followed(story)[-1]
    assert len(last.incidents) <= POLICY.incidents_most
    assert len(last.troubles) <= POLICY.troubles_most
    assert len(last.contained_s) <= POLICY.contained_most
    assert all(len(each.flaps_s) <= POLICY.flaps_most for each in (last.links or {}).values())
    assert len(last.links or {}) <= 3
    assert [each.rank for each in last.troubles] == sorted(each.rank for each in last.troubles)


@given(steps, st.lists(xids, max_size=6), st.randoms())
def test_errors_of_one_moment_give_the_same_verdict_in_any_order(story, numbers, random):
    shuffled = list(numbers)
    random.shuffle(shuffled)
    start = followed(story)[-1]
    found = []
    for order in (numbers, shuffled):
        watch = start
        for number in order:
            watch = watching.on_xid(watch, number, start.wall_s + 5, POLICY)
        found.append((assess_health(watch), watch.troubles))
    assert found[0] == found[1]


@given(steps)
def test_the_past_only_grows_by_incidents_and_never_beyond_the_worst(story):
    for watch in followed(story):
        for record in watch.records():
            assert 0 <= record.demerits <= 5
            assert 0 < record.score(watch.clock_s) <= 1


@given(steps)
def test_the_verdict_gives_a_reason_whenever_not_all_is_well(story):
    for watch in followed(story):
        found = assess_health(watch)
        assert found.state == watch.state
        assert (found.state == "Healthy") == (found.reason == "")
