"""The checkpoint call of a pod, orders and reports, and the caller on an API server in memory."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.fakes.memory_api import MemoryApi
from tests.support.patience import until

from kgwe import errors
from kgwe.cluster.checkpoint import orders
from kgwe.cluster.checkpoint.call import ANNOTATION, CheckpointCall, find_call, parse_call
from kgwe.cluster.checkpoint.caller import CheckpointCaller, CheckpointResult, FetchedReports
from kgwe.cluster.checkpoint.orders import Order, Report, State
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("signal=SIGUSR1", CheckpointCall(signal="SIGUSR1")),
        ("signal=SIGUSR2,file=/ckpt/.done", CheckpointCall(signal="SIGUSR2", file="/ckpt/.done")),
        ("http=8080/checkpoint", CheckpointCall(port=8080, path="/checkpoint")),
        ("http=8080", CheckpointCall(port=8080, path="/")),
    ],
)
def test_a_call_is_read(text, call):
    assert parse_call(text) == call
    assert find_call({ANNOTATION: text}) == call


@pytest.mark.parametrize(
    "text",
    [
        "",
        "signal=SIGKILL",
        "signal=9",
        "signal=SIGUSR1,file=relative",
        "signal=SIGUSR1,file=/a/../b",
        "signal=SIGUSR1,file=/a//b",
        "signal=SIGUSR1,file=/",
        "signal=SIGUSR1,what=/x",
        "http=0/x",
        "http=70000/x",
        "http=²/x",
        "http=80/a b",
        "http=80/a\r\nHost: x",
        "http=80/x,file=/y",
        "exec=rm",
        "http=80/" + "a" * 600,
    ],
)
def test_a_bad_call_is_refused_with_the_reason_and_asks_for_nothing(text):
    with pytest.raises(errors.Permanent, match=ANNOTATION):
        parse_call(text)
    assert find_call({ANNOTATION: text}) is None


def test_an_order_that_cannot_be_read_hides_no_other():
    order = Order(deadline_at=5.0, reason="r", pods={"u": "n"})
    assert orders.decode_orders({"a": "nonsense", "b": orders.encode_order(order), "c": "{}"}) == {"b": order}
    assert orders.decode_reports("nonsense") == {}
    assert orders.find_expired({"b": order}, 100.0) == ["b"]
    assert orders.find_expired({"b": order}, 10.0) == []


def test_the_same_cause_and_pods_are_the_same_order():
    assert orders.make_order_id("c", ["a", "b"]) == orders.make_order_id("c", ["b", "a"])
    assert orders.make_order_id("c", ["a"]) != orders.make_order_id("d", ["a"])


class Bed:
    def __init__(self) -> None:
        self.api = MemoryApi([resources.GPU_NODE])
        self.client = KubeClient(self.api)
        self.caller = CheckpointCaller(self.client, FetchedReports(self.client, pause=self._pause))

    async def _pause(self, _seconds: float) -> None:
        await asyncio.sleep(0)

    async def add_pod(self, name, node, call="signal=SIGUSR1"):
        meta = {"name": name, "annotations": {ANNOTATION: call} if call else {}}
        body = {"metadata": meta, "spec": {"nodeName": node}, "status": {"phase": "Running"}}
        return await self.client.create(resources.POD, body, "team")

    def read_orders(self):
        try:
            path = f"/api/v1/namespaces/{orders.NAMESPACE}/configmaps/{orders.CONFIG_MAP}"
            return self.api.call("GET", path).get("data", {})
        except Exception:  # noqa: BLE001 - it does not exist yet
            return {}

    async def report(self, node, order_id, found):
        text = orders.encode_reports({order_id: found})
        body = {"metadata": {"name": node, "annotations": {orders.REPORT_ANNOTATION: text}}, "spec": {}}
        await self.client.create(resources.GPU_NODE, body)


async def test_one_write_orders_the_whole_gang_and_the_call_ends_with_the_last_report():
    bed = Bed()
    pods = [await bed.add_pod(f"p{number}", f"n{number}") for number in range(3)]
    pods.append(await bed.add_pod("other", "n1", call=""))
    call = asyncio.create_task(bed.caller.call("cause", pods, seconds=60, reason="why"))
    await until(bed.read_orders)
    ((order_id, text),) = bed.read_orders().items()
    order = orders.decode_orders({order_id: text})[order_id]
    assert set(order.pods.values()) == {"n0", "n1", "n2"}
    await bed.report("n0", order_id, {pods[0].metadata.uid: Report(State.DONE)})
    await bed.report("n1", order_id, {pods[1].metadata.uid: Report(State.FAILED, "no handler")})
    assert not call.done()
    await bed.report("n2", order_id, {pods[2].metadata.uid: Report(State.DONE)})
    result = await call
    assert result.confirmed == {pods[0].metadata.uid, pods[2].metadata.uid}
    assert result.failed == {pods[1].metadata.uid: "no handler"}
    assert "2 of 3 pods confirmed" in result.describe()
    assert bed.read_orders() == {}


async def test_pods_that_declare_nothing_cost_no_write_and_no_time():
    bed = Bed()
    pod = await bed.add_pod("p", "n", call="")
    before = len(bed.api.requests)
    assert await bed.caller.call("c", [pod], seconds=60, reason="r") == CheckpointResult()
    assert len(bed.api.requests) == before


async def test_the_time_ends_a_call_that_nobody_answers():
    bed = Bed()
    pod = await bed.add_pod("p", "n")
    result = await bed.caller.call("c", [pod], seconds=0.05, reason="r")
    assert result.silent == {pod.metadata.uid}
    assert "did not answer" in result.describe()


async def test_an_expired_order_of_a_dead_leader_is_removed():
    bed = Bed()
    old = orders.encode_order(Order(deadline_at=1.0, reason="r", pods={}))
    body = {"metadata": {"name": orders.CONFIG_MAP}, "data": {"old": old}}
    await bed.client.create(resources.CONFIG_MAP, body, orders.NAMESPACE)
    pod = await bed.add_pod("p", "n")
    await bed.caller.call("c", [pod], seconds=0.05, reason="r")
    assert bed.read_orders() == {}
