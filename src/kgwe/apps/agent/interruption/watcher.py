"""Reads notices every few seconds, and keeps the Node's condition, taint and annotation as they say.

A service that does not answer changes nothing: what was announced stays announced. After a restart the agent reads the
notice again, and finds the Node as it should be.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import structlog

from kgwe import errors
from kgwe.cloud.provider import NoticeKind
from kgwe.kube.api import resources, timestamp
from kgwe.kube.api.resources import Resource
from kgwe.kube.client import client as kube_client
from kgwe.kube.client.events import Event, EventRecorder
from kgwe.kube.translate.interruption import ANNOTATION, CONDITION, TAINT

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.cloud.notices.source import Notice, NoticeSource
    from kgwe.kube.client.client import KubeClient

log = structlog.get_logger(__name__)

_CONTROLLER: Final = "kgwe-agent"
# All fields of a taint, because taints are written back completely.
_WHOLE_NODE: Final = Resource("", "v1", "nodes", "Node", namespaced=False, type=dict[str, Any])
_ORDER: Final = (NoticeKind.TERMINATION, NoticeKind.MAINTENANCE, NoticeKind.REBALANCE)


def choose_notice(notices: tuple[Notice, ...]) -> Notice | None:
    """Return the notice that the Node shows: a certain end before a likely one, then the earliest."""
    return min(notices, key=lambda each: (_ORDER.index(each.kind), each.deadline_at or float("inf")), default=None)


class InterruptionWatcher:
    """The notices of one node."""

    def __init__(
        self,
        client: KubeClient,
        node: str,
        source: NoticeSource,
        *,
        interval_s: float,
        failures: dict[str, str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._node = node
        self._source = source
        self._interval_s = interval_s
        self._failures = failures
        self._clock = clock
        self._events = EventRecorder(client, controller=_CONTROLLER, instance=node)
        self._written: str | None = None
        """The notice that the Node shows; empty for none, None if that is not known."""

    async def run(self) -> None:
        recording = asyncio.create_task(self._events.run())
        try:
            while True:
                await self.step()
                await asyncio.sleep(self._interval_s)
        finally:
            recording.cancel()
            await asyncio.gather(recording, return_exceptions=True)

    async def step(self) -> None:
        """Read once, and write if something changed."""
        try:
            notice = choose_notice(await self._source.read(self._clock()))
            name = notice.notice_id if notice else ""
            if name != self._written:
                await self._write(notice)
                self._written = name
            self._failures.pop("interruption notices", None)
        except errors.KgweError as exc:
            if "interruption notices" not in self._failures:
                log.warning("notices_not_handled", node=self._node, error=str(exc))
            self._failures["interruption notices"] = str(exc)

    async def _write(self, notice: Notice | None) -> None:
        """Write taint and annotation first: the condition makes the scheduler act, and it reads both."""
        before = await kube_client.retry_conflict(lambda: self._write_node(notice))
        shown = next(
            (each for each in before.get("status", {}).get("conditions", ()) if each["type"] == CONDITION), None
        )
        if notice is None and shown is None:
            return
        at = timestamp.format_time(self._clock())
        condition = {
            "type": CONDITION,
            "status": "True" if notice else "False",
            "reason": notice.reason if notice else "NoNotice",
            "message": notice.message if notice else "no interruption is announced",
            "lastHeartbeatTime": at,
            "lastTransitionTime": at,
        }
        body = {"metadata": {"name": self._node}, "status": {"conditions": [condition]}}
        about = await self._client.apply(resources.NODE, body, subresource="status")
        if notice:
            log.warning("interruption_announced", node=self._node, notice=notice.notice_id, reason=notice.reason)
            self._events.record(
                Event(resources.NODE, about.metadata, "Warning", notice.reason, notice.message, "Watch")
            )

    async def _write_node(self, notice: Notice | None) -> dict[str, Any]:
        """Set or remove the taint and the annotation; return the Node as it was."""
        node = await self._client.get(_WHOLE_NODE, self._node)
        taints = node.get("spec", {}).get("taints", [])
        others = [taint for taint in taints if taint["key"] != TAINT]
        wanted = [*others, {"key": TAINT, "value": notice.reason, "effect": "NoSchedule"}] if notice else others
        text = None
        if notice:
            at = "-" if notice.deadline_at is None else timestamp.format_time(notice.deadline_at)
            text = f"{at} {notice.notice_id}"
        if taints != wanted or node["metadata"].get("annotations", {}).get(ANNOTATION) != text:
            body = {
                "metadata": {
                    "resourceVersion": node["metadata"]["resourceVersion"],
                    "annotations": {ANNOTATION: text},
                },
                "spec": {"taints": wanted},
            }
            await self._client.patch(_WHOLE_NODE, self._node, body)
        return node
