"""Checks before a replica campaigns for the Lease: a leader that cannot work would keep others from leading."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from kgwe import errors
from kgwe.kube import dialects
from kgwe.kube.api import resources
from kgwe.telemetry import http

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable

    from kgwe.apps.scheduler.settings import Settings
    from kgwe.kube.api.resources import Resource
    from kgwe.kube.client.client import KubeClient

_OUR_GROUPS: Final = (resources.GPU_WORKLOAD.group, resources.WARP_GPU_WORKLOAD.group)
# A replica that is stopping releases the port within this time.
_TRIES: Final = 50
_PAUSE_S: Final = 0.1


async def check_kinds(client: KubeClient, kinds: Iterable[Resource[Any]]) -> None:
    """Permanent if the API server does not serve a kind of KGWE."""
    ours = [kind for kind in kinds if kind.group in _OUR_GROUPS]
    found = set(await dialects.find_served(client, ours))
    missing = [f"{kind.plural}.{kind.group}" for kind in ours if kind not in found]
    if missing:
        raise errors.Permanent(
            f"KGWE's CRDs are not installed: the API server does not know {', '.join(missing)}. "
            "Run: kgwe crds | kubectl apply --server-side -f -"
        )


class ExtenderPort:
    """The extender's address: only the leader listens there, so replicas on one machine may share it."""

    def __init__(self, settings: Settings, client: KubeClient, identity: str) -> None:
        self.address = http.Address.parse(settings.extender_bind_address)
        self._settings = settings
        self._client = client
        self._machine = machine_of(identity)

    async def check_port(self) -> None:
        """PortTaken when another program has the port; the leader of KGWE on this machine may have it."""
        if await self.is_worth_campaigning():
            return
        try:
            (await self.take_port()).close()
        except http.PortTaken as exc:
            raise http.PortTaken(
                f"{exc}. Another program uses the extender's port: stop it, or change extenderBindAddress"
            ) from exc

    async def take_port(self) -> socket.socket:
        """Bind the port for the leader, after the leader before has released it; PortTaken: it stays in use."""
        for _ in range(_TRIES - 1):
            try:
                return http.bind(self.address)
            except http.PortTaken:
                await asyncio.sleep(_PAUSE_S)
        return http.bind(self.address)

    async def is_worth_campaigning(self) -> bool:
        """Whether the port is free, or will be when the leader on this machine ends."""
        try:
            http.bind(self.address).close()
        except http.PortTaken:
            return await self._leader_is_here()
        return True

    async def _leader_is_here(self) -> bool:
        settings = self._settings
        if not settings.leader_elect:
            return False
        try:
            lease = await self._client.get(resources.LEASE, settings.lease_name, settings.lease_namespace)
        except errors.KgweError:
            return False
        holder = lease.spec.holderIdentity
        return bool(holder) and machine_of(holder) == self._machine


def machine_of(identity: str) -> str:
    """The host name in a replica's identity (HOST_PID_RANDOM)."""
    return identity.rsplit("_", 2)[0]
