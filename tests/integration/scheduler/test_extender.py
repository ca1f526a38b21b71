"""The extender beside a real kube-scheduler: plain pods, gangs of plain pods, bad callers."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING

import httpx2
import pytest
from tests.support.clusters.pods import pod
from tests.support.patience import PATIENCE_S

from kgwe.kube.api import resources
from kgwe.local.cluster import certificates

if TYPE_CHECKING:
    from tests.support.clusters.pods import Live


async def test_a_pod_for_one_gpu_leaves_whole_nodes_whole(live: Live):
    await live.nodes({"a": 2})
    await live.scheduler()
    await live.pod("first", 1)
    await live.until_bound("first", 1)
    await live.pod("second", 1)
    await live.until_bound("second", 1)

    assert live.node_of("first") == live.node_of("second")


async def test_a_hundred_pods_at_once_fill_one_node_exactly_and_none_waits_on_a_lock(live: Live):
    """HAMi#1130: many pods for one node at once."""
    await live.nodes({"a": 1}, gpus=60)
    replica = await live.scheduler()
    await asyncio.gather(*(live.pod(f"p-{number}", 1) for number in range(100)))
    await live.until_bound("p-", 60)

    assert not live.overbooked()
    assert await replica.metric('kgwe_extender_requests_total{outcome="placed",verb="filter"}') >= 60


async def test_without_room_the_pod_says_why_and_starts_when_there_is_room(live: Live):
    await live.nodes({"a": 1})
    await live.scheduler()
    await live.pod("holder", 8)
    await live.until_bound("holder", 1)
    await live.pod("late", 2)
    await live.bed.until(lambda: "Unschedulable" in live.bed.pod_says("late"))

    await live.bed.client.delete(resources.POD, "holder", "default", grace_s=0)
    await live.until_bound("late", 1)


async def test_two_small_then_one_large_all_run(live: Live):
    """kueue#4474: nodes with 2, 1 and 1 free; two pods for one GPU must not take the only pair."""
    for name, gpus in {"a": 2, "b": 1, "c": 1}.items():
        await live.bed.node(name, gpus)
    await live.scheduler()
    await live.pod("one-0", 1)
    await live.pod("one-1", 1)
    await live.until_bound("one-", 2)
    await live.pod("two", 2)
    await live.until_bound("two", 1)


async def test_wishes_in_annotations_count_and_bad_ones_are_told(live: Live):
    await live.bed.node("old", 8, labels={"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"})
    await live.bed.node("new", 8, labels={"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"})
    await live.scheduler()
    await live.pod("wants-h100", 1, annotations={"kgwe.nvidia.io/gpu-model": "H100"})
    await live.pod("nonsense", 1, annotations={"kgwe.nvidia.io/min-memory-gb": "lots"})
    await live.until_bound("wants-h100", 1)

    assert live.node_of("wants-h100") == "new"
    await live.bed.until(lambda: "Unschedulable" in live.bed.pod_says("nonsense"))
    found = live.bed.pods.store["default/nonsense"]
    assert "min-memory-gb" in next(c.message for c in found.status.conditions if c.type == "PodScheduled")


# --- gangs ----------------------------------------------------------------------------------------------


async def test_a_gang_starts_in_one_leaf_and_ranks_have_their_own_nodes(live: Live):
    await live.nodes({"a": 2, "b": 4})
    await live.scheduler()
    await live.gang("train", 3, required="leaf")
    bound = await live.until_bound("train-", 3)

    assert live.leaves("train-") == {"b"}
    assert len(set(bound.values())) == 3


async def test_nothing_of_an_incomplete_gang_is_bound_and_it_holds_nothing(live: Live):
    await live.nodes({"a": 2})
    await live.scheduler()
    await live.gang("train", 3, gpus=4, made=2)
    await live.pod("other", 8)
    await live.pod("another", 8)
    await live.until_bound("other", 1)
    await live.until_bound("another", 1)

    assert not live.bound("train-")
    assert (await live.snapshot())["gangs"]["gang:default/kgwe.nvidia.io/train"]["problem"] == (
        "gang default/train incomplete: waiting for 1 more pod"
    )


async def test_a_gang_without_gates_waits_for_its_last_pod_too(live: Live):
    """In a dialect that the admission policy does not gate, and as on clusters without the policy."""
    said = {
        "labels": {"kueue.x-k8s.io/pod-group-name": "train"},
        "annotations": {"kueue.x-k8s.io/pod-group-total-count": "2"},
    }
    await live.nodes({"a": 2})
    await live.scheduler()
    await live.pod("train-0", 8, **said)
    await live.bed.until(lambda: "Unschedulable" in live.bed.pod_says("train-0"))
    assert not live.bound("train-")

    await live.pod("train-1", 8, **said)
    await live.until_bound("train-", 2)


