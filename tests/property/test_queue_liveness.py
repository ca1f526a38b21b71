"""Whatever run times are declared or predicted: what fits starts after a bounded time, even if others never end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders.queues import Bed, work
from tests.support.examples import examples

from kgwe.placement.queue.reservation import BackfillRule
from kgwe.placement.queue.workloads import RunTime
from kgwe.placement.refusal import Refusal

_RACKS = {"s": {"a": [8, 8], "b": [8]}}
_MINUTE_S = 60.0
# Longer than the longest promise (an hour, see below) and than a reservation without a known start, with its pause.
_QUIET_S = 6 * 3600.0

_RUN_TIMES = st.one_of(
    st.none(),
    st.builds(
        lambda median_s, spread: RunTime(median_s, min(median_s * spread, 1800.0)),
        st.floats(1.0, 1800.0),
        st.sampled_from([1.0, 2.0, 30.0]),
    ),
)
_WORKLOADS = st.lists(
    st.fixed_dictionaries(
        {
            "cards": st.sampled_from([1, 2, 4, 8]),
            "pods": st.sampled_from([1, 1, 2, 3]),
            "lasts": _RUN_TIMES,
            "namespace": st.sampled_from(["a", "b"]),
            "priority": st.sampled_from([0, 0, 1]),
            "first_claim": st.sampled_from([False, False, True]),
            # None: it never ends.
            "takes_min": st.one_of(st.none(), st.integers(1, 60)),
        }
    ),
    min_size=2,
    max_size=12,
)


@examples(40)
@given(_WORKLOADS, st.sampled_from([BackfillRule.HOLD, BackfillRule.BACKFILL]))
def test_nothing_that_fits_waits_for_ever_behind_a_reservation(listed, rule):
    bed = Bed(_RACKS, rule=rule, blind_after_s=300.0, blind_s=1800.0, refresh_s=30.0)
    takes_s = {f"w{number}": each["takes_min"] for number, each in enumerate(listed)}
    ends: dict[str, float] = {}
    now_s, last_s = 0.0, len(listed) * _MINUTE_S + _QUIET_S
    while now_s < last_s:
        for key in [key for key, end_s in ends.items() if end_s <= now_s]:
            bed.end(key)
            del ends[key]
            last_s = max(last_s, now_s + _QUIET_S)
        number = int(now_s / _MINUTE_S)
        if number < len(listed):
            fields = {name: value for name, value in listed[number].items() if name != "takes_min"}
            bed.put(work(f"w{number}", since_s=now_s, **fields))
        for key in bed.run(now_s):
            if (minutes := takes_s[key]) is not None:
                ends[key] = now_s + minutes * _MINUTE_S
            last_s = max(last_s, now_s + _QUIET_S)
        now_s += _MINUTE_S if number < len(listed) or ends else 10 * _MINUTE_S

    for entry in bed.queue.entries.values():
        found = bed.planner.plan(entry.workload, frozenset())
        assert isinstance(found, Refusal), f"{entry.workload.key} fits and waits: {entry.request_class.refusal}"
