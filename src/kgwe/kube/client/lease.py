"""Leader election on a Lease: of several replicas exactly one acts.

    standby ──(lease free, or unchanged for its whole duration on our clock)──► leader
       ▲                                                                          │
       └──────────(renewal failed for renew_deadline_s, or another took it)───────┘

Clocks of different machines are never compared: a standby measures, on its own clock and from the moment the
answer arrived, how long the Lease has not been renewed. A leader counts from the moment it asked, and stops
calling itself one `renew_deadline_s` after its last renewal, which is before another replica may take over
(`lease_s`), even when the process or the machine was suspended meanwhile: `is_leader` looks at the clock each
time it is asked. Writes carry a resourceVersion, so two candidates cannot both take the Lease.

What this cannot see: a Lease deleted by hand while it is held. A replica that has watched the holder waits it out,
but a replica started just then has not, and for up to `retry_s` there may be two.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import structlog

from kgwe import errors
from kgwe.kube.api import resources, timestamp
from kgwe.kube.client import client as kube_client

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.kube.api.core import Lease
    from kgwe.kube.client.client import KubeClient

log = structlog.get_logger(__name__)

# Giving the Lease up is a courtesy; it must not hold up a process that has to stop.
_RELEASE_S = 2.0


def _clock_through_suspend() -> float:
    """Monotonic, and counting while the machine sleeps: CLOCK_MONOTONIC stands still then, and a leader on a laptop
    or a paused virtual machine would wake up believing that its last renewal was a moment ago."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


@dataclass(frozen=True)
class LeaseTimes:
    """Fail-over after a crash takes at most lease_s + 1.4 retry_s and a write; shorter means more writes and less
    patience."""

    lease_s: int = 7
    renew_deadline_s: float = 5.0
    retry_s: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.retry_s < self.renew_deadline_s < self.lease_s:
            raise errors.Permanent(
                f"leader election times must satisfy 0 < retry ({self.retry_s}) < renew deadline "
                f"({self.renew_deadline_s}) < lease duration ({self.lease_s})"
            )


