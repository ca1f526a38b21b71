"""Follows the orders that concern this node: each pod is asked once per order, all pods at the same time."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Final

import structlog

from kgwe import errors
from kgwe.cluster.checkpoint import orders
from kgwe.cluster.checkpoint.call import ANNOTATION, parse_call
from kgwe.cluster.checkpoint.orders import Report, State
from kgwe.kube.api import resources
from kgwe.kube.client.informer import Informer
from kgwe.model.units import backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kgwe.apps.agent.checkpoint.delivery import Delivery
    from kgwe.cluster.checkpoint.orders import Order, Reports
    from kgwe.kube.api import core
    from kgwe.kube.api.kgwe.gpunode import GPUNode
    from kgwe.kube.client.client import KubeClient
    from kgwe.kube.client.informer import Change

log = structlog.get_logger(__name__)

_RETRY_S: Final = 0.2
_LONGEST_RETRY_S: Final = 5.0
_MESSAGE_CHARS: Final = 200


class CheckpointOrders:
    """The orders of this node, and its reports about them."""

    def __init__(
        self,
        client: KubeClient,
        node: str,
        delivery: Delivery,
        list_pods: Callable[[], Iterable[core.Pod]],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._node = node
        self._delivery = delivery
        self._list_pods = list_pods
        self._clock = clock
        self._reports: Reports = {}
        self._written: Reports | None = None
        """What the GPUNode says; None if that is not known."""
        self._wake = asyncio.Event()
        self._asking: set[asyncio.Task[None]] = set()
        self.informer = Informer(
            client,
            resources.CONFIG_MAP,
            namespace=orders.NAMESPACE,
            field_selector=f"metadata.name={orders.CONFIG_MAP}",
        )
        self.informer.on_change(self._handle_orders)

    def on_gpunode(self, change: Change[GPUNode]) -> None:
        """Take over what an earlier agent of this node reported: no pod gets an order twice."""
        if self._written is None and change.new is not None:
            self._written = orders.decode_reports(change.new.metadata.annotations.get(orders.REPORT_ANNOTATION))
            self._reports = {name: dict(pods) for name, pods in self._written.items()} | self._reports

    async def run(self) -> None:
        """Watch orders and write reports until cancelled."""
        watching = asyncio.create_task(self.informer.run())
        try:
            await self._write_forever()
        finally:
            for task in (watching, *self._asking):
                task.cancel()
            await asyncio.gather(watching, *self._asking, return_exceptions=True)

    def _handle_orders(self, change: Change[core.ConfigMap]) -> None:
        there = orders.decode_orders(change.new.data) if change.new is not None else {}
        for name in set(self._reports) - set(there):
            del self._reports[name]
        for name, order in there.items():
            if order.deadline_at <= self._clock():
                continue
            for uid in order.list_on(self._node):
                if uid not in self._reports.setdefault(name, {}):
                    # Noted before it is sent, so that the next change of the ConfigMap does not send it again.
                    self._reports[name][uid] = Report(State.SENT, "not sent yet")
                    task = asyncio.create_task(self._ask(name, order, uid))
                    self._asking.add(task)
                    task.add_done_callback(self._asking.discard)
        self._wake.set()

    async def _ask(self, name: str, order: Order, uid: str) -> None:
        report = Report(State.FAILED, "the agent failed")
        try:
            report = await self._ask_pod(name, order, uid)
        except Exception:
            log.exception("checkpoint_failed", order=name, pod=uid)
        self._set(name, uid, report)

    async def _ask_pod(self, name: str, order: Order, uid: str) -> Report:
        pod = next((each for each in self._list_pods() if each.metadata.uid == uid), None)
        if pod is None:
            return Report(State.FAILED, "the pod is not on this node")
        try:
            call = parse_call(pod.metadata.annotations.get(ANNOTATION, ""))
        except errors.Permanent as exc:
            return Report(State.FAILED, str(exc)[:_MESSAGE_CHARS])
        log.info("checkpoint_ordered", order=name, pod=pod.metadata.key, reason=order.reason)
        report = await self._delivery.ask(pod, call, name, order, lambda: self._set(name, uid, Report(State.SENT)))
        return Report(report.state, report.message[:_MESSAGE_CHARS])

    def _set(self, name: str, uid: str, report: Report) -> None:
        if name in self._reports:
            self._reports[name][uid] = report
            self._wake.set()

    async def _write_forever(self) -> None:
        failures = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            wanted = {name: dict(pods) for name, pods in self._reports.items() if pods}
            if wanted == (self._written or {}):
                continue
            text = orders.encode_reports(wanted) if wanted else None
            body = {"metadata": {"annotations": {orders.REPORT_ANNOTATION: text}}}
            try:
                await self._client.patch(resources.GPU_NODE, self._node, body)
                self._written, failures = wanted, 0
            except errors.KgweError as exc:
                log.warning("checkpoint_not_reported", node=self._node, error=str(exc))
                self._wake.set()
                pause = backoff.delay_s(_RETRY_S, failures, random.random())  # noqa: S311 - spreads load
                failures += 1
                await asyncio.sleep(min(pause, _LONGEST_RETRY_S))
