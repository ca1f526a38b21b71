"""Delivers one checkpoint order to one pod, and waits for its confirmation.

Both ways reach only the pod itself: signals go to processes in its cgroup, and requests go to its own address. A pod on
the host's network has the address of the node, so it can be asked by a signal only.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import httpx2

from kgwe import errors
from kgwe.cluster.checkpoint.orders import Report, State
from kgwe.kube.api.resources import Resource

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.cluster.checkpoint.call import CheckpointCall
    from kgwe.cluster.checkpoint.orders import Order
    from kgwe.hardware.linux.pod_processes import PodProcesses
    from kgwe.kube.api import core
    from kgwe.kube.client.client import KubeClient

_WHOLE_POD: Final = Resource("", "v1", "pods", "Pod", namespaced=True, type=dict[str, Any])
_POLL_S: Final = 0.2
_ANSWER_S: Final = 10.0
_DONE: Final = (200, 204)
_ACCEPTED: Final = 202


class Delivery:
    """Asks pods of this node for a checkpoint."""

    def __init__(self, client: KubeClient, processes: PodProcesses, *, clock: Callable[[], float] = time.time) -> None:
        self._client = client
        self._processes = processes
        self._clock = clock

    async def ask(
        self, pod: core.Pod, call: CheckpointCall, order_id: str, order: Order, on_sent: Callable[[], None]
    ) -> Report:
        """Return how it ended; `on_sent` is called when the pod was asked."""
        try:
            if call.signal:
                return await self._signal(pod.metadata.uid, call, order, on_sent)
            return await self._request(pod, call, order_id, order, on_sent)
        except errors.KgweError as exc:
            return Report(State.FAILED, str(exc))

    async def _signal(self, uid: str, call: CheckpointCall, order: Order, on_sent: Callable[[], None]) -> Report:
        # The time of a file has less precision than the clock.
        began = self._clock() - 0.01
        pids = await asyncio.to_thread(self._processes.send, uid, call.signal)
        if not pids:
            return Report(State.FAILED, f"no process of the pod handles {call.signal}")
        on_sent()
        waiting = set(pids)
        while waiting and self._clock() < order.deadline_at:
            left_s = max(order.deadline_at - self._clock(), _POLL_S)
            try:
                async with asyncio.timeout(left_s):
                    waiting = await self._find_unwritten(waiting, call.file, began)
            except TimeoutError:
                break
            if waiting:
                await asyncio.sleep(_POLL_S)
        if waiting:
            return Report(State.FAILED, f"{call.file} was not written before the deadline")
        return Report(State.DONE)

    async def _find_unwritten(self, pids: set[int], file: str, began: float) -> set[int]:
        """Return the processes that have not written the file.

        The file can be on a volume whose server is the tenant's and does not answer: then the look takes for ever. So
        each pod has its own thread, which delays neither the agent nor its end.
        """
        found: asyncio.Future[set[int]] = asyncio.get_running_loop().create_future()
        loop = found.get_loop()

        def deliver(left: set[int]) -> None:
            if not found.done():
                found.set_result(left)

        def look() -> None:
            left = {pid for pid in pids if (self._processes.find_mtime(pid, file) or 0.0) < began}
            with contextlib.suppress(RuntimeError):  # the agent has ended
                loop.call_soon_threadsafe(deliver, left)

        threading.Thread(target=look, name="checkpoint-file", daemon=True).start()
        return await found

    async def _request(
        self, pod: core.Pod, call: CheckpointCall, order_id: str, order: Order, on_sent: Callable[[], None]
    ) -> Report:
        whole = await self._client.get(_WHOLE_POD, pod.metadata.name, pod.metadata.namespace)
        if whole["metadata"].get("uid") != pod.metadata.uid:
            return Report(State.FAILED, "the pod is gone")
        if whole.get("spec", {}).get("hostNetwork"):
            return Report(State.FAILED, "a pod on the host's network is asked by signal=NAME only")
        address = whole.get("status", {}).get("podIP", "")
        if not address:
            return Report(State.FAILED, "the pod has no address yet")
        host = f"[{address}]" if ":" in address else address
        url = f"http://{host}:{call.port}{call.path}"
        body = {"order": order_id, "reason": order.reason, "deadline": order.deadline_at}
        try:
            async with httpx2.AsyncClient(
                trust_env=False, follow_redirects=False, timeout=_ANSWER_S, verify=False
            ) as client:
                on_sent()
                return await self._poll(client, url, body, order)
        except (httpx2.HTTPError, OSError) as exc:
            return Report(State.FAILED, f"POST {call.port}{call.path}: {str(exc) or type(exc).__name__}")

    async def _poll(self, client: httpx2.AsyncClient, url: str, body: dict[str, Any], order: Order) -> Report:
        """Post once; after 202, get until the deadline."""
        left = max(order.deadline_at - self._clock(), 0.1)
        async with client.stream("POST", url, json=body, timeout=left) as answer:
            status = answer.status_code
        while status == _ACCEPTED and self._clock() < order.deadline_at:
            await asyncio.sleep(_POLL_S)
            async with client.stream("GET", url) as answer:
                status = answer.status_code
        if status in _DONE:
            return Report(State.DONE)
        if status == _ACCEPTED:
            return Report(State.FAILED, "it was accepted but not finished before the deadline")
        return Report(State.FAILED, f"the pod answered {status}")
