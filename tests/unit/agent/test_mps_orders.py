"""Orders for MPS daemons: what is legal is carried out, what is not is refused with the reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from tests.support.builders.samples import A100, card, cut_into, machine

from kgwe import errors
from kgwe.apps.agent.mps.orders import MpsOrders
from kgwe.hardware.linux import marked_processes
from kgwe.hardware.mps import control
from kgwe.hardware.mps.daemons import MpsDaemons
from kgwe.hardware.mps.desired import DesiredDaemon
from kgwe.local.fleet import mps_control as fake
from kgwe.proto import agent_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MACHINE = machine(
    replace(card(0, A100), compute_capability=(8, 0)),
    replace(card(1, A100, cut=cut_into("3g.40gb@0", index=1)), compute_capability=(8, 0)),
    replace(card(2), compute_capability=(6, 0)),
)


@pytest_asyncio.fixture
async def daemons(tmp_path_factory) -> AsyncIterator[MpsDaemons]:
    folder = tmp_path_factory.mktemp("o")
    made = MpsDaemons(folder / "mps", binary=str(fake.install(folder / "bin")))
    await made.open()
    yield made
    await made.apply([])
    await made.close()
    assert marked_processes.find_processes(control.MARK, control.mark_of(folder / "mps")) == []


def handler(daemons: MpsDaemons, *, is_exclusive: bool = False) -> MpsOrders:
    return MpsOrders(daemons, SimpleNamespace(machine=MACHINE), is_exclusive=is_exclusive)


async def test_a_card_is_shared_with_the_defaults_and_no_longer(daemons):
    orders = handler(daemons, is_exclusive=True)
    reply = await orders.apply_mps(pb.MpsRequest(gpu_uuid="GPU-0", enabled=True))
    assert (reply.running, reply.clients) == (True, 0)
    assert reply.pipe_directory.endswith("GPU-0/pipe")
    assert daemons.wanted == (DesiredDaemon("GPU-0", 25, A100.memory_mib // 8, 8, is_exclusive=True),)
    assert not (await orders.apply_mps(pb.MpsRequest(gpu_uuid="GPU-0"))).running
    assert daemons.wanted == ()


async def test_an_instance_is_shared_with_limits_of_its_own(daemons):
    request = pb.MpsRequest(gpu_uuid="GPU-1", instance_uuid="MIG-1-0", enabled=True)
    request.active_thread_percentage, request.max_clients, request.pinned_memory_limit_mib = 50, 2, 4096
    reply = await handler(daemons, is_exclusive=True).apply_mps(request)
    assert reply.running
    assert daemons.wanted == (DesiredDaemon("MIG-1-0", 50, 4096, 2),)


@pytest.mark.parametrize(
    ("request_", "error", "word"),
    [
        (pb.MpsRequest(gpu_uuid="GPU-1", enabled=True), errors.Permanent, "cannot span"),
        (pb.MpsRequest(gpu_uuid="GPU-2", enabled=True), errors.Permanent, "Volta"),
        (pb.MpsRequest(gpu_uuid="GPU-9", enabled=True), errors.NotFound, "no GPU"),
        (pb.MpsRequest(gpu_uuid="GPU-0", instance_uuid="MIG-1-0", enabled=True), errors.NotFound, "no instance"),
        (pb.MpsRequest(gpu_uuid="GPU-0", max_clients=49, enabled=True), errors.Permanent, "1 to 48"),
    ],
)
async def test_what_is_not_legal_is_refused(daemons, request_, error, word):
    with pytest.raises(error, match=word):
        await handler(daemons).apply_mps(request_)
    assert daemons.wanted == ()


async def test_without_a_machine_it_is_to_be_asked_again(daemons):
    with pytest.raises(errors.Transient):
        await MpsOrders(daemons, SimpleNamespace(machine=None)).apply_mps(pb.MpsRequest(gpu_uuid="GPU-0", enabled=True))


async def test_daemons_and_their_clients_are_metrics(daemons):
    orders = handler(daemons)
    assert orders.render("node-1") == b""
    reply = await orders.apply_mps(pb.MpsRequest(gpu_uuid="GPU-0", enabled=True))
    with fake.connect(Path(reply.pipe_directory), 41), fake.connect(Path(reply.pipe_directory), 42):
        await daemons.read_status()
        text = orders.render("node-1").decode()
    labels = '{uuid="GPU-0",node="node-1"}'
    assert f"kgwe_mps_daemon_up{labels} 1\n" in text
    assert f"kgwe_mps_clients{labels} 2\n" in text
    assert f"kgwe_mps_daemon_restarts_total{labels} 0\n" in text
