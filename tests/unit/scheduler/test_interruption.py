"""From a notice of the cloud to a recovered gang: scheduler and agents on a cluster in memory, ranks as processes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.clusters.bed import kgwe
from tests.support.fakes.memory_cluster import MemoryCluster
from tests.support.fakes.metadata_service import MetadataService
from tests.support.fakes.receivers import HttpReceiver
from tests.support.machines.ranks import Ranks
from tests.support.patience import until

from kgwe.apps.agent.checkpoint.delivery import Delivery
from kgwe.apps.agent.checkpoint.followed_orders import CheckpointOrders
from kgwe.apps.agent.interruption.watcher import InterruptionWatcher
from kgwe.apps.agent.node_pods import NodePods
from kgwe.apps.scheduler.disruption.interruptions import find_patience
from kgwe.cloud.notices.aws import AwsNotices
from kgwe.cluster.checkpoint import orders
from kgwe.cluster.checkpoint.call import parse_call
from kgwe.hardware.linux.pod_processes import PodProcesses
from kgwe.kube.api import resources, timestamp
from kgwe.kube.client.informer import Informer
from kgwe.kube.translate.interruption import CONDITION, TAINT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class AgentedCluster:
    """A cluster in memory with the agents' notice and checkpoint parts on every node."""

    def __init__(self, cluster: MemoryCluster, ranks: Ranks, service: MetadataService) -> None:
        self.cluster, self.ranks, self.service = cluster, ranks, service
        cluster.api.make_uid = lambda number: f"0a000000-0000-0000-0000-{number:012d}"
        self._tasks: list[asyncio.Task[None]] = []

    async def add_node(self, name: str) -> None:
        client = self.cluster.client
        await self.cluster.node(name)
        await client.create(resources.GPU_NODE, {"metadata": {"name": name}, "spec": {}})
        pods = NodePods(client, name)
        followed = CheckpointOrders(client, name, Delivery(client, PodProcesses(self.ranks.proc)), pods.pods)
        self._tasks += [asyncio.create_task(run()) for run in (pods.run, followed.run)]

    def announce(self, node: str, seconds: float = 120.0) -> None:
        """Let the cloud announce the end of a node, and start the agent's watch of it."""
        at = timestamp.format_time(time.time() + seconds)
        self.service.action = {"action": "terminate", "time": at}
        self.watch(node)

    def watch(self, node: str) -> InterruptionWatcher:
        watcher = InterruptionWatcher(
            self.cluster.client, node, AwsNotices(self.service.url), interval_s=0.05, failures={}
        )
        self._tasks.append(asyncio.create_task(watcher.run()))
        return watcher

    def pods(self) -> dict[str, Any]:
        return {pod["metadata"]["uid"]: pod for pod in self.cluster.objects("/api/v1/pods")}

    def events(self) -> set[str]:
        return {event["reason"] for event in self.cluster.objects("/apis/events.k8s.io/v1/events")}

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.fixture
async def bed(tmp_path) -> AsyncIterator[AgentedCluster]:
    ranks = Ranks(tmp_path)
    with MetadataService().serve() as service:
        async with MemoryCluster() as cluster:
            made = AgentedCluster(cluster, ranks, service)
            try:
                yield made
            finally:
                await made.stop()
                ranks.stop()


def gang(call: str, **spec: Any) -> dict[str, Any]:
    body = kgwe("train", 16, gpusPerPod=4, **spec)
    body["spec"]["podTemplate"]["metadata"]["annotations"]["kgwe.nvidia.io/checkpoint"] = call
    return body


async def test_a_notice_reaches_all_ranks_and_the_gang_recovers_elsewhere(bed: AgentedCluster):
    for number in range(2):
        await bed.add_node(f"n{number}")
    async with bed.cluster.scheduler():
        workload = await bed.cluster.submit(gang("signal=SIGUSR1"))
        await bed.cluster.until_phase(workload, "Running")
        before = bed.pods()
        assert len(before) == 4
        for uid in before:
            bed.ranks.start(uid)
        await bed.add_node("n2")
        bed.announce("n0")
        node = resources.NODE.path(name="n0")
        await until(lambda: all(bed.ranks.read_calls(uid) for uid in before))
        # Each rank exactly once, and also those on the node that stays.
        assert {len(bed.ranks.read_calls(uid)) for uid in before} == {1}
        await bed.cluster.until(
            lambda: (
                len(bed.pods()) == 4 and all(pod["spec"].get("nodeName") in {"n1", "n2"} for pod in bed.pods().values())
            )
        )
        await bed.cluster.until_phase(workload, "Running")
        shown = bed.cluster.api.call("GET", node)
        assert [each["key"] for each in shown["spec"]["taints"]] == [TAINT]
        assert [each["reason"] for each in shown["status"]["conditions"] if each["type"] == CONDITION] == [
            "SpotInterruption"
        ]
        await until(lambda: {"SpotInterruption", "CheckpointConfirmed"} <= bed.events())
        path = f"/api/v1/namespaces/{orders.NAMESPACE}/configmaps/{orders.CONFIG_MAP}"
        assert not bed.cluster.api.call("GET", path).get("data")


