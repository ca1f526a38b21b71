"""Any order of adding, appointing, failing, working, cancelling and waiting: the queue keeps its promises.

The model is one number per key: by when work on it was promised to begin (`owed`). Time is the loop's own and moves
only when a rule moves it.
"""

from __future__ import annotations

import asyncio

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kgwe.kube.client.workqueue import WorkQueue

KEYS = st.sampled_from("abcd")
# Quarters of a second: exact in binary, so that "due" means the same to the model and to the loop.
DELAYS = st.integers(min_value=0, max_value=40).map(lambda quarters: quarters / 4)


class StandingClock(asyncio.SelectorEventLoop):
    """A loop whose time moves when told to."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def settle(self) -> None:
        """Run everything that can run at this instant."""
        for _ in range(5):
            self.run_until_complete(asyncio.sleep(0))


class QueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = StandingClock()
        self.queue: WorkQueue[str] = WorkQueue(base_s=0.5, ceiling_s=4, jitter=0.0)
        self.owed: dict[str, float] = {}
        self.held: list[str] = []
        self.idle: list[asyncio.Task[str]] = []

    def promise(self, key: str, delay_s: float) -> None:
        self.owed[key] = min(self.owed.get(key, float("inf")), self.loop.now + max(delay_s, 0))

    def in_loop(self, action) -> None:
        async def act() -> None:
            action()

        self.loop.run_until_complete(act())

    @rule(key=KEYS)
    def add(self, key: str) -> None:
        self.promise(key, 0)
        self.in_loop(lambda: self.queue.add(key))

    @rule(key=KEYS, delay_s=DELAYS)
    def add_after(self, key: str, delay_s: float) -> None:
        self.promise(key, delay_s)
        self.in_loop(lambda: self.queue.add_after(key, delay_s))

    @rule(keys=st.lists(KEYS, min_size=2, max_size=4))
    def burst(self, keys: list[str]) -> None:
        """Several keys before any worker has run."""

        def act() -> None:
            for key in keys:
                self.promise(key, 0)
                self.queue.add(key)

        self.in_loop(act)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self.held))
        self.in_loop(lambda: self.promise(key, self.queue.retry(key)))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), forget=st.booleans())
    def finish(self, data: st.DataObject, *, forget: bool) -> None:
        key = data.draw(st.sampled_from(self.held))
        self.held.remove(key)
        if forget:
            self.queue.forget(key)
        self.in_loop(lambda: self.queue.mark_done(key))

    @rule()
    def seek_work(self) -> None:
        self.idle.append(self.loop.create_task(self.queue.get()))

    @precondition(lambda self: self.idle)
    @rule(data=st.data(), key=KEYS, added=st.sampled_from(["before", "after", "not"]))
    def cancel(self, data: st.DataObject, key: str, added: str) -> None:
        """A worker is cancelled, perhaps in the very step in which a key arrives for it."""
        worker = data.draw(st.sampled_from(self.idle))
        if added != "not":
            self.promise(key, 0)

        def act() -> None:
            if added == "before":
                self.queue.add(key)
            worker.cancel()
            if added == "after":
                self.queue.add(key)

        self.in_loop(act)

    @rule(seconds=DELAYS)
    def wait(self, seconds: float) -> None:
        self.loop.now += seconds

    @invariant()
    def promises_are_kept(self) -> None:
        self.loop.settle()
        for worker in [worker for worker in self.idle if worker.done()]:
            self.idle.remove(worker)
            if worker.cancelled():
                continue
            key = worker.result()
            assert key not in self.held, "two workers on one key"
            assert self.owed.pop(key, float("inf")) <= self.loop.now, "worked on before its time, or for nothing"
            self.held.append(key)
        late = {key for key, due in self.owed.items() if due <= self.loop.now and key not in self.held}
        assert not (late and self.idle), "a key is due, a worker waits, and they do not meet"
        assert len(self.queue) == len(late) + len(self.held)
        assert len(self.queue._getters) <= len(self.idle)

    def teardown(self) -> None:
        """With workers enough and time enough, nothing promised is lost."""
        try:
            while self.held:
                key = self.held.pop()
                self.in_loop(lambda key=key: self.queue.mark_done(key))
            self.loop.now += 100
            for _ in range(len(self.owed)):
                self.seek_work()
            self.promises_are_kept()
            assert self.owed == {}
        finally:
            for worker in self.idle:
                worker.cancel()
            self.loop.settle()
            self.loop.close()


TestWorkQueue = QueueMachine.TestCase
