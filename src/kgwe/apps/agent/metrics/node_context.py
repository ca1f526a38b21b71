"""Data about the GPUs that the driver does not have: pods of processes, devices of pods, and dcgm-exporter's values.

A separate task collects it, so that readings never wait for it.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
from typing import TYPE_CHECKING, Final

import structlog

from kgwe import errors
from kgwe.apps.agent.metrics import sampler
from kgwe.apps.agent.metrics.sampler import Surroundings
from kgwe.hardware.dcgm.scrape import DcgmScraper
from kgwe.hardware.linux import cgroups
from kgwe.model.devices import holdings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from kgwe.apps.agent.node_pods import PodSource
    from kgwe.hardware.kubelet.podresources import PodResources
    from kgwe.kube.api import core
    from kgwe.model.devices.holdings import PodDevices
    from kgwe.model.gpu.driver_data import Machine, Reading
    from kgwe.model.telemetry.sample import Activity, Unit

log = structlog.get_logger(__name__)

_STATIC_UID: Final = "kubernetes.io/config.hash"


class NodeContext:
    """Collects data from processes, the kubelet and dcgm-exporter."""

    def __init__(
        self,
        proc: Path,
        *,
        machine: Callable[[], Machine | None] = lambda: None,
        pods: PodSource | None = None,
        pod_resources: PodResources | None = None,
        mps_servers: Callable[[], Mapping[int, Sequence[int]]] = dict,
        dcgm_url: str = "",
    ) -> None:
        """`pods`, `pod_resources` and `dcgm_url` may be None; their data is then unknown."""
        self._proc = proc
        self._machine = machine
        self._pods = pods
        self._pod_resources = pod_resources
        self._mps_servers = mps_servers
        self._dcgm_url = dcgm_url
        self._activities: Mapping[Unit, Activity] = {}
        self._holders: Mapping[str, Sequence[str]] | None = None
        self._names: Mapping[str, str] = {}

    def take_surroundings(self, readings: Iterable[Reading]) -> Surroundings:
        mps = self._mps_servers()
        # Clients of an MPS server may be known only to the server.
        pids = sampler.list_pids(readings).union(*mps.values())
        uids = cgroups.map_pods(pids, self._proc) if pids else {}
        return Surroundings(
            pods={pid: self._names.get(uid, uid) for pid, uid in uids.items()},
            holders=self._holders,
            mps=mps,
            activities=self._activities,
        )

    async def run(self, every_s: float) -> None:
        async with contextlib.AsyncExitStack() as stack:
            scraper = await stack.enter_async_context(DcgmScraper(self._dcgm_url)) if self._dcgm_url else None
            while True:
                await asyncio.gather(self._scrape_dcgm(scraper), self._list_holders())
                if self._pods is not None:
                    self._names = {uid: pod.metadata.key for pod in self._pods.pods() for uid in _list_uids(pod)}
                await asyncio.sleep(every_s)

    async def _scrape_dcgm(self, scraper: DcgmScraper | None) -> None:
        if scraper is None:
            return
        try:
            self._activities = await scraper.read_activities()
        except errors.KgweError as exc:
            log.debug("dcgm_not_read", error=str(exc))
            self._activities = {}

    async def _list_holders(self) -> None:
        if self._pod_resources is None:
            return
        try:
            self._holders = map_holders(await self._pod_resources.list(), self._machine())
        except errors.KgweError as exc:
            log.debug("pod_resources_not_read", error=str(exc))
            self._holders = None


def _list_uids(pod: core.Pod) -> tuple[str, ...]:
    """Return the uids of a pod. A static pod has another uid on its node than in the API: the hash of its file."""
    static = pod.metadata.annotations.get(_STATIC_UID)
    return (pod.metadata.uid, static) if static else (pod.metadata.uid,)


def map_holders(pods: Iterable[PodDevices], machine: Machine | None) -> dict[str, list[str]]:
    """Return UUID of a GPU or slice -> pods that hold it."""
    found: dict[str, list[str]] = collections.defaultdict(list)
    names = holdings.DeviceNames.from_machine(machine) if machine is not None else holdings.DeviceNames()
    cards = {number: uuid for uuid, number in names.gpus.items()}
    slices = {place: uuid for uuid, place in names.slices.items()}
    for pod in pods:
        taken = holdings.read_holdings(pod, names).places
        for number in taken.numbers:
            found[cards[number]].append(pod.key)
        for place in taken.slices:
            found[slices[place]].append(pod.key)
    return dict(found)
