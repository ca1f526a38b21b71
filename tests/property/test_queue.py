"""Whatever comes, ends and changes: nothing is lost or given twice, nobody starves, and holds are kept to."""

from __future__ import annotations

import math
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders.queues import Bed, work
from tests.support.examples import examples

from kgwe.placement.queue import queue as queue_module
from kgwe.placement.queue.cycle import Placed, run_cycle
from kgwe.placement.queue.fair_share import FairShareOrder, FairShares
from kgwe.placement.queue.queue import Queue
from kgwe.placement.queue.reservation import BackfillRule
from kgwe.placement.queue.unschedulable import ConfigChanged, RoomFreed, VictimGone
from kgwe.placement.queue.workloads import QueuedWorkload, RunningWorkloads, RunTime
from kgwe.placement.refusal import Reason, Refusal

works = st.lists(
    st.builds(
        lambda cards, pods, lasts, spread, namespace, priority, claim, leaf: {
            "cards": cards,
            "pods": pods,
            "lasts": RunTime(lasts * 60.0, lasts * 60.0 * spread) if lasts else None,
            "namespace": namespace,
            "priority": priority,
            "first_claim": claim,
            **({"required": "leaf"} if leaf else {}),
        },
        st.sampled_from([1, 2, 4, 8]),
        st.sampled_from([1, 1, 1, 2, 3, 4]),
        st.integers(0, 8),
        st.sampled_from([1.0, 3.0]),
        st.sampled_from(["a", "b"]),
        st.sampled_from([0, 0, 1]),
        st.sampled_from([False, False, True]),
        st.booleans(),
    ),
    min_size=1,
    max_size=14,
)
RACKS = {"s": {"a": [8, 8], "b": [8]}}


@examples(25)
@given(works, st.sampled_from(list(BackfillRule)), st.data())
def test_all_that_can_start_does_and_nothing_is_given_twice(listed, rule, data):
    bed = Bed(RACKS, rule=rule, blind_after_s=300.0, refresh_s=1.0)
    ends: dict[str, float] = {}
    coming = [work(f"w{number}", since_s=number * 60.0, **each) for number, each in enumerate(listed)]
    started: set[str] = set()
    for step in range(len(coming) + 80):
        now_s = step * 60.0
        for key in [key for key, end_s in ends.items() if end_s <= now_s]:
            bed.end(key)
            del ends[key]
        if step < len(coming):
            bed.put(coming[step])
        for key in bed.run(now_s):
            each = coming[int(key[1:])]
            # Real run times have nothing to do with what was said, but end within the time of the test.
            ends[key] = now_s + 60.0 * data.draw(st.integers(1, 3), label=f"minutes of {each.key}")
            started.add(key)
        # Every card is free or held by exactly one; `commit` itself refuses what is not free.
        held = sum(grant.gpus.bit_count() for grants in bed.grants.values() for grant in grants)
        assert held + sum(int(mask).bit_count() for mask in bed.snapshot.free) == 24
        assert len(bed.holds) <= bed.holds.settings.max_reservations
        assert {hold.key for hold in bed.holds.list_all()} <= set(bed.queue.entries)
    waiting = dict(bed.queue.entries)
    assert started | set(waiting) == {each.key for each in coming}
    # What still waits could not start on the empty fleet.
    assert not bed.grants
    for entry in waiting.values():
        assert entry.request_class.refusal is not None
        assert not entry.request_class.refusal.possible, entry.request_class.refusal


@examples(25)
@given(works)
def test_parking_changes_nothing_but_the_cost(listed):
    """With every shape woken before every pass, the same works are placed."""

    def run(*, wake: bool) -> list[tuple[float, str]]:
        bed = Bed(RACKS, rule=BackfillRule.GREEDY)
        ends: dict[str, float] = {}
        starts = []
        for step in range(30):
            now_s = step * 60.0
            for key in [key for key, end_s in ends.items() if end_s <= now_s]:
                bed.end(key)
                del ends[key]
            if step < len(listed):
                bed.put(work(f"w{step:02}", since_s=now_s, **listed[step]))
            if wake:
                bed.queue.handle_event(ConfigChanged())
            for key in bed.run(now_s):
                starts.append((now_s, key))
                ends[key] = now_s + 60.0 * (1 + int(key[1:]) % 3)
        return starts

    assert run(wake=False) == run(wake=True)


