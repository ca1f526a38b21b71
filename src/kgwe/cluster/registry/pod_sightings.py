"""Calls about pods that the watch has not shown yet wait here.

kube-scheduler and KGWE watch the same API server and race: a call may be a few milliseconds ahead of our watch. The
answer waits for the pod instead of trusting the call, so nothing is reserved for a pod that may not exist.
"""

from __future__ import annotations

import asyncio
from typing import Final

# Pods that were removed: kube-scheduler may still have them in its queue, and they will not come back.
_KEPT_GONE: Final = 20_000


class PodSightings:
    """Pods that calls wait for, and pods that are gone."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Event] = {}
        self._gone: dict[str, None] = {}

    def note_seen(self, uid: str) -> None:
        """The watch shows the pod."""
        event = self._waiting.get(uid)
        if event is not None:
            event.set()

    def note_gone(self, uid: str) -> None:
        """The pod ended or was deleted."""
        if len(self._gone) >= _KEPT_GONE:
            del self._gone[next(iter(self._gone))]
        self._gone[uid] = None

    def may_come(self, uid: str) -> bool:
        return bool(uid) and uid not in self._gone

    async def wait(self, uid: str, timeout_s: float) -> None:
        """Return when the watch shows the pod, or after the timeout."""
        event = self._waiting.setdefault(uid, asyncio.Event())
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            if self._waiting.get(uid) is event:
                del self._waiting[uid]