class LeaderElector:
    """Holds one Lease, or waits for it; ask `is_leader` before every write."""

    def __init__(
        self,
        client: KubeClient,
        *,
        name: str,
        namespace: str,
        identity: str,
        times: LeaseTimes | None = None,
        clock: Callable[[], float] = _clock_through_suspend,
        rng: random.Random | None = None,
    ) -> None:
        self.identity = identity
        self._client = client
        self._name = name
        self._namespace = namespace
        self._times = times or LeaseTimes()
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 - spreads load, guards nothing
        self._renewed_at: float | None = None
        self._seen: Lease | None = None
        self._seen_at = 0.0
        self._announced = False
        self._unsure = False  # a write was sent and its outcome is not known
        self._changed = asyncio.Event()
        self._campaigning = asyncio.Event()
        self._campaigning.set()
        self._stepping = asyncio.Lock()

    def is_leader(self) -> bool:
        """True while our last renewal is recent enough that no other replica can hold the Lease."""
        return self._renewed_at is not None and self._clock() - self._renewed_at < self._times.renew_deadline_s

    def holder(self) -> str:
        """Return the known holder of the Lease; empty: none."""
        return self._seen.spec.holderIdentity if self._seen else ""

    async def wait_leading(self) -> None:
        while not self.is_leader():
            self._changed.clear()
            await self._changed.wait()

    async def wait_lost(self) -> None:
        while self.is_leader():
            self._changed.clear()
            # Nothing else may notice: the renewal that would is the call that hangs. So check the clock too.
            # Not `asyncio.wait_for`: in Python 3.11 it loses a cancellation that comes together with a change.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._times.retry_s / 2):
                    await self._changed.wait()

    async def run(self) -> None:
        """Campaign until cancelled; then give the Lease up so that a standby need not wait for it to expire."""
        try:
            while True:
                await self._campaigning.wait()
                async with self._stepping:
                    held = await self._renew_or_acquire() if self._campaigning.is_set() else False
                await asyncio.sleep(self._pause_s(held=held))
        finally:
            await self._release_lease()

    async def withdraw(self) -> None:
        """Give the Lease back, and leave it to others until `campaign` is called."""
        self._campaigning.clear()
        async with self._stepping:
            await self._release_lease()

    def campaign(self) -> None:
        """Be a candidate again."""
        self._campaigning.set()

    async def _renew_or_acquire(self) -> bool | None:
        asked_at = self._clock()
        # A renewal that hangs (a connection half open) leaves a leader time for another one.
        patience_s = self._times.renew_deadline_s / (2 if self.is_leader() else 1)
        try:
            async with asyncio.timeout(patience_s):
                held = await self._try_hold()
        except (errors.KgweError, TimeoutError) as exc:
            log.warning("lease_attempt_failed", lease=self._name, error=str(exc) or type(exc).__name__)
            held = None
        if held:
            self._set_leading(asked_at)
        elif held is False or not self.is_leader():
            self._set_leading(None)
        return held

    def _pause_s(self, *, held: bool | None) -> float:
        """Until the next attempt: a leader that failed hurries, a standby comes when the Lease may have expired."""
        retry_s = self._times.retry_s
        if self.is_leader():
            return retry_s if held else retry_s / 4
        pause_s, spread_s = retry_s, 0.2 * retry_s * self._rng.random()
        if held is False and self._seen is not None:
            pause_s = min(max(self._expires_at(self._seen) - self._clock(), 0.0), retry_s)
        return pause_s + spread_s

    def _set_leading(self, renewed_at: float | None) -> None:
        self._renewed_at = renewed_at
        leads = self.is_leader()
        if leads != self._announced:
            self._announced = leads
            log.info("leader_elected" if leads else "leader_lost", lease=self._name, id=self.identity)
        # Always: leadership also lapses by time alone, and waiters must see every renewal after that.
        self._changed.set()

    async def _try_hold(self) -> bool | None:
        """Take or renew the Lease; False when another holds it, None when another only wrote it."""
        if self.is_leader() and self._seen is not None:
            try:
                await self._write_lease(self._seen)
            except (errors.Conflict, errors.NotFound):
                pass  # not as we left it: look
            else:
                return True
        try:
            lease = await self._client.get(resources.LEASE, self._name, self._namespace)
        except errors.NotFound:
            return await self._create_lease()
        self._observe_lease(lease)
        if self._is_held_by_other(lease):
            return False
        try:
            await self._write_lease(lease)
        except errors.Conflict:
            return None
        return True

    async def _create_lease(self) -> bool:
        if self._seen is not None and self._is_held_by_other(self._seen):
            return False  # deleted under its holder, who may act until it would have expired
        body = {"metadata": {"name": self._name}, "spec": self._build_spec(None)}
        self._unsure = True
        try:
            stored = await self._client.create(resources.LEASE, body, self._namespace)
        except errors.AlreadyExists:
            self._unsure = False
            return False
        self._unsure = False
        self._observe_lease(stored)
        return True

    async def _write_lease(self, lease: Lease) -> None:
        # The metadata keeps foreign labels; the uid makes the write fail if the Lease was created again meanwhile.
        body = {"metadata": msgspec.to_builtins(lease.metadata), "spec": self._build_spec(lease)}
        self._unsure = True
        try:
            stored = await self._client.replace(resources.LEASE, self._name, body, self._namespace)
        except (errors.Conflict, errors.NotFound):
            self._unsure = False
            raise
        self._unsure = False
        self._observe_lease(stored)

    def _observe_lease(self, lease: Lease) -> None:
        # A label put on it is no sign of life: only what the holder writes counts.
        if self._seen is None or lease.spec != self._seen.spec:
            self._seen_at = self._clock()
        self._seen = lease

    def _is_held_by_other(self, lease: Lease) -> bool:
        if lease.spec.holderIdentity in ("", self.identity):
            return False
        return self._clock() < self._expires_at(lease)

    def _expires_at(self, lease: Lease) -> float:
        """On our clock, for a Lease just observed."""
        return self._seen_at + (lease.spec.leaseDurationSeconds or self._times.lease_s)

    def _build_spec(self, old: Lease | None) -> dict[str, object]:
        now = timestamp.micro()
        mine = old is not None and old.spec.holderIdentity == self.identity
        transitions = old.spec.leaseTransitions if old else 0
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self._times.lease_s,
            "acquireTime": old.spec.acquireTime if old and mine else now,
            "renewTime": now,
            "leaseTransitions": transitions if old is None or mine else transitions + 1,
        }

    async def _release_lease(self) -> None:
        if not (self.is_leader() or self._unsure):
            return
        self._set_leading(None)
        try:
            async with asyncio.timeout(_RELEASE_S):
                # The last renewal may have been cut off after it was sent: read what became of it.
                await kube_client.retry_conflict(self._give_up)
        except (errors.KgweError, TimeoutError) as exc:
            log.warning("lease_not_released", lease=self._name, error=str(exc) or type(exc).__name__)

    async def _give_up(self) -> None:
        lease = await self._client.get(resources.LEASE, self._name, self._namespace)
        if lease.spec.holderIdentity != self.identity:
            return
        spec = msgspec.to_builtins(lease.spec) | {"holderIdentity": "", "leaseDurationSeconds": 1}
        body = {"metadata": msgspec.to_builtins(lease.metadata), "spec": spec}
        await self._client.replace(resources.LEASE, self._name, body, self._namespace)
