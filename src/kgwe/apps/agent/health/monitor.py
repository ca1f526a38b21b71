"""The health of this node's GPUs, derived from driver reports by the rules of `kgwe.model.health`.

`restore` continues from the published status. `on_events`, `on_readings`, `on_machine` and `on_reset` take
observations; changes call `on_change` at once. `amend_status` adds reliability and incidents to a status.

An event without a GPU counts for the node. If it would make a GPU unhealthy, all GPUs become unhealthy, as with
NVIDIA's device plugin: any of them may be the cause.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import structlog

from kgwe.apps.agent.health import status as health_status
from kgwe.model.gpu.driver_data import Reading
from kgwe.model.health import reliability
from kgwe.model.health import transitions as watching
from kgwe.model.health.health import (
    DEFAULTS,
    STATES,
    HealthAssessment,
    HealthState,
    Incident,
    Policy,
    Watch,
    assess_health,
)
from kgwe.model.health.xids import look_up

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kgwe.kube.api.kgwe import gpunode
    from kgwe.model.gpu.driver_data import Device, Event, Machine

log = structlog.get_logger(__name__)

# Seconds after which a GPU that the driver no longer lists is forgotten.
_FORGOTTEN_S: Final = 86_400.0


class Change(NamedTuple):
    """A change of a GPU's state or of its reason."""

    uuid: str
    before: HealthAssessment
    now: HealthAssessment


