"""Handles MPS orders over gRPC, and MPS metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.apps.agent.metrics.exporter import render_labels
from kgwe.apps.agent.metrics.families import make_counter, make_gauge
from kgwe.hardware.mps.daemons import MpsDaemons, State
from kgwe.hardware.mps.desired import DesiredDaemon
from kgwe.proto import agent_pb2 as pb
from kgwe.sharing import mps
from kgwe.sharing.mps import Limits

if TYPE_CHECKING:
    from typing import Protocol

    from kgwe.hardware.mps.daemons import Status
    from kgwe.model.gpu.driver_data import Machine
    from kgwe.sharing.mps import Target

    class MachineSource(Protocol):
        """A source of the machine."""

        @property
        def machine(self) -> Machine | None: ...


UP: Final = make_gauge(
    "kgwe_mps_daemon_up", "1 if the MPS daemon of the GPU or MIG instance runs, 0 if it should run and does not."
)
CLIENTS: Final = make_gauge("kgwe_mps_clients", "Client processes of the MPS daemon of the GPU or MIG instance.")
RESTARTS: Final = make_counter("kgwe_mps_daemon_restarts_total", "Unexpected exits of the MPS daemon.")


class MpsOrders:
    """Passes orders to the daemons, if the GPU exists and allows MPS."""

    def __init__(self, daemons: MpsDaemons, node: MachineSource, *, is_exclusive: bool = False) -> None:
        """With `is_exclusive`, shared whole GPUs accept processes only through their daemon."""
        self._daemons = daemons
        self._node = node
        self._is_exclusive = is_exclusive

    async def apply_mps(self, request: pb.MpsRequest) -> pb.MpsReply:
        uuid = request.instance_uuid or request.gpu_uuid
        if not request.enabled:
            left = await self._daemons.stop_daemon(uuid)
            return pb.MpsReply(running=False) if left is None else _reply(left)
        target = self._find_target(request)
        limits = Limits(
            thread_percentage=_describe_limits(request, "active_thread_percentage", mps.THREAD_PERCENTAGE),
            memory_mib=request.pinned_memory_limit_mib if request.HasField("pinned_memory_limit_mib") else None,
            max_clients=_describe_limits(request, "max_clients", mps.MAX_CLIENTS),
            is_exclusive=self._is_exclusive and not target.is_instance,
        )
        if wrong := mps.find_problems(target, limits):
            raise errors.Permanent("; ".join(wrong))
        wish = DesiredDaemon(
            uuid,
            thread_percentage=limits.thread_percentage,
            memory_mib=mps.memory_limit_mib(target, limits),
            max_clients=limits.max_clients,
            is_exclusive=limits.is_exclusive,
        )
        status = await self._daemons.start_daemon(wish)
        if status.state is State.FAILED:
            raise errors.Transient(f"the MPS daemon of {uuid} is not running yet: {status.problem}")
        return _reply(status)

    def render(self, node: str) -> bytes:
        """Return the /metrics lines about MPS."""
        told = self._daemons.last_status()
        text = []
        for family, values in (
            (UP, [int(each.state is not State.FAILED) for each in told]),
            (CLIENTS, [len(each.clients) for each in told]),
            (RESTARTS, [each.restarts for each in told]),
        ):
            lines = [
                f"{family.name}{render_labels(('uuid', each.uuid), ('node', node))}{value}\n"
                for each, value in zip(told, values, strict=True)
            ]
            text += [family.header, *lines] if lines else []
        return "".join(text).encode()

    def _find_target(self, request: pb.MpsRequest) -> Target:
        machine = self._node.machine
        if machine is None:
            raise errors.Transient("the GPUs have not been read yet")
        card = next((each for each in machine.devices if each.uuid == request.gpu_uuid), None)
        if card is None:
            raise errors.NotFound(f"no GPU {request.gpu_uuid} on this node")
        if request.instance_uuid and request.instance_uuid not in {each.uuid for each in card.mig.instances}:
            raise errors.NotFound(f"{card.uuid} has no instance {request.instance_uuid}")
        return mps.list_targets(machine)[request.instance_uuid or request.gpu_uuid]


def _describe_limits(request: pb.MpsRequest, name: str, default: int) -> int:
    return int(getattr(request, name)) if request.HasField(name) else default


def _reply(status: Status) -> pb.MpsReply:
    return pb.MpsReply(
        running=status.state is not State.FAILED, clients=len(status.clients), pipe_directory=status.pipe_directory
    )
