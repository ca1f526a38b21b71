"""Starts that were seen only after a restart: pods pay from their start, and the books balance as before."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders.costs import T0, Everyone, make_history

from kgwe.costing import books
from kgwe.costing.metering.division import divide_node
from kgwe.costing.metering.late_starts import LateStart, apply, start_holders
from kgwe.costing.metering.timeline import sweep_node
from kgwe.costing.segments import HELD


@given(st.integers(0, 2**32))
def test_books_balance_and_no_pod_pays_more_than_it_held(seed):
    nodes, claims = make_history(seed)
    rng = random.Random(seed)
    start_s, until_s = T0, T0 + 400
    hidden = [each for each in claims if rng.random() < 0.5]
    seen = [each for each in claims if each not in hidden]
    stored = sweep_node(nodes, seen, (start_s, until_s), Everyone()).segments
    starts = []
    for span in hidden:
        first, last = max(span.start_s, start_s), min(span.end_s or until_s, until_s)
        if not nodes or first >= last:
            continue
        lines = divide_node(nodes[-1].node, [span.claim])
        held = tuple(each for each in lines if each.bucket in HELD)
        starts.append(LateStart(Everyone()[span.claim.holder], first, last, held))
    written = start_holders(stored, starts)
    ledger = apply(stored, written)
    middle_s = rng.randint(start_s, until_s)
    for window in ((start_s, middle_s), (middle_s, until_s), (start_s, until_s)):
        found = books.keep_books(ledger, *window)
        assert found.unbalanced == 0
        assert found.fleet == books.keep_books(stored, *window).fleet
    assert all(each.rate >= 0 and each.ppm >= 0 for each in ledger)
    for late in starts:
        paid = [each for each in ledger if each.holder == late.holder and each.bucket in HELD]
        assert all(late.start_s <= each.start_s and each.end_s <= late.end_s for each in paid)
        assert sum(each.ppm * each.seconds for each in paid) <= sum(each.ppm for each in late.lines) * (
            late.end_s - late.start_s
        )
    unseen = [each for each in stored if each.holder is not None and each.bucket in HELD]
    assert all(each in ledger for each in unseen), "what others paid is unchanged"
