"""A checkpoint's file on a volume that does not answer delays nothing but that checkpoint."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from kgwe.apps.agent.checkpoint.delivery import Delivery
from kgwe.cluster.checkpoint.call import parse_call
from kgwe.cluster.checkpoint.orders import Order, State
from kgwe.kube.api import core
from kgwe.kube.api.meta import ObjectMeta


class HangingVolume:
    """Processes whose file is on a hanging volume."""

    def __init__(self) -> None:
        self.answers = threading.Event()

    def send(self, pod_uid: str, name: str) -> list[int]:
        del pod_uid, name
        return [1]

    def find_mtime(self, pid: int, file: str) -> float | None:
        del pid, file
        self.answers.wait(30)
        return None


async def test_a_volume_that_does_not_answer_does_not_stop_the_agent() -> None:
    processes: Any = HangingVolume()
    client: Any = None
    order = Order(time.time() + 0.3, "test", {"u": "n"})
    pod = core.Pod(metadata=ObjectMeta(name="p", namespace="tenant", uid="u"))
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.01)

    ticking = asyncio.create_task(tick())
    call = parse_call("signal=SIGUSR1,file=/nfs/done")
    report = await Delivery(client, processes).ask(pod, call, "o", order, lambda: None)
    ticking.cancel()
    processes.answers.set()
    assert report.state is State.FAILED
    assert "was not written" in report.message
    assert ticks > 1
