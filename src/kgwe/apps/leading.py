"""The leader loop of all apps: wait for the Lease, read the cluster again, act until the Lease is lost."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import structlog

from kgwe import errors
from kgwe.apps import background
from kgwe.kube.api import resources
from kgwe.kube.client.informer import wait_synced
from kgwe.kube.client.lease import LeaderElector, LeaseTimes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from kgwe.kube.client.client import KubeClient
    from kgwe.kube.client.informer import Informer

log = structlog.get_logger(__name__)

#: on the pod of the acting replica: its Service selects pods with this label
LEADER_LABEL: Final = "kgwe.nvidia.io/leader"
_POD_NAME: Final = "KGWE_POD_NAME"
_POD_NAMESPACE: Final = "KGWE_POD_NAMESPACE"
_LOOK_S: Final = 0.2
_RETRY_S: Final = 1.0
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


class LeaderLabel:
    """Keeps a label on the pod of this replica while it acts, so that a Service sends its calls to it."""

    def __init__(self, client: KubeClient, name: str, namespace: str, is_acting: Callable[[], bool]) -> None:
        self._client = client
        self._name = name
        self._namespace = namespace
        self._is_acting = is_acting
        self._written: bool | None = None

    @classmethod
    def from_environment(cls, client: KubeClient, is_acting: Callable[[], bool]) -> Self | None:
        """Return None if the process does not run in a pod that names itself."""
        name, namespace = os.environ.get(_POD_NAME), os.environ.get(_POD_NAMESPACE)
        return cls(client, name, namespace, is_acting) if name and namespace else None

    async def run(self) -> None:
        """Follow the role of the replica until cancelled. The first write removes what an earlier process left."""
        while True:
            try:
                await self.write()
            except errors.KgweError as exc:
                log.warning("leader_label_not_written", pod=self._name, error=str(exc))
                await asyncio.sleep(_RETRY_S)
            await asyncio.sleep(_LOOK_S)

    async def write(self) -> None:
        """Write the label if the role has changed."""
        acting = self._is_acting()
        if acting == self._written:
            return
        change = {"metadata": {"labels": {LEADER_LABEL: "true" if acting else None}}}
        await self._client.patch(resources.POD, self._name, change, self._namespace)
        self._written = acting
