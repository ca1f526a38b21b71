"""Full collections look only at what is new, and lose nothing."""

from __future__ import annotations

import subprocess
import sys

# Processes of their own: a collection of everything would visit the half million objects of the tests.
_BEGIN = """
import asyncio, gc, weakref
from kgwe.apps import gc_pauses

class Thing:
    def __init__(self):
        self.itself = self

"""
_END = """
asyncio.run(check())
"""


def run(body: str) -> None:
    done = subprocess.run([sys.executable, "-c", _BEGIN + body + _END], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_survives_is_set_aside_and_given_back():
    run("""
async def check():
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
""")


def test_new_garbage_is_collected_and_old_garbage_at_the_next_collect_everything():
    run("""
async def check():
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
""")
