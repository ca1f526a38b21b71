"""Full collections look only at what is new, and lose nothing."""

from __future__ import annotations

import gc
import weakref

from kgwe.apps import gc_pauses


class Thing:
    def __init__(self) -> None:
        self.itself = self


async def test_what_survives_is_set_aside_and_given_back():
    kept = Thing()
    async with gc_pauses.keep_pauses_short():
        assert gc.get_freeze_count() > 0
        assert all(each is not kept for each in gc.get_objects())
        young = Thing()
        assert any(each is young for each in gc.get_objects())
        gc.collect()
        assert all(each is not young for each in gc.get_objects())
    assert gc.get_freeze_count() == 0
    assert any(each is kept for each in gc.get_objects())


async def test_new_garbage_is_collected_and_old_garbage_at_the_next_collect_everything():
    async with gc_pauses.keep_pauses_short():
        young = weakref.ref(Thing())
        gc.collect()
        assert young() is None
        thing = Thing()
        gc.collect()
        old = weakref.ref(thing)
        del thing
        gc.collect()
        assert old() is not None
        gc_pauses.collect_everything()
        assert old() is None
        assert gc.get_freeze_count() > 0
