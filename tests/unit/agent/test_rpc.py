"""The agent over gRPC: who may ask, who may order, and that nobody can make it grow."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import itertools
import random
import shutil
from typing import TYPE_CHECKING, Any, cast

import grpc
import msgspec
import pytest
from tests.support.fakes.pki import Authority
from tests.support.machines import memory_driver
from tests.support.machines.agent_settings import QUICK
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.agentapi import messages
from kgwe.agentapi.client import Access, AgentClient
from kgwe.apps.agent import rpc
from kgwe.apps.agent.features import BuiltFeatures, build_features
from kgwe.apps.agent.hooks import Feature
from kgwe.apps.agent.main import Agent, build_agent
from kgwe.apps.agent.settings import Settings, load
from kgwe.apps.agent.status import gpunode_status
from kgwe.apps.discovery.live import LiveFleet
from kgwe.kube.client import manifests
from kgwe.local.cluster import certificates
from kgwe.local.host import assets
from kgwe.model.gpu.driver_data import Instance, Reading
from kgwe.model.telemetry.sample import NodeReadings
from kgwe.proto import agent_pb2 as pb
from kgwe.rpc.tls import Files

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from kgwe.apps.agent.services import AgentServices


class Knife:
    """Takes orders to cut."""

    def __init__(self) -> None:
        self.orders: list[tuple[str, bool, tuple[str, ...]]] = []

    async def apply_layout(self, uuid: str, *, enabled: bool, layout: Sequence[str]) -> Sequence[Instance]:
        if uuid == "busy":
            raise errors.Conflict("a pod uses it")
        self.orders.append((uuid, enabled, tuple(layout)))
        return [Instance("MIG-1", 1, "3g.40gb", 4, 4, 40960)]


def cutting(knife: Knife) -> Feature:
    return Feature(name="mig", mig=knife)


@contextlib.asynccontextmanager
async def running(
    settings: Settings = QUICK, driver: memory_driver.MemoryDriver | None = None, *, first: Sequence[Feature] = ()
) -> AsyncIterator[Agent]:
    """An agent with the features `first` before those of the settings."""
    memory = driver or memory_driver.MemoryDriver(memory_driver.machine(memory_driver.node()))

    async def opened() -> memory_driver.MemoryDriver:
        return memory

    def build(services: AgentServices) -> BuiltFeatures:
        built = build_features(services)
        return BuiltFeatures((*first, *built.features), built.problems)

    agent = build_agent(settings, opened, build=build)
    stop = asyncio.Event()
    task = asyncio.create_task(agent.run(stop))
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not agent.services.ports.grpc or agent.reporter.machine is None:
                assert not task.done()
                await asyncio.sleep(0.005)
        yield agent
    finally:
        stop.set()
        await task


@pytest.fixture
def pki(tmp_path: Path) -> certificates.Certificates:
    return certificates.ensure(tmp_path / "pki", dt.datetime.now(dt.UTC))


def secure(pki: certificates.Certificates, **more: Any) -> Settings:
    pair = pki.pair(certificates.SERVER)
    files = {"tls_cert_file": pair.certificate, "tls_key_file": pair.key, "tls_ca_file": pki.authority}
    return msgspec.structs.replace(QUICK, **{key: str(path) for key, path in files.items()}, **more)


def access(pki: certificates.Certificates, identity: certificates.Identity = certificates.ADMIN) -> Access:
    pair = pki.pair(identity)
    return Access(Files(pair.certificate, pair.key, pki.authority), server_name="localhost")


async def test_topology_health_and_ping_say_what_the_driver_says():
    node = memory_driver.node("v100")
    machine = memory_driver.machine(node)
    async with (
        running(driver=memory_driver.MemoryDriver(machine)) as agent,
        AgentClient(f"127.0.0.1:{agent.services.ports.grpc}") as client,
    ):
        told = await client.topology()
        assert (told.node, len(told.gpus)) == ("n1", 8)
        assert [list(row.cells) for row in told.matrix] == node.machine.wiring.matrix()
        assert {each.state for each in (await client.health()).gpus} == {"Healthy"}
        pong = await client.ping()
        assert (pong.driver_ready, list(pong.problems)) == (True, [])


async def test_topology_is_read_again_only_when_asked_or_old():
    memory = memory_driver.MemoryDriver(memory_driver.machine(memory_driver.node()))
    settings = msgspec.structs.replace(QUICK, discovery_interval_seconds=3600.0)
    async with running(settings, memory) as agent, AgentClient(f"127.0.0.1:{agent.services.ports.grpc}") as client:
        looks = memory.machine_calls
        for _ in range(5):
            await client.topology()
        assert memory.machine_calls == looks
        memory.now = memory_driver.link_down(memory.now, 0, 0)
        assert (await client.topology()).gpus[0].nvlink.links == 18
        assert (await client.topology(fresh=True)).gpus[0].nvlink.links == 17
        assert memory.machine_calls == looks + 1


async def test_many_callers_cause_one_look():
    memory = memory_driver.MemoryDriver(memory_driver.machine(memory_driver.node()))
    settings = msgspec.structs.replace(QUICK, discovery_interval_seconds=3600.0)
    async with running(settings, memory) as agent:
        looks = memory.machine_calls
        slow = asyncio.Event()
        machine = memory.machine

        async def slowly() -> Any:
            await slow.wait()
            return await machine()

        memory.machine = slowly  # type: ignore[method-assign] # a driver that takes its time
        callers = [asyncio.create_task(agent.topology(fresh=True)) for _ in range(20)]
        await asyncio.sleep(0.01)
        slow.set()
        await asyncio.gather(*callers)
        assert memory.machine_calls == looks + 1


async def test_telemetry_streams_until_the_caller_has_enough():
    async with running() as agent, AgentClient(f"127.0.0.1:{agent.services.ports.grpc}") as client:
        uuid = agent.reporter.status.gpus[2].uuid
        got = []
        async with contextlib.aclosing(client.telemetry(pb.TelemetryRequest(uuids=[uuid]))) as messages:
            async for message in messages:
                got.append(message)
                if len(got) == 3:
                    break
        assert [[each.uuid for each in message.readings] for message in got] == [[uuid]] * 3
        assert got[0].readings[0].util == 0.5
        assert not got[0].readings[0].HasField("gpu_c")
        async with asyncio.timeout(PATIENCE_S):
            while len(agent.hub):  # noqa: ASYNC110 - the server notices when it notices
                await asyncio.sleep(0.01)


async def test_a_caller_that_never_reads_costs_a_queue_and_no_more():
    settings = msgspec.structs.replace(QUICK, telemetry_interval_seconds=3600.0)
    async with running(settings) as agent, AgentClient(f"127.0.0.1:{agent.services.ports.grpc}") as client:
        stalled = client.telemetry()
        first = await anext(stalled)
        assert first.missed == 0
        text = "x" * 2000
        for number in itertools.count():
            # What the transport buffers is bounded; once it is full, samples are dropped.
            agent.hub.publish(NodeReadings(number, [Reading(f"{text}-{card}", util=0.1) for card in range(64)]))
            await asyncio.sleep(0)
            watcher = next(iter(agent.hub._watchers))
            if watcher._missed > 20:
                break
            assert number < 5000, "a stalled caller is fed for ever"
        assert len(watcher._queue) == 4
        await stalled.aclose()


async def test_there_is_a_limit_to_watchers():
    settings = msgspec.structs.replace(QUICK, grpc_watchers=1)
    async with running(settings) as agent, AgentClient(f"127.0.0.1:{agent.services.ports.grpc}") as client:
        first = client.telemetry()
        await anext(first)
        with pytest.raises(errors.Transient, match="maximum of 1 watchers"):
            await anext(client.telemetry())
        await first.aclose()


_METHODS = ("Ping", "GetTopology", "GetHealth", "ApplyMIG", "ApplyMPS", "WatchTelemetry")


async def _send(channel: grpc.aio.Channel, method: str, data: bytes) -> grpc.StatusCode:
    """What raw bytes are answered with; of a stream, its first message."""
    path = f"/{messages.SERVICE}/{method}"
    try:
        if method == "WatchTelemetry":
            call: Any = channel.unary_stream(path)(cast("Any", data), timeout=10)
            await call.read()
            call.cancel()
        else:
            await channel.unary_unary(path)(cast("Any", data), timeout=10)
    except grpc.aio.AioRpcError as exc:
        return exc.code()
    return grpc.StatusCode.OK


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",  # a field without an end
        b"\x0a\xff\xff\xff\xff\x0f",  # a string longer than the message
        b"\x0a\x02\xff\xfe",  # a string that is no UTF-8
        b"\x0b" * 1000,  # groups within groups
    ],
)
@pytest.mark.parametrize("method", _METHODS)
async def test_what_is_no_message_is_an_invalid_argument(method: str, data: bytes, capfd: pytest.CaptureFixture[str]):
    if data.startswith(b"\x0a\x02") and method not in ("ApplyMIG", "ApplyMPS"):
        pytest.skip("its first field is no string")
    async with running() as agent, grpc.aio.insecure_channel(f"127.0.0.1:{agent.services.ports.grpc}") as channel:
        assert await _send(channel, method, data) is grpc.StatusCode.INVALID_ARGUMENT
    assert "Traceback" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("interval_s", [-1.0, float("nan"), float("inf"), 1e300])
async def test_an_interval_that_is_none_is_an_invalid_argument(interval_s: float):
    request = pb.TelemetryRequest(interval_s=interval_s).SerializeToString()
    async with running() as agent, grpc.aio.insecure_channel(f"127.0.0.1:{agent.services.ports.grpc}") as channel:
        assert await _send(channel, "WatchTelemetry", request) is grpc.StatusCode.INVALID_ARGUMENT


async def test_random_bytes_get_an_answer_that_blames_the_caller():
    rng = random.Random(7)
    found: set[grpc.StatusCode] = set()
    settings = msgspec.structs.replace(QUICK, grpc_insecure=True)
    async with (
        running(settings, first=[cutting(Knife())]) as agent,
        grpc.aio.insecure_channel(f"127.0.0.1:{agent.services.ports.grpc}") as channel,
    ):
        for number in range(600):
            found.add(await _send(channel, _METHODS[number % len(_METHODS)], rng.randbytes(rng.randint(0, 40))))
        assert await _send(channel, "Ping", b"") is grpc.StatusCode.OK
    # UNIMPLEMENTED: this agent runs no MPS daemons.
    assert found <= {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED}


async def test_without_certificates_orders_are_refused():
    knife = Knife()
    async with (
        running(first=[cutting(knife)]) as agent,
        AgentClient(f"127.0.0.1:{agent.services.ports.grpc}") as client,
    ):
        with pytest.raises(errors.Permanent, match="may not order changes"):
            await client.apply_mig(pb.MigRequest(gpu_uuid="GPU-1"))
        assert not knife.orders


async def test_an_order_reaches_the_knife_and_refusals_come_back(pki):
    settings = secure(pki, tls_writers=("kgwe:admin",))
    async with running(settings) as agent, AgentClient(f"127.0.0.1:{agent.services.ports.grpc}", access(pki)) as client:
        with pytest.raises(errors.Permanent, match="MIG is disabled"):
            await client.apply_mig(pb.MigRequest(gpu_uuid="GPU-1"))
    knife = Knife()
    async with (
        running(settings, first=[cutting(knife)]) as agent,
        AgentClient(f"127.0.0.1:{agent.services.ports.grpc}", access(pki)) as client,
    ):
        reply = await client.apply_mig(pb.MigRequest(gpu_uuid="GPU-1", enabled=True, layout=["3g.40gb@4"]))
        assert [each.uuid for each in reply.instances] == ["MIG-1"]
        assert knife.orders == [("GPU-1", True, ("3g.40gb@4",))]
        with pytest.raises(errors.Conflict, match="a pod uses it"):
            await client.apply_mig(pb.MigRequest(gpu_uuid="busy"))


async def test_where_writers_are_named_others_may_only_read(pki):
    settings = secure(pki, tls_writers=("system:kube-scheduler",))
    async with running(settings, first=[cutting(Knife())]) as agent:
        address = f"127.0.0.1:{agent.services.ports.grpc}"
        async with AgentClient(address, access(pki)) as client:
            assert (await client.ping()).node == "n1"
            with pytest.raises(errors.Permanent, match="kgwe:admin may not order changes"):
                await client.apply_mig(pb.MigRequest(gpu_uuid="GPU-1"))
        async with AgentClient(address, access(pki, certificates.SCHEDULER)) as client:
            assert (await client.apply_mig(pb.MigRequest(gpu_uuid="GPU-1"))).instances


async def test_where_no_writers_are_named_orders_are_refused(pki):
    knife = Knife()
    async with (
        running(secure(pki), first=[cutting(knife)]) as agent,
        AgentClient(f"127.0.0.1:{agent.services.ports.grpc}", access(pki)) as client,
    ):
        with pytest.raises(errors.Permanent, match="kgwe:admin may not order changes"):
            await client.apply_mig(pb.MigRequest(gpu_uuid="GPU-1"))
        assert not knife.orders


async def test_the_certificate_of_one_node_orders_nothing_on_another(tmp_path):
    authority = Authority(tmp_path)
    writers = {each["name"]: each.get("value", "") for each in _deployed_environment()}["KGWE_AGENT_TLS_WRITERS"]
    settings, knife = _with_files(authority.issue("n1", "kgwe-agent", "n1"), tls_writers=(writers,)), Knife()
    async with running(settings, first=[cutting(knife)]) as agent:
        address = f"127.0.0.1:{agent.services.ports.grpc}"
        for node in ("n2", "n1"):
            files = authority.issue(f"{node}-calls", "kgwe-agent", node)
            async with AgentClient(address, Access(files)) as client:
                assert (await client.ping()).node == "n1"
                with pytest.raises(errors.Permanent, match="may not order changes"):
                    await client.apply_mig(pb.MigRequest(gpu_uuid="GPU-1"))
        assert not knife.orders
        async with AgentClient(address, Access(authority.issue("operator", writers))) as client:
            assert (await client.apply_mig(pb.MigRequest(gpu_uuid="GPU-1"))).instances


async def test_the_agent_of_one_node_is_not_believed_in_place_of_another(tmp_path):
    authority = Authority(tmp_path)
    access = Access(authority.issue("operator", "kgwe-operator"))
    async with running(_with_files(authority.issue("n1", "kgwe-agent", "n1"))) as agent, LiveFleet(access) as live:
        answers = await live.ask(dict.fromkeys(("n1", "n2"), f"127.0.0.1:{agent.services.ports.grpc}"))
        assert answers["n1"].status is not None
        assert answers["n2"].status is None


def test_the_name_that_all_agents_carry_is_no_writer(monkeypatch):
    monkeypatch.setenv("KGWE_AGENT_TLS_WRITERS", "kgwe-operator,kgwe-agent")
    with pytest.raises(errors.Permanent, match="in the certificate of every agent"):
        load()


def _with_files(files: Files, **more: Any) -> Settings:
    named = {"tls_cert_file": files.certificate, "tls_key_file": files.key, "tls_ca_file": files.authority}
    return msgspec.structs.replace(QUICK, **{key: str(path) for key, path in named.items()}, **more)


def _deployed_environment() -> list[dict[str, Any]]:
    documents = manifests.load_manifests(assets.find_asset("deploy/agent.yaml"))
    daemons = next(each for each in documents if each["kind"] == "DaemonSet")
    env: list[dict[str, Any]] = daemons["spec"]["template"]["spec"]["containers"][0]["env"]
    return env


async def test_callers_without_a_certificate_of_ours_are_turned_away(pki, tmp_path):
    others = certificates.ensure(tmp_path / "others", dt.datetime.now(dt.UTC))
    async with running(secure(pki)) as agent:
        address = f"127.0.0.1:{agent.services.ports.grpc}"
        for stranger in (AgentClient(address, access(others)), AgentClient(address)):
            async with stranger:
                with pytest.raises(errors.Transient):
                    await stranger.ping()
        pair = others.pair(certificates.ADMIN)
        mixed = Access(Files(pair.certificate, pair.key, pki.authority), server_name="localhost", deadline_s=2.0)
        async with AgentClient(address, mixed) as stranger:
            with pytest.raises(errors.Transient):
                await stranger.ping()


async def test_new_certificates_are_used_without_a_restart(pki, tmp_path):
    others = certificates.ensure(tmp_path / "others", dt.datetime.now(dt.UTC))
    async with running(secure(pki)) as agent:
        address = f"127.0.0.1:{agent.services.ports.grpc}"
        async with AgentClient(address, access(pki)) as client:
            assert (await client.ping()).node == "n1"
            # Half of a renewal: the new key with the old certificate leaves the old pair in use.
            shutil.copy(others.pair(certificates.SERVER).key, pki.pair(certificates.SERVER).key)
            async with AgentClient(address, access(pki)) as another:
                assert (await another.ping()).node == "n1"
            shutil.copy(others.pair(certificates.SERVER).certificate, pki.pair(certificates.SERVER).certificate)
            shutil.copy(others.authority, pki.authority)
            async with AgentClient(address, access(others)) as renewed:
                assert (await renewed.ping()).node == "n1"


@pytest.mark.parametrize("address", ["0.0.0.0:0", "10.0.0.1:50052"])
async def test_without_certificates_only_this_machine_is_served(address):
    settings = msgspec.structs.replace(QUICK, grpc_bind_address=address)
    with pytest.raises(errors.Permanent, match="needs certificates"):
        async with rpc.serving(build_agent(settings, _no_driver), settings):
            pass


async def test_a_port_without_a_host_means_this_machine_when_there_are_no_certificates():
    settings = msgspec.structs.replace(QUICK, grpc_bind_address=":0")
    async with rpc.serving(build_agent(settings, _no_driver), settings) as port:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        await channel.channel_ready()
        await channel.close()


async def _no_driver() -> memory_driver.MemoryDriver:
    raise errors.Permanent("no libnvidia-ml.so.1")


async def test_without_a_driver_the_agent_says_so():
    agent = build_agent(QUICK, _no_driver)
    stop = asyncio.Event()
    task = asyncio.create_task(agent.run(stop))
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not agent.services.ports.grpc or agent.driver.reason == "Starting":  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        async with AgentClient(f"127.0.0.1:{agent.services.ports.grpc}") as client:
            pong = await client.ping()
            assert (pong.driver_ready, pong.driver_message) == (False, "no libnvidia-ml.so.1")
            with pytest.raises(errors.Transient, match=r"no libnvidia-ml\.so\.1"):
                await client.topology()
    finally:
        stop.set()
        await task


async def test_a_driver_that_goes_leaves_what_was_known():
    memory = memory_driver.MemoryDriver(memory_driver.machine(memory_driver.node()))
    async with running(driver=memory) as agent, AgentClient(f"127.0.0.1:{agent.services.ports.grpc}") as client:
        memory.failure = errors.Transient("did not answer")
        async with asyncio.timeout(PATIENCE_S):
            while agent.driver.is_ready:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        agent.reporter.report()
        assert {each.state for each in (await client.health()).gpus} == {"Unknown"}
        assert len((await client.topology()).gpus) == 8
        memory.failure = None
        async with asyncio.timeout(PATIENCE_S):
            while agent.reporter.status.healthyGPUs != 8:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert agent.reporter.status == gpunode_status.build_status(memory.now)


async def test_a_part_that_breaks_on_what_it_hears_disturbs_nobody():
    memory = memory_driver.MemoryDriver(memory_driver.machine(memory_driver.node()))
    heard: list[int] = []
    is_broken = True

    def broken(status: Any) -> Any:
        if is_broken:
            raise RuntimeError("out of order")
        return status

    listener = Feature(name="listener", on_readings=lambda readings: heard.append(len(readings)))
    shaky = Feature(name="shaky", amend_status=broken, on_readings=broken)
    async with running(driver=memory, first=[shaky, listener]) as agent:
        async with asyncio.timeout(PATIENCE_S):
            while len(heard) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        agent.reporter.report()
        assert agent.reporter.status.healthyGPUs == 8
        assert any("RuntimeError: out of order" in problem for problem in agent.problems)
        is_broken = False
        async with asyncio.timeout(PATIENCE_S):
            while agent.problems:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
