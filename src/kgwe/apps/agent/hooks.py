"""Features as values: the hooks that the agent calls, and the tasks that it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import structlog

from kgwe.apps.agent.status import gpunode_status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from kgwe.apps.agent.status.gpunode_status import HealthOf
    from kgwe.kube.api import core
    from kgwe.kube.api.kgwe.gpunode import GPUNode, GPUNodeStatus
    from kgwe.kube.api.meta import Condition
    from kgwe.kube.client.informer import Change
    from kgwe.model.gpu.driver_data import Event, Instance, Machine, Reading
    from kgwe.model.telemetry.sample import Series
    from kgwe.proto import agent_pb2 as pb

log = structlog.get_logger(__name__)
T = TypeVar("T")
R = TypeVar("R")


class MigHandler(Protocol):
    async def apply_layout(self, uuid: str, *, enabled: bool, layout: Sequence[str]) -> Sequence[Instance]:
        """Partition the GPU and return its MIG instances. Raise Conflict if a device in use prevents it."""
        ...


class MpsHandler(Protocol):
    async def apply_mps(self, request: pb.MpsRequest) -> pb.MpsReply:
        """Start, change or stop the MPS daemon of a GPU or MIG instance."""
        ...


class Task(NamedTuple):
    """A task of a feature, which the agent runs under supervision."""

    name: str
    run: Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One feature of the agent: its tasks and the hooks that it implements. None: it does not implement the hook."""

    name: str
    tasks: tuple[Task, ...] = ()

    # --- called by the agent ----------------------------------------------------------------------------
    #: health of a GPU in the report
    health_of: HealthOf | None = None
    #: returns the status with its own fields changed
    amend_status: Callable[[GPUNodeStatus], GPUNodeStatus] | None = None
    #: returns a condition of the GPUNode
    condition: Callable[[], Condition] | None = None
    #: called with each new status
    on_status: Callable[[GPUNodeStatus], None] | None = None
    #: called with each new state of the machine
    on_machine: Callable[[Machine], None] | None = None
    #: called with each set of readings
    on_readings: Callable[[Sequence[Reading]], None] | None = None
    #: called with the driver's events (XIDs)
    on_events: Callable[[Sequence[Event]], None] | None = None
    #: called with each change of the node's GPUNode
    on_gpunode: Callable[[Change[GPUNode]], None] | None = None
    #: values of the newest readings that the telemetry stream aggregates over time
    series: Callable[[], Mapping[Series, float | None]] | None = None
    #: implements ApplyMIG
    mig: MigHandler | None = None
    #: implements ApplyMPS
    mps: MpsHandler | None = None

    # --- used by features that are built later ----------------------------------------------------------
    #: called with the UUID of a GPU that was reset
    on_reset: Callable[[str], None] | None = None
    #: called with each change of a pod of the node
    on_pod: Callable[[Change[core.Pod]], None] | None = None
    #: called after the kubelet allocated devices
    on_allocation: Callable[[], None] | None = None
    #: UUIDs of GPUs and slices that are about to change and must not be allocated
    withheld_devices: Callable[[], frozenset[str]] | None = None
    #: PID of an MPS server -> PIDs of its clients
    mps_servers: Callable[[], Mapping[int, Sequence[int]]] | None = None
    #: returns lines for /metrics
    render: Callable[[], bytes] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """The hooks of all features, in the order of the features."""

    health_of: HealthOf = gpunode_status.basic_health
    series: Callable[[], Mapping[Series, float | None]] = dict
    mig: MigHandler | None = None
    mps: MpsHandler | None = None
    amend_status: tuple[Callable[[GPUNodeStatus], GPUNodeStatus], ...] = ()
    conditions: tuple[Callable[[], Condition], ...] = ()
    on_status: tuple[Callable[[GPUNodeStatus], None], ...] = ()
    on_machine: tuple[Callable[[Machine], None], ...] = ()
    on_readings: tuple[Callable[[Sequence[Reading]], None], ...] = ()
    on_events: tuple[Callable[[Sequence[Event]], None], ...] = ()
    on_gpunode: tuple[Callable[[Change[GPUNode]], None], ...] = ()


def combine_features(features: Sequence[Feature]) -> Hooks:
    """Return the hooks of all features. Of the hooks with one implementation, the first counts."""
    return Hooks(
        health_of=find_first(each.health_of for each in features) or gpunode_status.basic_health,
        series=find_first(each.series for each in features) or dict,
        mig=find_first(each.mig for each in features),
        mps=find_first(each.mps for each in features),
        amend_status=drop_none(each.amend_status for each in features),
        conditions=drop_none(each.condition for each in features),
        on_status=drop_none(each.on_status for each in features),
        on_machine=drop_none(each.on_machine for each in features),
        on_readings=drop_none(each.on_readings for each in features),
        on_events=drop_none(each.on_events for each in features),
        on_gpunode=drop_none(each.on_gpunode for each in features),
    )


def find_first(hooks: Iterable[T | None]) -> T | None:
    return next((each for each in hooks if each is not None), None)


def drop_none(hooks: Iterable[T | None]) -> tuple[T, ...]:
    return tuple(each for each in hooks if each is not None)


class HookRunner:
    """Calls hooks, so that a failing one does not stop the others. A failure stays in `problems` until the hook
    succeeds.
    """

    def __init__(self, problems: dict[str, str]) -> None:
        self._problems = problems

    def call_all(self, listeners: Iterable[Callable[[T], None]], value: T) -> None:
        for listener in listeners:
            self.call(listener, value, None)

    def call(self, hook: Callable[[T], R], value: T, otherwise: R) -> R:
        """Return the result of the hook for `value`, or `otherwise` if it fails."""
        name = getattr(hook, "__qualname__", repr(hook))
        try:
            made = hook(value)
        except Exception as exc:  # a failing feature must not end the report
            if name not in self._problems:
                log.exception("listener_failed", listener=name)
            self._problems[name] = f"{type(exc).__name__}: {exc}"
            return otherwise
        self._problems.pop(name, None)
        return made
