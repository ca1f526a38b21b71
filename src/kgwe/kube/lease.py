"""Leader election on a Lease: of several replicas exactly one acts.

    standby ──(lease free, or unchanged for its whole duration on our clock)──► leader
       ▲                                                                          │
       └──────────(renewal failed for renew_deadline_s, or another took it)───────┘

Clocks of different machines are never compared: a standby measures, on its own monotonic clock, how long
the Lease has not changed. A leader stops calling itself one `renew_deadline_s` after its last renewal,
which is before anybody else may take over (`lease_s`), even when the process was suspended meanwhile:
`is_leader` looks at the clock each time it is asked. Writes carry a resourceVersion, so two candidates
cannot both take the Lease.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import structlog

from kgwe import errors
from kgwe.kube import resources, timestamp

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.kube.api.core import Lease
    from kgwe.kube.client import KubeClient

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class LeaseTimes:
    """Fail-over after a crash takes at most lease_s + retry_s; shorter means more writes and less patience."""

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
        clock: Callable[[], float] = time.monotonic,
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
        self._changed = asyncio.Event()

    def is_leader(self) -> bool:
        """True while our last renewal is recent enough that nobody else can hold the Lease."""
        return self._renewed_at is not None and self._clock() - self._renewed_at < self._times.renew_deadline_s

    def holder(self) -> str:
        """Who holds the Lease as far as we know; empty when nobody does."""
        return self._seen.spec.holderIdentity if self._seen else ""

    async def wait_leading(self) -> None:
        while not self.is_leader():
            self._changed.clear()
            await self._changed.wait()

    async def wait_lost(self) -> None:
        while self.is_leader():
            self._changed.clear()
            # Nobody may tell us: the renewal that would is the very call that hangs. So look at the clock too.
            try:
                await asyncio.wait_for(self._changed.wait(), timeout=self._times.retry_s / 2)
            except TimeoutError:
                continue

    async def run(self) -> None:
        """Campaign until cancelled; then give the Lease up so that a standby need not wait for it to expire."""
        try:
            while True:
                await self._step()
                jitter = 1 + 0.2 * self._rng.random() if not self.is_leader() else 1.0
                await asyncio.sleep(self._times.retry_s * jitter)
        finally:
            await self._release()

    async def _step(self) -> None:
        asked_at = self._clock()
        try:
            # A call that hangs must not outlive the right it is to renew.
            async with asyncio.timeout(self._times.renew_deadline_s):
                held = await self._try_hold(asked_at)
        except (errors.KgweError, TimeoutError) as exc:
            log.warning("lease_attempt_failed", lease=self._name, error=str(exc) or type(exc).__name__)
            held = None
        if held:
            self._become(asked_at)
        elif held is False or not self.is_leader():
            self._become(None)

    def _become(self, renewed_at: float | None) -> None:
        was = self._renewed_at is not None
        self._renewed_at = renewed_at
        if was != (renewed_at is not None):
            log.info("leader_elected" if renewed_at is not None else "leader_lost", lease=self._name, id=self.identity)
            self._changed.set()

    async def _try_hold(self, asked_at: float) -> bool:
        """Take or renew the Lease; False when somebody else holds it."""
        try:
            lease = await self._client.get(resources.LEASE, self._name, self._namespace)
        except errors.NotFound:
            body = {"metadata": {"name": self._name}, "spec": self._spec(None)}
            try:
                self._observe(await self._client.create(resources.LEASE, body, self._namespace), asked_at)
            except errors.AlreadyExists:
                return False
            return True
        if self._seen is None or lease.metadata.resourceVersion != self._seen.metadata.resourceVersion:
            self._observe(lease, asked_at)
        if lease.spec.holderIdentity not in ("", self.identity) and not self._expired(lease):
            return False
        body = {
            "metadata": {"name": self._name, "resourceVersion": lease.metadata.resourceVersion},
            "spec": self._spec(lease),
        }
        try:
            self._observe(await self._client.replace(resources.LEASE, self._name, body, self._namespace), asked_at)
        except errors.Conflict:
            return False
        return True

    def _observe(self, lease: Lease, at: float) -> None:
        self._seen, self._seen_at = lease, at

    def _expired(self, lease: Lease) -> bool:
        lease_s = lease.spec.leaseDurationSeconds or self._times.lease_s
        return self._clock() - self._seen_at >= lease_s

    def _spec(self, old: Lease | None) -> dict[str, object]:
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

    async def _release(self) -> None:
        if self._seen is None or not self.is_leader():
            return
        self._become(None)
        spec = msgspec.to_builtins(self._seen.spec) | {"holderIdentity": "", "leaseDurationSeconds": 1}
        body = {"metadata": {"name": self._name, "resourceVersion": self._seen.metadata.resourceVersion}, "spec": spec}
        try:
            async with asyncio.timeout(2):
                await self._client.replace(resources.LEASE, self._name, body, self._namespace)
        except (errors.KgweError, TimeoutError) as exc:
            log.warning("lease_not_released", lease=self._name, error=str(exc))
