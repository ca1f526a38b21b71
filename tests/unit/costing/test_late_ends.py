"""Ends that were reported only after a restart: pods pay until their end, and the books balance as before."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders.costs import T0, Everyone, make_history

from kgwe.costing import books
from kgwe.costing.metering.late_ends import end_holders
from kgwe.costing.metering.timeline import sweep_node
from kgwe.costing.segments import HELD, Bucket


@given(st.integers(0, 2**32))
def test_books_balance_and_pods_pay_until_their_end(seed):
    nodes, claims = make_history(seed)
    rng = random.Random(seed)
    start_s, until_s = T0, T0 + 400
    stored = {each.key: each for each in sweep_node(nodes, claims, (start_s, until_s), Everyone()).segments}
    uids = {each.holder.uid for each in stored.values() if each.holder is not None and each.bucket in HELD}
    ends = {uid: rng.randint(start_s, until_s) for uid in sorted(uids) if rng.random() < 0.5}
    ledger = dict(stored)
    for each in end_holders(list(stored.values()), ends):
        if each.seconds:
            ledger[each.key] = each
        else:
            ledger.pop(each.key, None)
    assert not end_holders(list(ledger.values()), ends)
    middle_s = rng.randint(start_s, until_s)
    windows = [(start_s, middle_s), (middle_s, until_s), (start_s, until_s)]
    found = [books.keep_books(ledger.values(), *window) for window in windows]
    assert [each.unbalanced for each in found] == [0, 0, 0]
    assert found[0].fleet + found[1].fleet == found[2].fleet
    for uid in uids:
        expected = sum(
            each.clip(start_s, ends.get(uid, until_s)).ticks
            for each in stored.values()
            if each.holder is not None and each.holder.uid == uid and each.bucket in HELD
        )
        paid = [each for each in ledger.values() if each.holder is not None and each.holder.uid == uid]
        assert sum(each.ticks for each in paid if each.bucket in HELD) == expected
    spare = (Bucket.UNALLOCATED, Bucket.RESERVED_IDLE)
    for each in ledger.values():
        others = [more for more in ledger.values() if more is not each and more.bucket in spare]
        if each.bucket in spare:
            same = [more for more in others if (more.bucket, more.piece) == (each.bucket, each.piece)]
            assert all(more.end_s <= each.start_s or each.end_s <= more.start_s for more in same)