async def test_pods_leave_also_if_they_do_not_confirm(bed: AgentedCluster):
    for name in ("n0", "n1"):
        await bed.add_node(name)
    async with bed.cluster.scheduler():
        body = gang("signal=SIGUSR1")
        body["spec"]["gpuRequirements"]["count"] = 8
        workload = await bed.cluster.submit(body)
        await bed.cluster.until_phase(workload, "Running")
        (there,) = {pod["spec"]["nodeName"] for pod in bed.pods().values()}
        bed.announce(there, seconds=1.5)
        await bed.cluster.until(
            lambda: (
                len(bed.pods()) == 2
                and all(pod["spec"].get("nodeName") not in {there, None} for pod in bed.pods().values())
            )
        )
        await until(lambda: "CheckpointIncomplete" in bed.events())


async def test_a_rebalance_recommendation_saves_the_work_and_moves_nothing(bed: AgentedCluster):
    await bed.add_node("n0")
    await bed.add_node("n1")
    async with bed.cluster.scheduler():
        workload = await bed.cluster.submit(gang("signal=SIGUSR1"))
        await bed.cluster.until_phase(workload, "Running")
        before = bed.pods()
        for uid in before:
            bed.ranks.start(uid)
        bed.service.rebalance = {"noticeTime": "2026-01-01T00:00:00Z"}
        bed.watch("n0")
        await until(lambda: "CheckpointConfirmed" in bed.events())
        assert set(bed.pods()) == set(before)
        # The recommendation ends: condition and taint go.
        bed.service.rebalance = None
        node = resources.NODE.path(name="n0")
        await bed.cluster.until(lambda: not bed.cluster.api.call("GET", node)["spec"].get("taints"))
        await bed.cluster.until(
            lambda: (
                {"type": CONDITION, "status": "False"}.items()
                <= bed.cluster.api.call("GET", node)["status"]["conditions"][-1].items()
            )
        )


async def test_a_preempted_gang_checkpoints_before_it_is_stopped(bed: AgentedCluster):
    await bed.add_node("n0")
    async with bed.cluster.scheduler():
        low = gang("signal=SIGUSR1", preemptible=True, priority=1)
        low["spec"]["gpuRequirements"]["count"] = 8
        victim = await bed.cluster.submit(low)
        await bed.cluster.until_phase(victim, "Running")
        before = bed.pods()
        for uid in before:
            bed.ranks.start(uid)
        high = kgwe("urgent", 8, priority=100)
        await bed.cluster.until_phase(await bed.cluster.submit(high), "Running")
        assert {len(bed.ranks.read_calls(uid)) for uid in before} == {1}


async def test_an_order_is_delivered_by_http_to_the_pod_itself_and_to_no_host_port(bed: AgentedCluster):
    await bed.add_node("n0")
    client = bed.cluster.client
    receiver = HttpReceiver()
    with receiver.serve():
        port = int(receiver.url.rpartition(":")[2])
        delivery = Delivery(client, PodProcesses(bed.ranks.proc))
        for name, host in (("own", False), ("host", True)):
            body = {
                "metadata": {"name": name, "annotations": {"kgwe.nvidia.io/checkpoint": f"http={port}/save"}},
                "spec": {"nodeName": "n0", "hostNetwork": host},
                "status": {"phase": "Running", "podIP": "127.0.0.1"},
            }
            pod = await client.create(resources.POD, body, "team")
            order = orders.Order(deadline_at=time.time() + 30, reason="r", pods={})
            report = await delivery.ask(pod, parse_call(f"http={port}/save"), "o", order, lambda: None)
            assert report.state == ("failed" if host else "done")
    assert [request.path for request in receiver.requests] == ["/save"]


async def test_an_agent_that_restarts_asks_nobody_twice(bed: AgentedCluster):
    client = bed.cluster.client
    await bed.add_node("n0")
    meta = {"name": "p", "annotations": {"kgwe.nvidia.io/checkpoint": "signal=SIGUSR1"}}
    body = {"metadata": meta, "spec": {"nodeName": "n0"}, "status": {"phase": "Running"}}
    pod = await client.create(resources.POD, body, "team")
    uid = pod.metadata.uid
    bed.ranks.start(uid)
    order = orders.Order(deadline_at=time.time() + 60, reason="r", pods={uid: "n0"})
    body = {"metadata": {"name": orders.CONFIG_MAP}, "data": {"o": orders.encode_order(order)}}
    await client.create(resources.CONFIG_MAP, body, orders.NAMESPACE)

    def reported() -> str:
        annotations = bed.cluster.api.call("GET", resources.GPU_NODE.path(name="n0"))["metadata"].get("annotations", {})
        return str(annotations.get(orders.REPORT_ANNOTATION, ""))

    await until(lambda: "done" in reported())
    await bed.stop()
    pods = NodePods(client, "n0")
    again = CheckpointOrders(client, "n0", Delivery(client, PodProcesses(bed.ranks.proc)), pods.pods)
    watch = Informer(client, resources.GPU_NODE, field_selector="metadata.name=n0")
    watch.on_change(again.on_gpunode)
    runs = [asyncio.create_task(watch.run())]
    await watch.synced.wait()
    runs.append(asyncio.create_task(again.run()))
    await again.informer.synced.wait()
    await asyncio.sleep(0)
    assert len(bed.ranks.read_calls(uid)) == 1
    for task in runs:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*runs)


@pytest.mark.parametrize(
    ("deadline", "seconds"), [(None, 90.0), (120.0, 90.0), (30.0, 20.0), (1.0, 1.0), (-5.0, 1.0), (3600.0, 3570.0)]
)
def test_a_part_of_the_time_is_kept_for_the_eviction(deadline, seconds):
    assert find_patience(None if deadline is None else 1000.0 + deadline, 1000.0) == pytest.approx(seconds)