async def test_a_two_pod_gang_with_one_free_node_binds_nothing_until_the_second_is_free(live: Live):
    """scheduler-plugins#930."""
    await live.nodes({"a": 2})
    await live.scheduler()
    await live.pod("holder", 8)
    await live.until_bound("holder", 1)
    await live.gang("pair", 2)
    await live.pod("small", 1)
    await live.until_bound("small", 1)
    assert not live.bound("pair-")

    for name in ("holder", "small"):
        await live.bed.client.delete(resources.POD, name, "default", grace_s=0)
    await live.until_bound("pair-", 2)


async def test_soft_topology_takes_the_whole_free_leaf(live: Live):
    """volcano#5205: one leaf with two free nodes, two with one; two replicas that prefer a leaf land on the first."""
    await live.nodes({"hn1": 2, "hn2": 1, "hn3": 1})
    await live.scheduler()
    await live.gang("soft", 2, preferred="leaf")
    await live.until_bound("soft-", 2)

    assert live.leaves("soft-") == {"hn1"}


async def test_gangs_that_compete_never_start_in_halves_and_all_run_in_the_end(live: Live):
    """scheduler-plugins#117, in little: more gangs than room, each short, none lost, no deadlock."""
    await live.nodes({"a": 2})
    await live.scheduler()
    names = [f"j{number}" for number in range(8)]
    for name in names:
        await live.gang(name, 2, gpus=4)
    done: set[str] = set()
    while len(done) < len(names):
        started = [name for name in names if name not in done and len(live.bound(f"{name}-")) == 2]
        assert not live.overbooked()
        for name in started:
            done.add(name)
            for number in range(2):
                await live.bed.client.delete(resources.POD, f"{name}-{number}", "default", grace_s=0)
        waiting = [name for name in names if name not in done]
        if waiting and not started:
            await live.bed.until(lambda: any(len(live.bound(f"{name}-")) == 2 for name in waiting))  # noqa: B023 - awaited at once


async def test_a_new_scheduler_goes_on_with_the_gangs_of_the_one_before(live: Live):
    await live.nodes({"a": 4})
    first = await live.scheduler(leader_elect="false")
    await live.gang("train", 2)
    before = await live.until_bound("train-", 2)
    first.kill()
    await live.scheduler(leader_elect="false")
    snapshot = await live.snapshot()

    assert snapshot["seats"]["gang:default/kgwe.nvidia.io/train"] == {"0": before["train-0"], "1": before["train-1"]}
    assert sum(node["free"] for node in snapshot["nodes"].values()) == 16


# --- callers --------------------------------------------------------------------------------------------


async def test_pods_that_exist_only_in_calls_hold_no_gpu(live: Live):
    await live.nodes({"a": 1})
    replica = await live.scheduler(leader_elect="false")
    for number in range(4):
        ghost = pod(f"ghost-{number}", 8)
        ghost["metadata"] |= {"uid": f"ghost-{number}", "namespace": "default"}
        assert (
            "is not in the watch yet"
            in (await live.call("/filter", {"Pod": ghost, "NodeNames": ["a-0"]})).json()["Error"]
        )

    assert (await live.snapshot())["assumed"] == []
    assert await replica.metric('kgwe_extender_requests_total{outcome="unknown",verb="filter"}') == 4
    await live.pod("real", 8)
    await live.until_bound("real", 1)


async def test_the_place_of_a_pod_that_is_never_bound_comes_free_by_itself(live: Live):
    await live.nodes({"a": 1})
    await live.scheduler(leader_elect="false", assume_seconds="1")
    made = await live.pod("x", 8, schedulerName="another")  # so that nobody binds it
    asked = {"metadata": {"uid": made.metadata.uid, "name": "x", "namespace": "default"}}
    assert (await live.call("/filter", {"Pod": asked, "NodeNames": ["a-0"]})).json()["NodeNames"] == ["a-0"]

    async with asyncio.timeout(PATIENCE_S):
        while (await live.snapshot())["assumed"]:  # noqa: ASYNC110 - only the snapshot tells
            await asyncio.sleep(0.1)
    assert (await live.snapshot())["nodes"]["a-0"]["free"] == 8


async def test_only_kube_scheduler_is_let_in(live: Live):
    await live.nodes({"a": 1})
    await live.scheduler(leader_elect="false")
    made = live.bed.cluster.layout.certificates
    assert (await live.call("/filter", b"{}")).status_code == 200
    unnamed, other = (
        ssl.create_default_context(cafile=made.authority),
        ssl.create_default_context(cafile=made.authority),
    )
    pair = made.pair(certificates.CONTROLLER_MANAGER)
    other.load_cert_chain(pair.certificate, pair.key)
    url = f"https://127.0.0.1:{live.port}/filter"

    async with httpx2.AsyncClient(timeout=PATIENCE_S, verify=other) as client:
        assert (await client.post(url, content=b"{}")).status_code == 403
    async with httpx2.AsyncClient(timeout=PATIENCE_S, verify=unnamed) as client:
        with pytest.raises(httpx2.TransportError):
            await client.post(url, content=b"{}")
    async with httpx2.AsyncClient(timeout=PATIENCE_S) as client:
        with pytest.raises(httpx2.TransportError):
            await client.post(url.replace("https", "http"), content=b"{}")


