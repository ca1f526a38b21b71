"""Partitions the GPUs of this machine (MIG) as the GPUNode's spec or a gRPC call requires.

    observe ──► decide (kgwe.sharing) ──► withhold what has to change ──► observe again ──► one step ──► observe …

Each round starts from the driver's state, so the process may be killed at any time. Devices that must change are
withheld first: the device plugin stops advertising them, and the GPUNode shows it. Only then are their users listed,
so that no device is taken from a pod that started in between. The agent waits for pods in the way and never stops
them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
import structlog

from kgwe import errors
from kgwe.kube.api.kgwe.gpunode import MIGLayout
from kgwe.kube.translate import mig_layouts
from kgwe.model.gpu import catalog
from kgwe.model.gpu.mig import Phase
from kgwe.sharing.mig import attempt, lifecycle
from kgwe.sharing.mig.lifecycle import Event

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from kgwe.hardware.driver import GpuDriver
    from kgwe.kube.api.kgwe.gpunode import GPUNode, GPUNodeStatus
    from kgwe.kube.client.informer import Change
    from kgwe.model.gpu import mig
    from kgwe.model.gpu.driver_data import Device, Instance
    from kgwe.sharing.mig.attempt import Attempt, Decision, Limits
    from kgwe.sharing.mig.lifecycle import ObservedGpu, Step

log = structlog.get_logger(__name__)

# Seconds until a GPU is observed again: while it is blocked, and otherwise.
_WAITING_S: Final = 5.0
_IDLE_S: Final = 60.0
_MOST_MESSAGE: Final = 512


class DeviceUsers(Protocol):
    """Returns the UUIDs of GPUs and slices that pods hold, as the kubelet lists them.

    None means unknown; all devices then count as in use.
    """

    async def __call__(self) -> frozenset[str] | None: ...


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a GPU's layout, as shown in the GPUNode."""

    phase: str = ""
    message: str = ""


@dataclass(slots=True)
class _Job:
    """One GPU with a desired layout."""

    layout: MIGLayout
    effort: Attempt | None = None
    progress: Progress = Progress()


@dataclass(frozen=True, slots=True)
class _ObservedGpu:
    device: Device
    geometry: mig.Geometry
    card: ObservedGpu


async def _no_hook() -> None:
    pass


