"""The states of a partitioned GPU and its slices, and the steps to a desired layout.

The mode of a GPU, and the life of a slice; transitions that are not in the tables do not happen:

    off ──enable──► enabling ──reset──► on          on ──disable──► disabling ──reset──► off
    absent ──create──► halfway ──ready──► free ──allocate──► allocated ──start──► in use
                          │                ▲ ◄──release────────┘ ▲ ◄────stop──────┘ │
                       destroy             └──stop── released ◄──────release────────┘
                          ▼                            (its pod is gone, a process is still there)
                       halfway ──gone──► absent

Modern GPUs skip `enabling` and `disabling`. A GPU instance exists before its compute instance and after it: halfway
looks the same while a slice is created and while it is destroyed, and the desired layout decides which step follows.

`plan_steps` derives all steps from the observed and the desired layout alone: after a crash at any point, the next call
returns the remaining steps. Every step is idempotent. Slices in use are never touched: steps that they block wait for
their end. `attempt` adds deadlines and retries.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.model.gpu import mig

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kgwe.model.gpu.driver_data import Device, Instance


# --- the tables -----------------------------------------------------------------------------------------


class Mode(enum.StrEnum):
    """MIG mode of a GPU."""

    OFF = "off"
    ENABLING = "enabling"
    """Requested; takes effect at the next reset."""
    ON = "on"
    DISABLING = "disabling"


class Life(enum.StrEnum):
    """The state of a slice."""

    ABSENT = "absent"
    HALFWAY = "halfway"
    """A GPU instance without its compute instance."""
    FREE = "free"
    ALLOCATED = "allocated"
    """Assigned to a pod."""
    IN_USE = "in use"
    """Assigned to a pod, and a process runs on it."""
    RELEASED = "released"
    """Its pod is gone, but a process still runs on it."""


class Event(enum.StrEnum):
    """A transition of a GPU or a slice."""

    ENABLE = "enable"
    DISABLE = "disable"
    RESET = "reset"
    CREATE = "create"
    READY = "ready"
    ALLOCATE = "allocate"
    START = "start"
    STOP = "stop"
    RELEASE = "release"
    DESTROY = "destroy"
    GONE = "gone"


MODES: Final[Mapping[tuple[Mode, Event], Mode]] = {
    (Mode.OFF, Event.ENABLE): Mode.ENABLING,
    (Mode.ENABLING, Event.RESET): Mode.ON,
    (Mode.ENABLING, Event.DISABLE): Mode.OFF,
    (Mode.ON, Event.DISABLE): Mode.DISABLING,
    (Mode.DISABLING, Event.RESET): Mode.OFF,
    (Mode.DISABLING, Event.ENABLE): Mode.ON,
}

LIVES: Final[Mapping[tuple[Life, Event], Life]] = {
    (Life.ABSENT, Event.CREATE): Life.HALFWAY,
    (Life.HALFWAY, Event.CREATE): Life.HALFWAY,
    (Life.HALFWAY, Event.READY): Life.FREE,
    (Life.HALFWAY, Event.DESTROY): Life.HALFWAY,
    (Life.HALFWAY, Event.GONE): Life.ABSENT,
    (Life.FREE, Event.ALLOCATE): Life.ALLOCATED,
    (Life.FREE, Event.DESTROY): Life.HALFWAY,
    (Life.ALLOCATED, Event.START): Life.IN_USE,
    (Life.ALLOCATED, Event.RELEASE): Life.FREE,
    (Life.IN_USE, Event.STOP): Life.ALLOCATED,
    (Life.IN_USE, Event.RELEASE): Life.RELEASED,
    (Life.RELEASED, Event.STOP): Life.FREE,
}


# --- observed and desired state -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Slice:
    """An observed slice."""

    place: mig.Placement
    instance_id: int
    life: Life

    @property
    def name(self) -> str:
        return format_placement(self.place)

    @property
    def may_go(self) -> bool:
        return (self.life, Event.DESTROY) in LIVES


@dataclass(frozen=True, slots=True)
class ObservedGpu:
    """An observed GPU."""

    mode: Mode
    slices: tuple[Slice, ...] = ()
    is_occupied: bool = False
    """A pod or process uses the undivided GPU."""

    @property
    def layout(self) -> tuple[mig.Placement, ...]:
        """The complete slices."""
        return tuple(each.place for each in self.slices if each.life is not Life.HALFWAY)

    @property
    def is_enabled(self) -> bool:
        return self.mode in (Mode.ON, Mode.DISABLING)


@dataclass(frozen=True, slots=True)
class DesiredLayout:
    """The desired state of a GPU: whole, or cut into these slices."""

    is_enabled: bool
    layout: tuple[mig.Placement, ...] = ()


def format_placement(place: mig.Placement) -> str:
    """The text of a placement in a GPUNode."""
    return f"{place.profile.name}@{place.start}"


def parse_desired_layout(geometry: mig.Geometry, *, enabled: bool, instances: Iterable[str]) -> DesiredLayout:
    """The desired layout in a GPUNode; Permanent with the reason if GPUs of this kind do not support it."""
    layout = tuple(mig.parse_placement(geometry, text) for text in instances)
    if layout and not enabled:
        raise errors.Permanent(f"{', '.join(map(format_placement, layout))} need MIG mode, but it is to be off")
    if wrong := mig.find_problems(geometry, layout):
        raise errors.Permanent(f"a {geometry.name} cannot be cut like this: {'; '.join(wrong)}")
    return DesiredLayout(enabled, tuple(sorted(layout, key=lambda place: place.start)))


def observe_gpu(
    geometry: mig.Geometry, device: Device, held: frozenset[str] | None, *, is_busy: bool = False
) -> ObservedGpu:
    """The GPU as the driver reports it.

    `held`: UUIDs of devices that pods have; None: unknown, so every device counts as in use. `is_busy`: processes run
    on the undivided GPU.
    """
    state = device.mig
    if state.is_enabled:
        mode = Mode.DISABLING if state.is_pending else Mode.ON
    else:
        mode = Mode.ENABLING if state.is_pending else Mode.OFF
    slices = tuple(
        Slice(_read_placement(geometry, each), each.instance_id, _read_life(each, held))
        for each in sorted(state.instances, key=lambda each: each.start)
    )
    return ObservedGpu(mode, slices, is_occupied=is_busy or held is None or device.uuid in held)


def _read_life(instance: Instance, held: frozenset[str] | None) -> Life:
    if not instance.uuid:
        return Life.HALFWAY
    if held is None or instance.uuid in held:
        return Life.IN_USE if instance.is_busy else Life.ALLOCATED
    return Life.RELEASED if instance.is_busy else Life.FREE


def _read_placement(geometry: mig.Geometry, instance: Instance) -> mig.Placement:
    known = geometry.profiles.get(instance.profile)
    if known is None:  # created by a tool that knows more profiles
        known = mig.Profile(instance.profile, 0, instance.size, (instance.start,), 1, instance.memory_mib)
    return mig.Placement(known, instance.start)


# --- steps ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """One action on a GPU."""

    event: Event
    place: mig.Placement | None = None
    instance_id: int = -1

    def __str__(self) -> str:
        if self.place is not None:
            return f"{self.event} {format_placement(self.place)}"
        return "reset the GPU" if self.event is Event.RESET else f"{self.event} MIG mode"


@dataclass(frozen=True, slots=True)
class Plan:
    """The remaining steps, in order, and what blocks the others."""

    steps: tuple[Step, ...] = ()
    waits: tuple[str, ...] = ()

    @property
    def is_done(self) -> bool:
        return not self.steps and not self.waits


def plan_steps(geometry: mig.Geometry, gpu: ObservedGpu, desired: DesiredLayout) -> Plan:
    """The remaining steps to the desired layout."""
    if desired.is_enabled:
        opening = _plan_mode_change(gpu, (Event.ENABLE, Mode.ON))
        if opening.waits:
            return opening
        inside = _plan_recut(geometry, gpu, desired.layout)
        return Plan(opening.steps + inside.steps, inside.waits)
    emptied = _plan_recut(geometry, gpu, ())
    closing = Plan() if emptied.waits else _plan_mode_change(gpu, (Event.DISABLE, Mode.OFF))
    return Plan(emptied.steps + closing.steps, emptied.waits + closing.waits)


def _plan_mode_change(gpu: ObservedGpu, goal: tuple[Event, Mode]) -> Plan:
    """Steps to a MIG mode. Only after the mode is requested does the driver show whether a reset is needed."""
    event, mode = goal
    if gpu.mode is mode:
        return Plan()
    step = Step(Event.RESET if MODES.get((gpu.mode, Event.RESET)) is mode else event)
    is_free = not gpu.is_occupied or (gpu.mode, step.event) in ((Mode.ENABLING, event), (Mode.DISABLING, event))
    return Plan((step,)) if is_free else Plan(waits=(f"the GPU is in use, so it cannot {step} now",))


def _plan_recut(geometry: mig.Geometry, gpu: ObservedGpu, layout: Sequence[mig.Placement]) -> Plan:
    wanted = set(layout)
    here = {each.place: each for each in gpu.slices}
    surplus = [each for each in gpu.slices if each.place not in wanted]
    stay = [each for each in surplus if not each.may_go]
    steps = [Step(Event.DESTROY, each.place, each.instance_id) for each in surplus if each.may_go]
    waits = [f"{each.name} is {each.life}" for each in stay]
    kept = [each.place for each in stay] + [place for place in layout if place in here]
    missing = [place for place in layout if place not in here or here[place].life is Life.HALFWAY]
    for place in sorted(missing, key=lambda each: (-each.profile.units, each.start)):
        if place in here:
            steps.append(Step(Event.CREATE, place, here[place].instance_id))
        elif wrong := _find_conflicts(geometry, kept, place):
            waits.append(f"{format_placement(place)} waits: {wrong}")
        else:
            kept.append(place)
            steps.append(Step(Event.CREATE, place))
    return Plan(tuple(steps), tuple(waits))


def _find_conflicts(geometry: mig.Geometry, kept: Sequence[mig.Placement], place: mig.Placement) -> str:
    return "; ".join(mig.find_problems(geometry, [*kept, place]))


def choose_fallback(geometry: mig.Geometry, gpu: ObservedGpu, before: DesiredLayout) -> DesiredLayout:
    """The layout to roll back to: the earlier one, as far as slices in use by now leave room."""
    kept = [each.place for each in gpu.slices if not each.may_go]
    if not before.is_enabled and not kept:
        return DesiredLayout(is_enabled=False)
    for place in before.layout:
        if place not in kept and not _find_conflicts(geometry, kept, place):
            kept.append(place)
    return DesiredLayout(is_enabled=True, layout=tuple(sorted(kept, key=lambda each: each.start)))
