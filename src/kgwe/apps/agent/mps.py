"""Orders for MPS daemons over gRPC."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgwe import errors
from kgwe.hardware.mps import MpsDaemons, State, Wish
from kgwe.proto import agent_pb2 as pb

if TYPE_CHECKING:
    from kgwe.apps.agent.main import Agent
    from kgwe.hardware.mps import Status


class Handler:
    """Gives them to the daemons, after a look whether there is such a card."""

    def __init__(self, daemons: MpsDaemons, agent: Agent) -> None:
        self._daemons = daemons
        self._agent = agent

    async def apply_mps(self, request: pb.MpsRequest) -> pb.MpsReply:
        uuid = request.instance_uuid or request.gpu_uuid
        if not request.enabled:
            left = await self._daemons.drop(uuid)
            return pb.MpsReply(running=False) if left is None else _reply(left)
        self._check(request)
        default = Wish(uuid)
        wish = Wish(
            uuid,
            thread_percentage=_given(request, "active_thread_percentage", default.thread_percentage),
            memory_mib=request.pinned_memory_limit_mib if request.HasField("pinned_memory_limit_mib") else None,
            max_clients=_given(request, "max_clients", default.max_clients),
        )
        status = await self._daemons.put(wish)
        if status.state is State.FAILED:
            raise errors.Transient(f"the MPS daemon of {uuid} does not run yet: {status.problem}")
        return _reply(status)

    def _check(self, request: pb.MpsRequest) -> None:
        """A whole card that is cut has no MPS daemon of its own; its instances have."""
        machine = self._agent.machine
        card = next((each for each in machine.devices if each.uuid == request.gpu_uuid), None) if machine else None
        if card is None:
            raise errors.NotFound(f"there is no card {request.gpu_uuid} here")
        if request.instance_uuid:
            if request.instance_uuid not in {each.uuid for each in card.mig.instances}:
                raise errors.NotFound(f"{card.uuid} has no instance {request.instance_uuid}")
        elif card.mig.is_enabled:
            raise errors.Conflict(f"{card.uuid} is cut: name one of its instances")


def _given(request: pb.MpsRequest, name: str, default: int) -> int:
    return int(getattr(request, name)) if request.HasField(name) else default


def _reply(status: Status) -> pb.MpsReply:
    return pb.MpsReply(
        running=status.state is not State.FAILED, clients=len(status.clients), pipe_directory=status.pipe_directory
    )
