"""Calls about pods that the watch has not shown yet wait for it here.

kube-scheduler and KGWE watch the same API server and race: a call may be a few milliseconds ahead of our watch. The
answer waits for the pod rather than trusting the call, so nothing is ever held for a pod that may not exist.
"""

from __future__ import annotations

import asyncio
from typing import Final

# Pods that came and went: kube-scheduler may still have them in its queue, and they will not come again.
_KEPT_GONE: Final = 20_000


class Sightings:
    """Pods that are waited for, and pods that are gone."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Event] = {}
        self._gone: dict[str, None] = {}

    def saw(self, uid: str) -> None:
        """The watch shows the pod."""
        event = self._waiting.get(uid)
        if event is not None:
            event.set()

    def lost(self, uid: str) -> None:
        """The pod ended or is gone."""
        if len(self._gone) >= _KEPT_GONE:
            del self._gone[next(iter(self._gone))]
        self._gone[uid] = None

    def may_come(self, uid: str) -> bool:
        return bool(uid) and uid not in self._gone

    async def wait(self, uid: str, timeout_s: float) -> None:
        """Return when the watch shows the pod, or when time is up."""
        event = self._waiting.setdefault(uid, asyncio.Event())
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            if self._waiting.get(uid) is event:
                del self._waiting[uid]