async def test_large_and_half_sent_calls_keep_neither_the_lease_nor_other_callers(live: Live):
    await live.nodes({"a": 1})
    replica = await live.scheduler()
    await live.call("/filter", b"{}")
    me = b'"Pod":{"metadata":{"uid":"u","namespace":"n"}}'
    # Four million names are refused by their size, and those that fit are too many.
    bodies = [b"{" + me + b',"NodeNames":[' + b'"a",' * count + b'"a"]}' for count in (4_000_000, 11_000_000)]
    held = [await asyncio.open_connection("127.0.0.1", live.port) for _ in range(300)]
    for _, writer in held[::2]:
        writer.write(b"\x16\x03\x01\x02\x00\x01")
    try:
        replies = [await live.call("/filter", body) for body in bodies * 3]
        assert [reply.status_code for reply in replies] == [200, 413] * 3
        assert all("largest supported cluster" in reply.json()["Error"] for reply in replies[::2])
        await live.pod("fine", 1)
        await live.until_bound("fine", 1)
    finally:
        for _, writer in held:
            writer.transport.abort()
    assert await replica.metric("kgwe_scheduler_leader") == 1
    assert await replica.metric('kgwe_extender_requests_total{outcome="too_large",verb="filter"}') == 3
    assert replica.log.read_text().count("leader_elected") == 1


async def test_the_snapshot_is_off_by_default(live: Live):
    await live.nodes({"a": 1})
    await live.scheduler(leader_elect="false", debug_snapshot="false")
    assert (await live.call("/debug/snapshot", b"")).status_code == 404


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/filter", b"{not json", b"Error"),
        ("/filter", b"[]", b"Error"),
        ("/filter", {"Pod": {}}, b"names nodes"),
        ("/filter", {"Pod": {"metadata": {"uid": 7}}, "NodeNames": []}, b"Error"),
        ("/prioritize", b"\xff\xfe", b"[]"),
        ("/preempt", {"Pod": 1}, b"Error"),
        ("/filter", {"Pod": {"metadata": {"uid": "u"}}, "NodeNames": ["a", 3]}, b"Error"),
    ],
)
async def test_nonsense_gets_an_error_and_the_next_call_an_answer(live: Live, path: str, body: object, says: bytes):
    await live.nodes({"a": 1})
    await live.scheduler(leader_elect="false")
    reply = await live.call(path, body)

    assert reply.status_code == 200
    assert says in reply.content
    await live.pod("fine", 1)
    await live.until_bound("fine", 1)


async def test_whole_nodes_are_understood_as_well_as_names(live: Live):
    await live.nodes({"a": 2})
    await live.scheduler(leader_elect="false")
    made = await live.pod("x", 1, schedulerName="another")  # so that nobody else asks about it
    wanted = {"metadata": {"uid": made.metadata.uid, "name": "x", "namespace": "default"}}
    nodes = {"items": [{"metadata": {"name": "a-0"}}, {"metadata": {"name": "a-1"}}]}
    filtered = (await live.call("/filter", {"Pod": wanted, "Nodes": nodes})).json()
    scores = (await live.call("/prioritize", {"Pod": wanted, "NodeNames": ["a-0", "a-1", "stranger"]})).json()

    assert filtered["NodeNames"][0] in ("a-0", "a-1")
    assert {score["Host"] for score in scores} == {"a-0", "a-1", "stranger"}
    assert all(0 <= score["Score"] <= 10 for score in scores)


async def test_the_extender_binds_with_the_rights_of_deploy(live: Live) -> None:
    await live.nodes({"a": 1})
    await live.scheduler(extender_binds="true")
    # No kube-scheduler takes it: the test calls in its place.
    made = await live.pod("bound", 2, schedulerName="none")
    await live.bed.until(lambda: made.metadata.key in live.bed.pods.store)
    asked = {"metadata": {"uid": made.metadata.uid, "name": "bound", "namespace": "default"}}
    assert (await live.call("/filter", {"Pod": asked, "NodeNames": ["a-0"]})).json()["NodeNames"] == ["a-0"]
    call = {"PodName": "bound", "PodNamespace": "default", "PodUID": made.metadata.uid, "Node": "a-0"}

    reply = await live.call("/bind", call)

    assert not any(reply.json().values()), reply.text
    assert await live.until_bound("bound", 1) == {"bound": "a-0"}