@examples(20)
@given(works, st.integers(1, 5))
def test_with_exact_run_times_who_goes_ahead_never_delays_who_waits(listed, minutes):
    """The hero starts no later than its hold said when it was made."""
    bed = Bed({"s": {"a": [8, 8, 8]}}, refresh_s=1.0)
    bed.start(work("x", 8, 2, lasts=minutes * 60.0, since_s=-2.0))
    ends = {"x": minutes * 60.0}
    bed.put(work("hero", 8, 3, lasts=60.0, since_s=-1.0))
    bed.run()
    promised_s = math.inf
    for step in range(60):
        now_s = step * 10.0
        for key in [key for key, end_s in ends.items() if end_s <= now_s]:
            bed.end(key)
            del ends[key]
        if step < len(listed):
            each = {**listed[step], "priority": 0, "first_claim": False}
            run_time = each.pop("lasts")
            bed.put(work(f"w{step}", since_s=now_s, lasts=run_time.p50_s if run_time else None, **each))
        for key in bed.run(now_s):
            if key == "hero":
                assert now_s <= promised_s + 10.0
                return
            found = next((o.run_time for o in bed.roster.list_timed()[0] if o.key == key), None)
            ends[key] = now_s + (found.p50_s if found else 1e6)
        hold = bed.holds.get("hero")
        if hold is not None and hold.start_s is not None:
            promised_s = min(promised_s, hold.start_s)
    raise AssertionError("the hero never started")


@examples(25)
@given(works, st.data())
def test_holds_without_a_near_start_keep_at_most_half_of_the_gpus(listed, data):
    """Together, whatever waits and runs; a node more at most, because nodes are kept whole."""
    bed = Bed(RACKS, blind_after_s=120.0, far_s=180.0, refresh_s=1.0)
    ends: dict[str, float] = {}
    for step in range(len(listed) + 20):
        now_s = step * 60.0
        for key in [key for key, end_s in ends.items() if end_s <= now_s]:
            bed.end(key)
            del ends[key]
        if step < len(listed):
            bed.put(work(f"w{step}", since_s=now_s, **listed[step]))
        for key in bed.run(now_s):
            ends[key] = now_s + 60.0 * data.draw(st.integers(1, 20), label=f"minutes of {key}")
        blind = [hold for hold in bed.holds.list_all() if hold.start_s is None]
        assert len(blind) <= 1
        assert sum(len(hold.nodes) for hold in blind) * 8 <= 12


@examples(20)
@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(1, 6)), min_size=3, max_size=12), st.integers(1, 2)
)
def test_a_gang_of_half_of_the_fleet_starts_though_no_run_time_is_known(small, pods):
    """Small work without run times comes without an end, and all that runs ends within six minutes."""
    bed = Bed({"s": {"a": [8, 8], "b": [8, 8]}}, blind_after_s=300.0, refresh_s=1.0)
    ends: dict[str, float] = {}
    for step in range(60):
        now_s = step * 60.0
        for key in [key for key, end_s in ends.items() if end_s <= now_s]:
            bed.end(key)
            del ends[key]
        for number in range(4):
            cards, _ = small[(4 * step + number) % len(small)]
            bed.put(work(f"{step}-{number}", cards, namespace="a", since_s=now_s))
        if step == 3:
            bed.put(work("hero", 8, pods, namespace="b", since_s=now_s))
        for key in bed.run(now_s):
            if key == "hero":
                return
            ends[key] = now_s + 60.0 * small[sum(map(ord, key)) % len(small)][1]
    raise AssertionError("the gang never started")


@examples(25)
@given(works, st.integers(0, 3))
def test_the_order_is_total_and_does_not_depend_on_the_order_of_arrival(listed, turn):
    each = [work(f"w{number}", since_s=float(number % 3), **fields) for number, fields in enumerate(listed)]
    one, other = Queue({"a": 2.0}), Queue({"a": 2.0})
    for item in each:
        one.put(item)
    for item in each[turn:] + each[:turn][::-1]:
        other.put(item)
    held = {"a": 3000, "b": 2000}

    ordered = [item.key for item in one.iterate_in_order(held)]

    assert ordered == [item.key for item in other.iterate_in_order(held)]
    assert sorted(ordered) == sorted(item.key for item in each)
    levels = [one.entries[key].workload.level for key in ordered]
    assert levels == sorted(levels)
    assert ordered == list(_one_by_one(one, held))


def _one_by_one(queue: Queue, held: dict[str, int]):
    """The order in which a pass that places everything asks."""
    shares = FairShares(held, queue.weights)
    for level, buckets in queue.active_by_level():
        rounds = FairShareOrder(level, buckets, shares)
        while (turn := rounds.peek()) is not None:
            yield turn[0]
            queue.remove(turn[0])
            rounds.mark_placed()


steps = st.lists(
    st.tuples(
        st.sampled_from(["put", "retry", "drop", "drop", "wake", "free", "run"]), st.integers(0, 3), st.integers(1, 2)
    ),
    max_size=40,
)


