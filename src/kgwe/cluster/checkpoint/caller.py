"""Asks all pods of a gang for a checkpoint, and waits until they confirm or the time is over.

Every stop that KGWE decides calls it first: interruption notices, preemption, defragmentation and scale-down.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from kgwe import errors
from kgwe.cluster.checkpoint import orders
from kgwe.cluster.checkpoint.call import find_call
from kgwe.cluster.checkpoint.orders import Order, State
from kgwe.kube.api import resources

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

    from kgwe.cluster.checkpoint.orders import Report, Reports
    from kgwe.kube.api import core
    from kgwe.kube.client.client import KubeClient

log = structlog.get_logger(__name__)

_POLL_S: Final = 0.1
_NEXT_READ_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointResult:
    """What became of a call."""

    confirmed: frozenset[str] = frozenset()
    """Uids of the pods."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Uid -> why."""
    silent: frozenset[str] = frozenset()
    """Pods of which no agent reported an end in time."""

    @property
    def asked(self) -> int:
        return len(self.confirmed) + len(self.failed) + len(self.silent)

    def describe(self) -> str:
        """Return one sentence for Events."""
        if not self.asked:
            return "No pod declares how to checkpoint"
        text = f"{len(self.confirmed)} of {self.asked} pods confirmed a checkpoint"
        why = next(iter(self.failed.values()), "")
        if why:
            text += f"; {len(self.failed)} failed, such as: {why}"
        return text + (f"; {len(self.silent)} did not answer in time" if self.silent else "")


class ReportSource(Protocol):
    """Reads the reports of agents."""

    async def read(self, nodes: Collection[str]) -> Iterable[Reports]:
        """Return the reports of the agents of these nodes."""


class Caller(Protocol):
    """Asks pods for a checkpoint."""

    async def call(self, cause: str, pods: Iterable[core.Pod], *, seconds: float, reason: str) -> CheckpointResult:
        """Ask all of these pods at once. It returns when all have ended it, or after `seconds`."""


class CheckpointCaller:
    """Writes orders to the ConfigMap, and reads reports from GPUNodes."""

    def __init__(self, client: KubeClient, reports: ReportSource, *, clock: Callable[[], float] = time.time) -> None:
        self._client = client
        self._reports = reports
        self._clock = clock

    async def call(self, cause: str, pods: Iterable[core.Pod], *, seconds: float, reason: str) -> CheckpointResult:
        """Ask all of these pods that declare how. If the API server fails, the wait ends and the caller goes on."""
        asked = {
            pod.metadata.uid: pod.spec.nodeName
            for pod in pods
            if pod.spec.nodeName and pod.status.phase == "Running" and find_call(pod.metadata.annotations)
        }
        if not asked:
            return CheckpointResult()
        order = Order(deadline_at=self._clock() + seconds, reason=reason[:200], pods=asked)
        order_id = orders.make_order_id(cause, asked)
        found: dict[str, Report] = {}
        try:
            await self._write(order_id, orders.encode_order(order))
            try:
                found = await self._wait(order_id, order)
            finally:
                await self._write(order_id, None)
        except errors.KgweError as exc:
            log.warning("checkpoint_interrupted", cause=cause, error=str(exc))
        result = _summarize(asked, found)
        log.info("checkpoint_called", cause=cause, result=result.describe())
        return result

    async def _wait(self, order_id: str, order: Order) -> dict[str, Report]:
        nodes = set(order.pods.values())
        found: dict[str, Report] = {}
        while True:
            for reports in await self._reports.read(nodes):
                found |= {uid: report for uid, report in reports.get(order_id, {}).items() if uid in order.pods}
            is_over = all(uid in found and found[uid].state is not State.SENT for uid in order.pods)
            if is_over or self._clock() >= order.deadline_at:
                return found
            await asyncio.sleep(_POLL_S)

    async def _write(self, order_id: str, text: str | None) -> None:
        """Set or remove one entry. Other writers' entries are not touched; expired ones are removed."""
        data: dict[str, str | None] = {order_id: text}
        try:
            if text is not None:
                there = await self._client.get(resources.CONFIG_MAP, orders.CONFIG_MAP, orders.NAMESPACE)
                data |= dict.fromkeys(orders.find_expired(orders.decode_orders(there.data), self._clock()))
            await self._client.patch(resources.CONFIG_MAP, orders.CONFIG_MAP, {"data": data}, orders.NAMESPACE)
        except errors.NotFound:
            if text is not None:
                await self._create({order_id: text})

    async def _create(self, data: Mapping[str, str]) -> None:
        body = {"metadata": {"name": orders.CONFIG_MAP, "namespace": orders.NAMESPACE}, "data": dict(data)}
        try:
            await self._client.create(resources.CONFIG_MAP, body, orders.NAMESPACE)
        except errors.AlreadyExists:
            await self._client.patch(resources.CONFIG_MAP, orders.CONFIG_MAP, {"data": dict(data)}, orders.NAMESPACE)


def _summarize(asked: Iterable[str], found: Mapping[str, Report]) -> CheckpointResult:
    ended = {uid: found[uid] for uid in asked if uid in found and found[uid].state is not State.SENT}
    return CheckpointResult(
        confirmed=frozenset(uid for uid, report in ended.items() if report.state is State.DONE),
        failed={uid: report.message for uid, report in ended.items() if report.state is State.FAILED},
        silent=frozenset(asked) - ended.keys(),
    )


class StoredReports:
    """Reports in the GPUNodes of an informer's store, or of another view in memory."""

    def __init__(self, find_annotations: Callable[[str], Mapping[str, str]]) -> None:
        self._find_annotations = find_annotations

    async def read(self, nodes: Collection[str]) -> Iterable[Reports]:
        return [orders.decode_reports(self._find_annotations(node).get(orders.REPORT_ANNOTATION)) for node in nodes]


class FetchedReports:
    """Reports read from the API server: for commands and processes that do not watch GPUNodes."""

    def __init__(self, client: KubeClient, *, pause: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._client = client
        self._pause = pause

    async def read(self, nodes: Collection[str]) -> Iterable[Reports]:
        await self._pause(_NEXT_READ_S)
        found = []
        for node in nodes:
            try:
                gpu_node = await self._client.get(resources.GPU_NODE, node)
            except errors.NotFound:
                continue
            found.append(orders.decode_reports(gpu_node.metadata.annotations.get(orders.REPORT_ANNOTATION)))
        return found