class HealthMonitor:
    """Keeps a health record for each GPU."""

    def __init__(
        self,
        *,
        on_change: Callable[[Sequence[Change]], None] = lambda _: None,
        policy: Policy = DEFAULTS,
        wall: Callable[[], float] = time.time,
        boot_id: str = "",
    ) -> None:
        """`boot_id` identifies the boot of the machine. A boot id that differs from the stored one means that all
        GPUs were reset.
        """
        self._on_change = on_change
        self._policy = policy
        self._wall = wall
        self._boot_id = boot_id
        self.watches: dict[str, Watch] = {}
        self._listed_s: dict[str, float] = {}
        self._own = reliability.CLEAN
        self._own_incidents: tuple[Incident, ...] = ()
        self._told: dict[str, float] = {}  # UUID, or empty for the node -> last published score
        self._is_restored = False

    # --- observations -----------------------------------------------------------------------------------

    def restore(self, status: gpunode.GPUNodeStatus) -> None:
        """Continue from the published status, once; events since the start are kept."""
        if self._is_restored:
            return
        self._is_restored = True
        now_s = self._wall()
        self._own = health_status.restore_node_record(status, now_s).charge(self._own.demerits, now_s)
        self._own_incidents = (*health_status.restore_node_incidents(status, now_s), *self._own_incidents)
        if status.reliability is not None:
            self._told[""] = status.reliability.score
        for device in status.gpus:
            watch = health_status.restore_watch(device, status.incidents, now_s, self._policy)
            if self._boot_id and status.bootID not in ("", self._boot_id):
                watch = watching.on_reset(watch, now_s, self._policy)
            seen = self.watches.get(device.uuid)
            for each in seen.incidents if seen else ():
                if each.xid is not None:
                    watch = watching.on_xid(watch, each.xid, now_s, self._policy)
            self.watches[device.uuid] = watch
            self._listed_s.setdefault(device.uuid, now_s)
            if device.reliability is not None:
                self._told[device.uuid] = device.reliability.score

    def on_machine(self, machine: Machine) -> None:
        now_s = self._wall()
        steps: dict[str, Callable[[Watch], Watch]] = {}
        for device in (each for each in machine.devices if each.uuid):
            self._listed_s[device.uuid] = now_s
            steps[device.uuid] = self._check_device(device, now_s)
        self._apply_transitions(steps)
        for uuid in [uuid for uuid, at_s in self._listed_s.items() if now_s - at_s > _FORGOTTEN_S]:
            self.watches.pop(uuid, None)
            self._told.pop(uuid, None)
            del self._listed_s[uuid]

    def _check_device(self, device: Device, now_s: float) -> Callable[[Watch], Watch]:
        if device.is_lost:
            return lambda watch: watching.on_reading(watch, Reading(device.uuid, is_lost=True), now_s, self._policy)
        return lambda watch: watching.on_links(watch, device.links, now_s, self._policy)

    def on_readings(self, readings: Sequence[Reading]) -> None:
        now_s = self._wall()
        # A GPU that was lost before its UUID was read has none.
        self._apply_transitions({each.uuid: self._check_reading(each, now_s) for each in readings if each.uuid})

    def _check_reading(self, reading: Reading, now_s: float) -> Callable[[Watch], Watch]:
        return lambda watch: watching.on_reading(watch, reading, now_s, self._policy)

    def on_events(self, events: Sequence[Event]) -> None:
        now_s = self._wall()
        for event in events:
            xid = look_up(event.xid)
            log.warning("xid", gpu=event.uuid, xid=event.xid, kind=xid.xid_class, reason=xid.reason, action=xid.action)
            hit = [event.uuid] if event.uuid else []
            if not event.uuid:
                self._record_node_incident(event, now_s)
                hit = list(self.watches) if STATES[xid.xid_class] is HealthState.UNHEALTHY else []
            self._apply_transitions({uuid: self._record_xid(event, now_s) for uuid in hit})

    def _record_xid(self, event: Event, now_s: float) -> Callable[[Watch], Watch]:
        return lambda watch: watching.on_xid(watch, event.xid, now_s, self._policy)

    def _record_node_incident(self, event: Event, now_s: float) -> None:
        xid = look_up(event.xid)
        self._own = self._own.charge(watching.WEIGHTS[xid.xid_class], now_s)
        new = Incident(now_s, xid.reason, event.xid, seen_s=now_s)
        self._own_incidents = (*self._own_incidents, new)[-self._policy.incidents_most :]

    def on_reset(self, uuid: str) -> None:
        """Record the reset of a GPU."""
        now_s = self._wall()
        self._apply_transitions({uuid: lambda watch: watching.on_reset(watch, now_s, self._policy)})

    def tick(self) -> None:
        """Apply the passage of time: GPUs without readings for long become unknown."""
        now_s = self._wall()
        self._apply_transitions(
            {uuid: lambda watch: watching.on_silence(watch, now_s, self._policy) for uuid in self.watches}
        )

    async def run(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            self.tick()

    def _apply_transitions(self, steps: dict[str, Callable[[Watch], Watch]]) -> None:
        changes = []
        for uuid, step in steps.items():
            before = self.watches.get(uuid) or Watch.new(self._wall())
            after = self.watches[uuid] = step(before)
            if after is before:
                continue
            was, now = assess_health(before), assess_health(after)
            if (was.state, was.reason, was.last_xid) != (now.state, now.reason, now.last_xid):
                changes.append(Change(uuid, was, now))
        if changes:
            for change in changes:
                log.info("gpu_health", gpu=change.uuid, state=change.now.state, reason=change.now.reason)
            self._on_change(changes)

    # --- reports -----------------------------------------------------------------------------------

    def health_of(self, device: Device) -> gpunode.GPUHealth:
        watch = self.watches.get(device.uuid)
        return health_status.encode_health(watch or Watch.new(self._wall()))

    def amend_status(self, status: gpunode.GPUNodeStatus) -> gpunode.GPUNodeStatus:
        """Return the status with past incidents and the reliability that follows from them."""
        gpus = tuple(msgspec.structs.replace(each, reliability=self._reliability_of(each.uuid)) for each in status.gpus)
        listed = {each.uuid: watch for each in status.gpus if (watch := self.watches.get(each.uuid)) is not None}
        told = health_status.encode_node_reliability(listed.values(), self._own, self._wall(), self._told.get("", 1.0))
        self._told[""] = told.score if told else 1.0
        found = {uuid: watch.incidents for uuid, watch in listed.items()} | {"": self._own_incidents}
        return msgspec.structs.replace(
            status, gpus=gpus, bootID=self._boot_id, reliability=told, incidents=health_status.encode_incidents(found)
        )

    def _reliability_of(self, uuid: str) -> gpunode.Reliability | None:
        watch = self.watches.get(uuid)
        told = health_status.encode_reliability(watch, self._told.get(uuid, 1.0)) if watch else None
        self._told[uuid] = told.score if told else 1.0
        return told
