"""The devices that pods of this node hold, as the kubelet lists them, compared with their plans.

They are read every few seconds, and soon after an event that may change them. Differences that the scheduler cannot
know (a pod without a plan, or with other devices) are published at once. A confirmed plan waits for the next report;
otherwise each pod would cost two more writes to the API server.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from kgwe import errors
from kgwe.apps.agent.status.publisher import DEVICES_AS_PLANNED as CONDITION
from kgwe.kube.api.kgwe import gpunode
from kgwe.kube.api.meta import Condition
from kgwe.model.devices import assignment, holdings
from kgwe.model.devices.holdings import DeviceNames

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kgwe.apps.agent.node_pods import PodSource
    from kgwe.hardware.kubelet.podresources import PodResources
    from kgwe.kube.api import core
    from kgwe.model.devices.assignment import DeviceSet
    from kgwe.model.devices.holdings import Difference, Holdings
    from kgwe.model.gpu.driver_data import Machine

log = structlog.get_logger(__name__)

_READ_S: Final = 10.0
# The kubelet lists devices a moment after their allocation.
_SOON_S: Final = 0.3
_TOLD: Final = 5
_MOST: Final = 512


class PodHoldings:
    def __init__(
        self,
        truth: PodResources,
        pods: PodSource,
        *,
        prefixes: tuple[str, ...] = ("nvidia.com/",),
        interval_s: float = _READ_S,
        on_news: Callable[[], None] = lambda: None,
        on_difference: Callable[[core.Pod, Difference], None] = lambda _pod, _difference: None,
    ) -> None:
        """`on_news` is called for a change that the scheduler cannot know, `on_difference` once per pod with other
        devices than planned.
        """
        self._truth = truth
        self._pods = pods
        self._prefixes = prefixes
        self._interval_s = interval_s
        self._names = DeviceNames()
        self._soon = asyncio.Event()
        self._is_read = False
        self._surprises: tuple[gpunode.HeldDevices, ...] = ()
        #: pods that hold devices, as published
        self.held: tuple[gpunode.HeldDevices, ...] = ()
        self.differences: tuple[Difference, ...] = ()
        #: why the kubelet's list cannot be read; empty if it can
        self.problem = "not read yet"
        self._on_news = on_news
        self._on_difference = on_difference

    def set_machine(self, machine: Machine) -> None:
        """Set the machine, which names the devices."""
        names = DeviceNames.from_machine(machine)
        if names != self._names:
            self._names = names
            self._soon.set()

    def request_refresh(self) -> None:
        """Read soon: the devices may have changed."""
        self._soon.set()

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            await self.refresh()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._soon.wait()
                await asyncio.sleep(_SOON_S)
            self._soon.clear()

    async def refresh(self) -> None:
        """Read once. Known devices stay known while the kubelet does not respond."""
        try:
            listed = await self._truth.list()
        except errors.KgweError as exc:
            if not self.problem:
                log.warning("pod_resources_not_read", error=str(exc))
            self._set_problem(str(exc))
            return
        mine = holdings.filter_resources(listed, self._prefixes)
        taken = {pod.key: found for pod in mine if (found := holdings.read_holdings(pod, self._names))}
        here = {pod.metadata.key: pod for pod in self._pods.pods()}
        plans = {key: assignment.parse_planned(here[key].metadata.annotations) for key in taken if key in here}
        self._publish(taken, here, plans)

    def _publish(
        self, taken: Mapping[str, Holdings], here: Mapping[str, core.Pod], plans: Mapping[str, DeviceSet]
    ) -> None:
        entries = tuple(_make_entry(key, taken[key], here.get(key)) for key in sorted(taken))[:_MOST]
        differences = holdings.find_differences(plans, taken)
        expected = {key for key, plan in plans.items() if plan == taken[key].places}
        surprises = tuple(each for each in entries if each.pod not in expected)
        news = surprises != self._surprises or differences != self.differences or bool(self.problem)
        for each in set(differences) - set(self.differences):
            log.warning("devices_not_as_planned", pod=each.pod, reason=each.reason, message=each.message)
            if each.pod in here:
                self._on_difference(here[each.pod], each)
        self.held, self.differences, self._surprises = entries, differences, surprises
        self.problem, self._is_read = "", True
        if news:
            self._on_news()

    def _set_problem(self, problem: str) -> None:
        had, self.problem = self.problem, problem
        if not had:
            self._on_news()

    # --- as reported ------------------------------------------------------------------------------------

    def amend_status(self, status: gpunode.GPUNodeStatus) -> gpunode.GPUNodeStatus:
        """Return the status with the devices that pods hold; before the first read, those published earlier."""
        return msgspec.structs.replace(status, held=self.held if self._is_read else status.held)

    def condition(self) -> Condition:
        if self.problem:
            # Without the error itself: its text may differ each time, and each change would be written.
            message = "the devices of pods cannot be read from the kubelet; see the agent's log"
            return Condition(CONDITION, "Unknown", "PodResourcesNotRead", message)
        if not self.differences:
            return Condition(CONDITION, "True", "AsPlanned", "all pods with a plan hold the planned devices")
        told = [f"{each.pod} {each.message}" for each in self.differences[:_TOLD]]
        more = len(self.differences) - len(told)
        message = "; ".join(told) + (f"; {more} more" if more else "")
        return Condition(CONDITION, "False", self.differences[0].reason, message[:1024])


def _make_entry(key: str, mine: Holdings, pod: core.Pod | None) -> gpunode.HeldDevices:
    return gpunode.HeldDevices(
        pod=key,
        uid=pod.metadata.uid if pod is not None else "",
        cards=assignment.format_mask(mine.places.gpus) if mine.places.gpus else "",
        slices=assignment.format_slices(mine.places.slices),
        replicas=mine.replicas,
    )
