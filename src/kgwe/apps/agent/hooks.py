"""The hooks through which features contribute to the agent's readings, reports and services."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

import structlog

from kgwe.apps.agent.status import gpunode_status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kgwe.apps.agent.status.gpunode_status import HealthOf
    from kgwe.kube.api.kgwe.gpunode import GPUNodeStatus
    from kgwe.kube.api.meta import Condition
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


@dataclass(slots=True, kw_only=True)
class Hooks:
    """The contributions of the features. The agent calls them; features add to them in the order of `features.py`."""

    #: health of a GPU in the report
    health_of: HealthOf = gpunode_status.basic_health
    #: UUIDs of GPUs and slices that are about to change and must not be allocated
    withheld_devices: Callable[[], frozenset[str]] = frozenset
    #: PID of an MPS server -> PIDs of its clients
    mps_servers: Callable[[], Mapping[int, Sequence[int]]] = dict
    #: values of the newest readings that the telemetry stream aggregates over time
    series: Callable[[], Mapping[Series, float | None]] = dict
    #: implements ApplyMIG; None if disabled
    mig: MigHandler | None = None
    #: implements ApplyMPS; None if disabled
    mps: MpsHandler | None = None

    #: each returns the status with its own fields changed
    amend_status: list[Callable[[GPUNodeStatus], GPUNodeStatus]] = field(default_factory=list)
    #: each returns a condition of the GPUNode
    conditions: list[Callable[[], Condition]] = field(default_factory=list)
    #: each returns lines for /metrics
    renderers: list[Callable[[], bytes]] = field(default_factory=list)
    #: called with each new status
    on_status: list[Callable[[GPUNodeStatus], None]] = field(default_factory=list)
    #: called with each new state of the machine
    on_machine: list[Callable[[Machine], None]] = field(default_factory=list)
    #: called with each set of readings
    on_readings: list[Callable[[Sequence[Reading]], None]] = field(default_factory=list)
    #: called with the driver's events (XIDs)
    on_events: list[Callable[[Sequence[Event]], None]] = field(default_factory=list)
    #: called with the UUID of a GPU that was reset
    on_reset: list[Callable[[str], None]] = field(default_factory=list)
    #: called with kind and size of each write to the API server
    on_write: list[Callable[[str, int], None]] = field(default_factory=list)

    def call_on_reset(self, uuid: str) -> None:
        for listener in self.on_reset:
            listener(uuid)

    def call_on_write(self, kind: str, size: int) -> None:
        for listener in self.on_write:
            listener(kind, size)


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
