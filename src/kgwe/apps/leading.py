"""The leader loop of all apps: wait for the Lease, read the cluster again, act until the Lease is lost."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from kgwe import errors
from kgwe.apps import background
from kgwe.kube.client.informer import wait_synced
from kgwe.kube.client.lease import LeaderElector, LeaseTimes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from kgwe.kube.client.client import KubeClient
    from kgwe.kube.client.informer import Informer

# Long enough for the largest fleets. A leader that reads nothing for so long keeps others from leading.
_RESYNC_S: Final = 60.0


class LeaseSettings(Protocol):
    """The settings of an app that elects a leader."""

    @property
    def leader_elect(self) -> bool: ...
    @property
    def lease_name(self) -> str: ...
    @property
    def lease_namespace(self) -> str: ...
    @property
    def lease_duration_seconds(self) -> int: ...
    @property
    def renew_deadline_seconds(self) -> float: ...
    @property
    def retry_period_seconds(self) -> float: ...


def make_identity() -> str:
    """A name for this replica that no other replica has."""
    return f"{socket.gethostname()}_{os.getpid()}_{random.randrange(16**6):06x}"  # noqa: S311 - a name


def make_elector(client: KubeClient, settings: LeaseSettings, identity: str) -> LeaderElector:
    times = LeaseTimes(settings.lease_duration_seconds, settings.renew_deadline_seconds, settings.retry_period_seconds)
    return LeaderElector(
        client, name=settings.lease_name, namespace=settings.lease_namespace, identity=identity, times=times
    )


class LeaderLoop:
    """Leads, term by term. Without an elector this replica always leads."""

    def __init__(
        self,
        elector: LeaderElector | None,
        informers: Callable[[], Sequence[Informer[Any]]],
        *,
        resync_s: float = _RESYNC_S,
    ) -> None:
        """`informers`: what the app decides on; a term starts with a fresh read of all of them."""
        self._elector = elector
        self._informers = informers
        self._resync_s = resync_s

    def is_leading(self) -> bool:
        return self._elector is None or self._elector.is_leader()

    def check_leading(self) -> None:
        """Call it before every write: Transient when another replica may hold the Lease by now."""
        if not self.is_leading():
            raise errors.Transient("no longer the leader")

    def describe_unsynced(self) -> str:
        """Why the app does not know the cluster yet; empty: it does."""
        behind = [informer.resource.plural for informer in self._informers() if not informer.has_synced]
        return f"waiting for first list of {', '.join(behind)}" if behind else ""

    async def run(self, stop: asyncio.Event, lead: Callable[[Term], Awaitable[None]]) -> None:
        """Call `lead` for every term until `stop` is set; it returns when the term is over."""
        await background.wait_first(wait_synced(*self._informers()), stop.wait())
        while not stop.is_set():
            if self._elector is not None:
                await background.wait_first(self._elector.wait_leading(), stop.wait())
            if not stop.is_set():
                await lead(Term(self, stop))

    async def wait_lost(self) -> None:
        if self._elector is None:
            await asyncio.Event().wait()
        else:
            await self._elector.wait_lost()

    async def resync(self) -> None:
        """Read everything again. A replica that cannot do so ends, so that another replica may lead."""
        try:
            async with asyncio.timeout(self._resync_s):
                await asyncio.gather(*(informer.resync() for informer in self._informers()))
        except TimeoutError as exc:
            raise errors.Transient(
                f"could not read the cluster within {self._resync_s:.0f} s of becoming leader"
            ) from exc


@dataclass(frozen=True)
class Term:
    """One term of leadership."""

    loop: LeaderLoop
    stop: asyncio.Event

    async def resync(self) -> bool:
        """Read everything again: the previous leader may have written what the watches have not shown yet.

        Returns whether this replica still leads.
        """
        await background.wait_first(self.loop.resync(), self.loop.wait_lost(), self.stop.wait())
        return self.loop.is_leading() and not self.stop.is_set()

    async def wait_end(self) -> None:
        """Return when the Lease is lost or the process stops."""
        await background.wait_first(self.loop.wait_lost(), self.stop.wait())
