"""A replica that cannot work says so in one line and leads nothing."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest
from tests.support.clusters.bed import Replica
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.kube.crd import definitions
from kgwe.local.host import ports

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.support.clusters.bed import Bed


async def ended(bed: Bed, **settings: str) -> tuple[int, str]:
    """The exit code and all that a replica wrote that should not start."""
    log = bed._logs / "controller-refused.log"
    replica = Replica(bed._kubeconfig, log, command="scheduler", **settings)
    try:
        return await asyncio.to_thread(replica.process.wait, 60), log.read_text()
    finally:
        replica.kill()


async def holder(bed: Bed) -> str:
    try:
        return (await bed.client.get(resources.LEASE, "kgwe-scheduler", "kgwe-system")).spec.holderIdentity
    except errors.NotFound:
        return ""


async def is_free(bed: Bed) -> bool:
    return await holder(bed) == ""


async def says(replica: Replica, words: str) -> bool:
    return words in (await replica.get("/readyz")).text


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await true():  # noqa: ASYNC110 - only asking tells
            await asyncio.sleep(0.1)


def fatal(written: str) -> str:
    """The line that says why it ended."""
    (line,) = [line for line in written.splitlines() if line.startswith("kgwe: ")]
    return line


@pytest.fixture
def port() -> int:
    return ports.allocate(("extender",))["extender"]


async def test_a_port_that_another_program_uses_is_one_fatal_line_before_the_election(bed: Bed, port: int):
    with socket.create_server(("127.0.0.1", port)):
        code, written = await ended(bed, extender_bind_address=f"127.0.0.1:{port}")

    assert code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in fatal(written)
    assert "Traceback" not in written
    assert "leader_elected" not in written
    assert await holder(bed) == ""


async def test_kinds_that_are_not_installed_are_one_fatal_line_before_the_election(bed: Bed, port: int):
    name = "migstrategies.kgwe.nvidia.io"
    await bed.client.delete(resources.CRD, name)
    try:
        async with asyncio.timeout(120):
            while True:
                code, written = await ended(bed, extender_bind_address=f"127.0.0.1:{port}")
                if "not installed" in written:
                    break
    finally:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await definitions.install(bed.client)
                    break
                except errors.KgweError:  # the old one is still being deleted
                    await asyncio.sleep(0.2)

    assert code == 1
    assert name in fatal(written)
    assert "kgwe crds | kubectl apply --server-side -f -" in fatal(written)
    assert "Traceback" not in written
    assert "leader_elected" not in written


async def test_an_address_that_others_can_reach_is_refused_without_certificates(bed: Bed, port: int):
    code, written = await ended(bed, extender_bind_address=f"0.0.0.0:{port}")
    assert code == 1
    assert "extenderTlsClientCaFile" in fatal(written)


async def test_a_replica_that_cannot_listen_gives_the_lease_back_and_keeps_trying(bed: Bed, port: int):
    address = f"127.0.0.1:{port}"
    leader = await bed.controller(command="scheduler", extender_bind_address=address)
    standby = await bed.controller(command="scheduler", extender_bind_address=address)
    assert "standby" in (await standby.get("/readyz")).text  # the leader on this machine has the port: no reason to end

    leader.kill()
    with socket.create_server(("127.0.0.1", port)):
        await until(lambda: says(standby, "cannot listen"))
        await until(lambda: is_free(bed))
        assert standby.process.poll() is None
        assert await standby.metric("kgwe_scheduler_leader") == 0

    await until(lambda: says(standby, "ok"))
    assert await holder(bed) != ""


async def test_certificates_that_cannot_be_read_are_fatal_before_the_election(bed: Bed, port: int, tmp_path: Path):
    file = str(tmp_path / "absent.crt")
    code, written = await ended(
        bed,
        extender_bind_address=f"127.0.0.1:{port}",
        extender_tls_cert_file=file,
        extender_tls_key_file=file,
        extender_tls_client_ca_file=file,
    )
    assert code == 1
    assert f"cannot use certificate {file}" in fatal(written)
    assert "leader_elected" not in written
