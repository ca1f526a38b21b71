"""ApplyMIG on a real agent without an API server: the card is cut when the call returns, or the call says why not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.support.builders import gpus
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.agentapi.client import AgentClient
from kgwe.local.fleet.agents import AgentMachine
from kgwe.proto import agent_pb2 as pb

if TYPE_CHECKING:
    from pathlib import Path


async def up(client: AgentClient) -> str:
    """The UUID of the agent's first card, once it answers."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return (await client.topology()).gpus[0].uuid
            except errors.Transient:
                await asyncio.sleep(0.1)


async def test_a_card_is_cut_by_a_call(tmp_path: Path) -> None:
    with AgentMachine(gpus.box("A100-SXM4-80GB"), tmp_path / "box") as machine:
        machine.start(grpc_insecure="true")
        async with AgentClient(machine.address) as client:
            uuid = await up(client)
            layout = ["3g.40gb@4", "4g.40gb@0"]
            reply = await client.apply_mig(pb.MigRequest(gpu_uuid=uuid, enabled=True, layout=layout))
            assert sorted(f"{each.profile}@{each.start}" for each in reply.instances) == layout
            cuts = machine.hardware.list_instances(0)
            machine.hardware.start_process(0, 4711, memory_mib=10, instance_id=cuts[1].instance_id)
            with pytest.raises(errors.KgweError, match=r"3g.40gb@4 is released"):
                await client.apply_mig(pb.MigRequest(gpu_uuid=uuid, enabled=True, layout=["7g.80gb@0"]))
            with pytest.raises(errors.Permanent, match="is no place on"):
                await client.apply_mig(pb.MigRequest(gpu_uuid=uuid, enabled=True, layout=["3g.40gb@1"]))
            assert machine.hardware.list_instances(0)[-1] == cuts[1], "what is in use stays"
            machine.hardware.stop_process(0, 4711)
            reply = await client.apply_mig(pb.MigRequest(gpu_uuid=uuid, enabled=False))
            assert not reply.instances
            assert machine.hardware.list_instances(0) == ()