@examples(100)
@given(steps)
def test_the_queue_knows_whom_it_has(listed):
    """Against a plain dictionary, with a planner that has room for some of them, and shapes forgotten at once."""
    with mock.patch.object(queue_module, "_MIN_CLASSES", 1):
        _check_queue(listed)


def _check_queue(listed):
    queue, room = Queue(), Room()
    waiting: dict[str, QueuedWorkload] = {}
    for step, (what, number, cards) in enumerate(listed):
        now_s, each = step * 2.0, work(f"w{number}", cards, since_s=float(step), namespace=f"ns{cards % 2}")
        if what in ("put", "retry"):
            queue.put(each) if what == "put" else queue.retry(each, now_s, 0.0)
            waiting[each.key] = each
        elif what == "drop":
            queue.drop(each.key)
            waiting.pop(each.key, None)
        elif what == "wake":
            queue.handle_event(VictimGone(each.key))
        elif what == "free":
            room.free = cards
            queue.handle_event(RoomFreed("n"))
        else:
            for outcome in run_cycle(queue, room, now_s, RunningWorkloads(lambda _: ())):
                if isinstance(outcome, Placed):
                    del waiting[outcome.workload.key]
        assert {key: entry.workload for key, entry in queue.entries.items()} == waiting
        in_order = [item.key for item in queue.iterate_in_order({})]
        assert sorted(in_order) == sorted(key for key, entry in queue.entries.items() if entry.bucket is not None)
        shapes = {entry.request_class for entry in queue.entries.values() if entry.bucket is not None}
        assert shapes == {*queue.pool.active, *queue.pool.unschedulable}
        assert not queue.pool.active.keys() & queue.pool.unschedulable.keys()
    queue.handle_event(ConfigChanged())
    room.free = 1000
    placed = run_cycle(queue, room, 1e6, RunningWorkloads(lambda _: ()))
    assert sorted(outcome.workload.key for outcome in placed if isinstance(outcome, Placed)) == sorted(waiting)


class Room:
    """Cards without nodes, asked for a moment: what is taken does not come back by itself."""

    free = 0
    nodes: tuple[str, ...] = ()
    grants = ()

    def plan(self, each, avoid, following):  # noqa: ARG002
        assert not avoid
        return self if each.request.gpus.count <= self.free else Refusal(Reason.NO_ROOM, "full")

    def arrange_gangs(self, following):  # noqa: ARG002
        return ()

    def commit(self, each, plan):
        assert plan is self
        self.free -= each.request.gpus.count

    def fits_on_any(self, request, nodes):
        assert nodes == ("n",)
        return request.gpus.count <= self.free


# --- estimates -------------------------------------------------------------------------------------------

runs = st.builds(
    lambda p50, by: RunTime(p50 * 60.0, p50 * 60.0 * by), st.integers(1, 90), st.sampled_from([1.0, 2.0, 9.0])
)
sizes = st.integers(1, 8)


@examples(25)
@given(
    st.lists(st.tuples(sizes, st.one_of(st.none(), runs, runs)), max_size=4),
    st.lists(st.tuples(sizes, st.one_of(st.none(), runs, runs, runs)), min_size=1, max_size=8),
    st.tuples(sizes, st.one_of(st.none(), runs)),
    st.integers(0, 8),
)
def test_work_ahead_never_makes_an_estimate_earlier(running, waiting, ahead, at):
    """One kind of pod on one leaf: gangs of one-card pods."""
    bed = Bed({"s": {"a": [8]}})
    bed.put(*[_gang(f"r{number}", size, lasts) for number, (size, lasts) in enumerate(running)])
    bed.run(0.0)
    queue = [_gang(f"w{number}", size, lasts) for number, (size, lasts) in enumerate(waiting)]
    before = bed.estimator.estimate(queue, 100.0)
    at = min(at, len(queue))
    longer = [*queue[:at], _gang("ahead", *ahead), *queue[at:]]

    after = bed.estimator.estimate(longer, 100.0)

    for each in queue[:at]:
        assert after[each.key] == before[each.key]
    for each in queue[at:]:
        for one, other in zip(_times(before[each.key]), _times(after[each.key]), strict=True):
            assert one <= other
    for eta in after.values():
        p50_s, p90_s = _times(eta)
        assert p50_s <= p90_s


def _gang(key: str, size: int, lasts: RunTime | None) -> QueuedWorkload:
    return work(key, 1, size, lasts=lasts)


def _times(eta) -> tuple[float, float]:
    p50_s, p90_s = eta.p50_s, eta.p90_s
    return math.inf if p50_s is None else p50_s, math.inf if p90_s is None else p90_s