class MigReconfigurer:
    """Brings the GPUs of one machine to the desired MIG layouts."""

    def __init__(
        self,
        driver: GpuDriver,
        *,
        users: DeviceUsers | None = None,
        limits: Limits | None = None,
        retry_s: float = 1.0,
        grace_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        on_withhold: Callable[[], Awaitable[None]] = _no_hook,
        on_change: Callable[[], None] = lambda: None,
        on_reset: Callable[[str], None] = lambda _uuid: None,
    ) -> None:
        """`users` is None if only processes show usage, as without a kubelet.

        `grace_s` is the time until `users` shows allocations from before the withholding. `on_withhold` is called
        when `withheld` changed; after it returns, none of these devices is allocated. `on_change` is called when a
        GPU or its progress changed, `on_reset` with the UUID of a GPU that was reset.
        """
        self._driver = driver
        self._users = users
        self._limits = limits or attempt.Limits()
        self._retry_s = retry_s
        self._grace_s = grace_s
        self._clock = clock
        self._spec: dict[str, MIGLayout] = {}
        self._work: dict[str, _Job] = {}
        self._wake = asyncio.Event()
        self._turn = asyncio.Lock()
        #: UUIDs of GPUs and slices that must not be allocated now
        self.withheld: frozenset[str] = frozenset()
        self._on_withhold = on_withhold
        self._on_change = on_change
        self._on_reset = on_reset

    # --- desired layouts ----------------------------------------------------------------------------------

    def on_gpunode(self, change: Change[GPUNode]) -> None:
        """Handle a change of this machine's GPUNode."""
        self.set_layouts(mig_layouts.read_layouts(change.new))

    def set_layouts(self, layouts: Mapping[str, MIGLayout]) -> None:
        """Set the layouts of the spec. GPUs without one stay unchanged; a layout set by a later call stays."""
        for uuid in self._spec.keys() | layouts.keys():
            if self._spec.get(uuid) != layouts.get(uuid):
                self._set_layout(uuid, layouts.get(uuid))
        self._spec = dict(layouts)

    def _set_layout(self, uuid: str, layout: MIGLayout | None) -> None:
        if layout is None:
            self._work.pop(uuid, None)
        elif uuid not in self._work or self._work[uuid].layout != layout:
            self._work[uuid] = _Job(layout)
        self._wake.set()

    async def apply_layout(self, uuid: str, *, enabled: bool, layout: Sequence[str]) -> Sequence[Instance]:
        """Apply a layout now, for a gRPC call; return the MIG instances.

        Raise Conflict if a device in use prevents it, or another layout replaced it; the GPU then stays unchanged.
        """
        device = next((each for each in (await self._driver.machine()).devices if each.uuid == uuid), None)
        if device is None:
            raise errors.NotFound(f"no GPU {uuid} on this node")
        lifecycle.parse_desired_layout(_find_geometry(device), enabled=enabled, instances=layout)
        self._set_layout(uuid, MIGLayout(enabled, tuple(layout)))
        await self._wait_settled(uuid)
        work = self._work.get(uuid)
        if work is None or work.progress.phase:
            # A call is for now: a layout that cannot be applied now is dropped.
            self._set_layout(uuid, self._spec.get(uuid))
            raise errors.Conflict(work.progress.message if work else "another request replaced this layout")
        devices = (await self._driver.machine()).devices
        return next(each.mig.instances for each in devices if each.uuid == uuid)

    async def _wait_settled(self, uuid: str) -> None:
        """Step until the GPU has its layout or cannot get it now; the attempt has limits."""
        while True:
            is_moving = await self.step()
            work = self._work.get(uuid)
            if work is None or (not is_moving and work.progress.phase != Phase.CUTTING):
                return
            if not is_moving:
                await asyncio.sleep(self._retry_s)

    # --- reports -----------------------------------------------------------------------------------

    @property
    def progress(self) -> Mapping[str, Progress]:
        """Return UUID -> progress; empty for a GPU that has its layout."""
        return {uuid: work.progress for uuid, work in self._work.items()}

    def amend_status(self, status: GPUNodeStatus) -> GPUNodeStatus:
        """Return the status with the progress of each GPU."""
        gpus = []
        for each in status.gpus:
            work = self._work.get(each.uuid)
            if work is not None and work.progress.phase:
                said = msgspec.structs.replace(each.mig, phase=work.progress.phase, message=work.progress.message)
                gpus.append(msgspec.structs.replace(each, mig=said))
            else:
                gpus.append(each)
        return msgspec.structs.replace(status, gpus=tuple(gpus))

    # --- rounds ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Apply the layouts until cancelled."""
        while True:
            self._wake.clear()
            try:
                pause = 0.0 if await self.step() else self._pause_s()
            except errors.KgweError as exc:
                log.warning("gpus_not_read", error=str(exc))
                pause = _WAITING_S
            if pause:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._wake.wait()

    def wake_if_waiting(self) -> None:
        """Start a round now if a GPU waits: a user of its devices may have ended."""
        if any(work.progress.phase for work in self._work.values()):
            self._wake.set()

    def _pause_s(self) -> float:
        phases = {work.progress.phase for work in self._work.values()}
        if Phase.CUTTING in phases:
            return self._retry_s
        return _WAITING_S if phases - {""} else _IDLE_S

    async def step(self) -> bool:
        """Run one round with at most one step per GPU; return whether another round is due at once."""
        async with self._turn:
            if not self._work:
                if self.withheld:
                    await self._withhold_devices(frozenset())
                return False
            seen = await self._observe_gpus()
            decisions = self._decide_steps(seen)
            withheld = self._find_changing_devices(seen, decisions)
            if withheld - self.withheld:
                # A device may have been allocated until now, which takes a moment to show: observe again.
                await self._withhold_devices(withheld | self.withheld)
                await asyncio.sleep(self._grace_s)
                return True
            worked = [
                await self._run_step(seen[uuid], decision) for uuid, decision in decisions.items() if decision.step
            ]
            if withheld != self.withheld and not worked:
                await self._withhold_devices(withheld)
            return any(worked)

    async def _observe_gpus(self) -> dict[str, _ObservedGpu]:
        machine = await self._driver.machine()
        held = frozenset() if self._users is None else await self._users()
        devices = [each for each in machine.devices if each.uuid in self._work]
        turning = [each for each in devices if each.mig.is_enabled != self._work[each.uuid].layout.enabled]
        busy: set[str] = set()
        if turning:
            readings = await self._driver.readings()
            busy = {each.uuid for each in readings if any(process.instance_id is None for process in each.processes)}
        seen = {}
        for device in devices:
            try:
                geometry = _find_geometry(device)
            except errors.Permanent as exc:
                self._set_progress(device.uuid, Phase.FAILED, str(exc))
                continue
            card = lifecycle.observe_gpu(geometry, device, held, is_busy=device.uuid in busy)
            seen[device.uuid] = _ObservedGpu(device, geometry, card)
        for uuid in self._work.keys() - {each.uuid for each in devices}:
            self._set_progress(uuid, Phase.FAILED, "no such GPU on this node")
        return seen

    def _decide_steps(self, seen: Mapping[str, _ObservedGpu]) -> dict[str, Decision]:
        now_s, found = self._clock(), {}
        for uuid, each in seen.items():
            work = self._work[uuid]
            if each.device.is_lost:
                self._set_progress(uuid, Phase.FAILED, "GPU lost: it has fallen off the bus")
                continue
            if work.effort is None:
                try:
                    wish = lifecycle.parse_desired_layout(
                        each.geometry, enabled=work.layout.enabled, instances=work.layout.instances
                    )
                except errors.Permanent as exc:
                    self._set_progress(uuid, Phase.FAILED, str(exc))
                    continue
                work.effort = attempt.start_attempt(each.card, wish, now_s)
            decision = attempt.decide_step(each.geometry, work.effort, each.card, now_s, self._limits)
            work.effort = decision.attempt
            self._set_progress(uuid, decision.phase, decision.message)
            found[uuid] = decision
        return found

    def _find_changing_devices(
        self, seen: Mapping[str, _ObservedGpu], decisions: Mapping[str, Decision]
    ) -> frozenset[str]:
        """Return the devices that differ from the desired layout (the whole GPU, or slices), or are being drained."""
        found: set[str] = set()
        for uuid, decision in decisions.items():
            target, device = decision.target, seen[uuid].device
            if target is None:
                continue
            if target.is_enabled and not device.mig.is_enabled:
                found.add(uuid)
            stay = {(place.profile.name, place.start) for place in target.layout}
            found |= {
                each.uuid for each in device.mig.instances if each.uuid and (each.profile, each.start) not in stay
            }
        for uuid, each in seen.items():
            # Pods are being drained from these; no other pod may get one.
            kept = self._work[uuid].layout.withheld
            found |= {one.uuid for one in each.device.mig.instances if f"{one.profile}@{one.start}" in kept}
        return frozenset(found)

    async def _withhold_devices(self, devices: frozenset[str]) -> None:
        self.withheld = devices
        await self._on_withhold()
        self._on_change()

    async def _run_step(self, seen: _ObservedGpu, decision: Decision) -> bool:
        """Run one step; return whether the next may follow at once."""
        uuid, step = seen.device.uuid, decision.step
        work = self._work.get(uuid)
        if step is None or work is None:
            return False
        try:
            await self._call_driver(uuid, step)
        except errors.KgweError as exc:
            is_final = isinstance(exc, errors.Permanent)
            log.warning("mig_step_failed", uuid=uuid, step=str(step), error=str(exc), final=is_final)
            work.effort = attempt.record_failure(
                decision.attempt, step, str(exc), self._clock(), self._limits, is_final=is_final
            )
            return is_final
        log.info("mig_step", uuid=uuid, step=str(step))
        work.effort = attempt.record_success(decision.attempt)
        self._on_change()
        return True

    async def _call_driver(self, uuid: str, step: Step) -> None:
        if step.place is None:
            if step.event is Event.RESET:
                await self._driver.reset(uuid)
                self._on_reset(uuid)
            else:
                await self._driver.set_mig_mode(uuid, enabled=step.event is Event.ENABLE)
        elif step.event is Event.CREATE:
            await self._driver.create_instance(uuid, step.place.profile.name, step.place.start)
        else:
            with contextlib.suppress(errors.NotFound):
                await self._driver.destroy_instance(uuid, step.instance_id)

    def _set_progress(self, uuid: str, phase: str, message: str) -> None:
        work = self._work[uuid]
        progress = Progress(phase, message[:_MOST_MESSAGE])
        if progress != work.progress:
            work.progress = progress
            if phase in (Phase.FAILED, Phase.ROLLED_BACK):
                log.warning("mig_layout_not_applied", uuid=uuid, phase=phase, reason=message)
            self._on_change()


def _find_geometry(device: Device) -> mig.Geometry:
    geometry = catalog.find_model(device.product).geometry
    if geometry is None or not device.mig.is_capable:
        raise errors.Permanent(f"{device.product} does not support MIG")
    return geometry
