"""What the driver does not know of the cards it measures: whose processes run on them, which pods were given them, and
what dcgm-exporter sees. Gathered beside the readings, so that nobody waits for it."""

from __future__ import annotations

import asyncio
import collections
import contextlib
from typing import TYPE_CHECKING, Final

import structlog

from kgwe import errors
from kgwe.apps.agent.metrics import sampler
from kgwe.apps.agent.metrics.sampler import Surroundings
from kgwe.hardware.dcgm.scrape import Scraper
from kgwe.hardware.linux import cgroups
from kgwe.model.devices import holdings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from kgwe.apps.agent.devices.node_pods import PodSource
    from kgwe.hardware.kubelet.podresources import PodResources
    from kgwe.kube.api import core
    from kgwe.model.devices.holdings import PodDevices
    from kgwe.model.gpu.driver_data import Machine, Reading
    from kgwe.model.telemetry.sample import Activity, Unit

log = structlog.get_logger(__name__)

_STATIC_UID: Final = "kubernetes.io/config.hash"


class NodeContext:
    """Everything but the driver."""

    def __init__(self, proc: Path, *, dcgm_url: str = "") -> None:
        self._proc = proc
        self._dcgm_url = dcgm_url
        self._activities: Mapping[Unit, Activity] = {}
        self._holders: Mapping[str, Sequence[str]] | None = None
        self._names: Mapping[str, str] = {}
        #: each may be absent; asked at every round
        self.truth: Callable[[], PodResources | None] = lambda: None
        self.pods: Callable[[], PodSource | None] = lambda: None
        self.machine: Callable[[], Machine | None] = lambda: None
        self.mps: Callable[[], Mapping[int, Sequence[int]]] = dict

    def take_surroundings(self, readings: Iterable[Reading]) -> Surroundings:
        mps = self.mps()
        # Clients of an MPS server may be known to the server alone.
        pids = sampler.pids(readings).union(*mps.values())
        uids = cgroups.pods_of(pids, self._proc) if pids else {}
        return Surroundings(
            pods={pid: self._names.get(uid, uid) for pid, uid in uids.items()},
            holders=self._holders,
            mps=mps,
            activities=self._activities,
        )

    async def run(self, every_s: float) -> None:
        async with contextlib.AsyncExitStack() as stack:
            scraper = await stack.enter_async_context(Scraper(self._dcgm_url)) if self._dcgm_url else None
            while True:
                await asyncio.gather(self._scrape_dcgm(scraper), self._list_holders())
                pods = self.pods()
                if pods is not None:
                    self._names = {uid: pod.metadata.key for pod in pods.pods() for uid in _uids(pod)}
                await asyncio.sleep(every_s)

    async def _scrape_dcgm(self, scraper: Scraper | None) -> None:
        if scraper is None:
            return
        try:
            self._activities = await scraper.activities()
        except errors.KgweError as exc:
            log.debug("dcgm_not_read", error=str(exc))
            self._activities = {}

    async def _list_holders(self) -> None:
        truth = self.truth()
        if truth is None:
            return
        try:
            self._holders = map_holders(await truth.list(), self.machine())
        except errors.KgweError as exc:
            log.debug("pod_resources_not_read", error=str(exc))
            self._holders = None


def _uids(pod: core.Pod) -> tuple[str, ...]:
    """A static pod has another uid on its node than in the API: the hash of its file."""
    static = pod.metadata.annotations.get(_STATIC_UID)
    return (pod.metadata.uid, static) if static else (pod.metadata.uid,)


def map_holders(pods: Iterable[PodDevices], machine: Machine | None) -> dict[str, list[str]]:
    """uuid of a card or an instance -> pods that were given it."""
    found: dict[str, list[str]] = collections.defaultdict(list)
    names = holdings.Names.of(machine) if machine is not None else holdings.Names()
    cards = {number: uuid for uuid, number in names.cards.items()}
    slices = {place: uuid for uuid, place in names.slices.items()}
    for pod in pods:
        taken = holdings.taken(pod, names).places
        for number in taken.numbers:
            found[cards[number]].append(pod.key)
        for place in taken.slices:
            found[slices[place]].append(pod.key)
    return dict(found)
