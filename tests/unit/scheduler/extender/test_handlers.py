"""Only pods that the watch shows are placed, registered and preempted, and no place is held for ever."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import msgspec
import pytest
from tests.support.builders.extender import Bed, plain
from tests.support.builders.objects import UID, added, changed, free, job, node, removed, workload
from tests.support.builders.objects import pod as job_pod
from tests.support.patience import PATIENCE_S

from kgwe.apps.scheduler.extender.http import ExtenderApp
from kgwe.cluster.registry.announcer import ClusterListener
from kgwe.kube.translate import extender_wire
from kgwe.model.units import amounts
from kgwe.placement.live.holding import Holding
from kgwe.placement.planning.plan import Seat
from kgwe.telemetry.http import Reply, Request

GANG = {"kgwe.nvidia.io/gang": "g", "kgwe.nvidia.io/gang-size": "2"}


@pytest.fixture
def bed() -> Bed:
    return Bed()


# --- filter ---------------------------------------------------------------------------------------------


async def test_pods_that_exist_only_in_calls_hold_nothing(bed: Bed):
    replies = [await bed.filter(plain(f"ghost-{number}", gpus=8)) for number in range(3)]

    assert all("is not in the watch yet" in reply["Error"] for reply in replies)
    assert free(bed.state) == {"n1": 8}
    assert not bed.state.ledger.assumed
    assert bed.counted("unknown") == 3


async def test_pods_that_exist_only_in_calls_are_no_members_of_a_gang(bed: Bed):
    for number in range(2):
        await bed.filter(plain(f"ghost-{number}", notes=GANG))

    assert list(bed.gangs.owners()) == []


async def test_the_watch_says_what_a_pod_asks_for_and_the_call_does_not(bed: Bed):
    bed.state.on_pod(added(plain(gpus=2)))
    forged = plain(gpus=8, notes={"kgwe.nvidia.io/gpu-model": "H100"})

    assert (await bed.filter(forged))["NodeNames"] == ["n1"]
    assert free(bed.state) == {"n1": 6}


async def test_a_uid_in_another_namespace_is_not_that_pod(bed: Bed):
    bed.state.on_pod(added(plain()))
    meta = {"name": "p", "namespace": "other", "uid": "uid-p"}

    assert "Error" in await bed.ask("/filter", {"Pod": {"metadata": meta}, "NodeNames": ["n1"]})
    assert free(bed.state) == {"n1": 8}


async def test_a_pod_of_a_workload_whose_job_was_not_seen_yet_is_tried_again(bed: Bed):
    bed.state.on_kgwe(added(workload(count=8)))
    # Decided and written; the watch of Jobs is behind that of pods.
    bed.state.ledger.reserve_seats(UID, {0: Holding("n1", {amounts.GPU: 8}, 0xFF)})
    early = job_pod(at="", gpus=8, phase="Pending")
    bed.state.on_pod(added(early))

    reply = await bed.filter(early)
    assert "the owner of pod team/p is not in the watch yet" in reply["Error"]
    assert "FailedNodes" not in reply

    bed.state.on_job(added(job(seats=(Seat("n1", 0xFF),), gpus=8)))
    assert (await bed.filter(early))["NodeNames"] == ["n1"]


async def test_a_call_that_comes_before_the_watch_waits_for_it(bed: Bed):
    asked = asyncio.create_task(bed.filter(plain()))
    await asyncio.sleep(0)
    bed.state.on_pod(added(plain()))

    assert (await asked)["NodeNames"] == ["n1"]
    assert bed.metrics.extender_waits._value.get() == 1


async def test_a_pod_that_is_seen_before_the_wait_begins_is_not_missed(bed: Bed, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kgwe.apps.scheduler.extender.http._SIGHT_S", 3600.0)
    body = msgspec.json.encode({"Pod": msgspec.to_builtins(plain()), "NodeNames": ["n1"]})
    coming = bed.app(Request("POST", "/filter", [], body, too_large=False))
    assert not isinstance(coming, Reply)
    bed.state.on_pod(added(plain()))

    async with asyncio.timeout(PATIENCE_S):
        assert (await coming).body == b'{"NodeNames":["n1"]}'


async def test_a_pod_that_is_gone_is_not_waited_for(bed: Bed):
    bed.state.on_pod(added(plain()))
    bed.state.on_pod(removed(plain()))

    assert "Error" in await bed.filter(plain())
    assert bed.metrics.extender_waits._value.get() == 0


async def test_a_bound_pod_keeps_the_place_it_has(bed: Bed):
    """To assume it would let its place expire under it."""
    bed.state.on_pod(added(plain(at="n1")))

    assert "is already bound to n1" in (await bed.filter(plain()))["Error"]
    bed.now += 1000
    bed.state.expire_assumed(bed.now)
    assert free(bed.state) == {"n1": 6}


async def test_a_wish_that_is_corrected_counts(bed: Bed):
    wrong = plain(notes={"kgwe.nvidia.io/min-memory-gb": "1e300"})
    bed.state.on_pod(added(wrong))
    assert "min-memory-gb" in str(await bed.filter(wrong))

    bed.state.on_pod(changed(wrong, plain()))
    assert (await bed.filter(plain()))["NodeNames"] == ["n1"]


# --- time -----------------------------------------------------------------------------------------------


async def test_a_place_comes_free_when_the_pod_is_not_bound_in_time_though_nobody_asks(bed: Bed):
    rooms: list[bool] = []
    bed.state.announcer.subscribe(ClusterListener(capacity_freed=lambda: rooms.append(True)))
    bed.state.on_pod(added(plain()))
    await bed.filter(plain())
    assert free(bed.state) == {"n1": 6}

    bed.state.expire_assumed(bed.now + 29)
    assert free(bed.state) == {"n1": 6}
    rooms.clear()
    bed.state.expire_assumed(bed.now + 31)
    assert free(bed.state) == {"n1": 8}
    assert rooms


# --- prioritize and preempt -----------------------------------------------------------------------------


async def test_an_unknown_pod_gets_no_points_and_leaves_no_wish_behind(bed: Bed):
    body = {"Pod": msgspec.to_builtins(plain(gpus=1)), "NodeNames": ["n1"]}
    assert await bed.ask("/prioritize", body) == [{"Host": "n1", "Score": 0}]

    bed.state.on_pod(added(plain(gpus=8)))
    await bed.filter(plain())
    assert free(bed.state) == {"n1": 0}


def victims(made: Any, *uids: str, on: str = "n1") -> dict[str, Any]:
    pods = {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 0}
    return {"Pod": msgspec.to_builtins(made), "NodeNameToMetaVictims": {on: pods}}


async def test_only_pods_of_the_watch_preempt_and_only_pods_of_that_node_make_way(bed: Bed):
    bed.state.on_node(added(node("n2")))
    bed.state.on_pod(added(plain("low", gpus=8, at="n1")))
    high = plain("high", gpus=8, priority=1000)

    async def kept(*uids: str, on: str = "n1") -> bool:
        return bool((await bed.ask("/preempt", victims(high, *uids, on=on)))["NodeNameToMetaVictims"])

    assert not await kept("uid-low")  # the call claims a priority, the watch shows no such pod
    bed.state.on_pod(added(high))
    assert await kept("uid-low")
    assert await kept("uid-low", "uid-low")
    assert not await kept("uid-ghost")
    assert not await kept("uid-low", on="n2")
    bed.state.on_pod(changed(high, plain("high", gpus=8)))
    assert not await kept("uid-low")  # its priority is what the watch shows
    assert free(bed.state) == {"n1": 0, "n2": 8}


async def test_a_preemption_that_comes_before_the_watch_waits_for_it(bed: Bed):
    """kube-scheduler does not ask for a node where it sees itself that none has room."""
    bed.state.on_pod(added(plain("low", gpus=8, at="n1")))
    high = plain("high", gpus=8, priority=1000)
    asked = asyncio.create_task(bed.ask("/preempt", victims(high, "uid-low")))
    await asyncio.sleep(0)
    bed.state.on_pod(added(high))

    assert list((await asked)["NodeNameToMetaVictims"]) == ["n1"]


async def test_room_that_kube_scheduler_makes_is_reserved_before_the_pod_is_nominated(bed: Bed):
    low, high = plain("low", gpus=6, at="n1"), plain("high", gpus=8, priority=1000)
    for each in (low, high):
        bed.state.on_pod(added(each))
    for _ in range(2):  # what the first answer reserved does not hinder the second
        assert list((await bed.ask("/preempt", victims(high, "uid-low")))["NodeNameToMetaVictims"]) == ["n1"]
    bed.state.on_pod(removed(low))
    assert free(bed.state) == {"n1": 0}, "no waiting workload gets it"

    assert (await bed.filter(high))["NodeNames"] == ["n1"]
    assert free(bed.state) == {"n1": 0}


async def test_room_for_a_pod_that_is_not_nominated_in_time_is_free_again(bed: Bed):
    low, high = plain("low", gpus=8, at="n1"), plain("high", gpus=8, priority=1000)
    for each in (low, high):
        bed.state.on_pod(added(each))
    await bed.ask("/preempt", victims(high, "uid-low"))
    bed.state.on_pod(removed(low))
    bed.state.expire_assumed(math.inf)
    assert free(bed.state) == {"n1": 8}


async def test_of_several_nodes_the_one_with_the_least_important_victims_is_named(bed: Bed):
    bed.state.on_node(added(node("n2")))
    for name, at, priority in (("dear", "n1", 500), ("cheap", "n2", 10)):
        bed.state.on_pod(added(plain(name, gpus=8, at=at, priority=priority)))
    high = plain("high", gpus=8, priority=1000)
    bed.state.on_pod(added(high))
    body = victims(high, "uid-dear")
    body["NodeNameToMetaVictims"] |= victims(high, "uid-cheap", on="n2")["NodeNameToMetaVictims"]
    assert list((await bed.ask("/preempt", body))["NodeNameToMetaVictims"]) == ["n2"]


# --- bind -----------------------------------------------------------------------------------------------


def binding(name: str = "p", namespace: str = "team", node: str = "n1") -> dict[str, str]:
    return {"PodName": name, "PodNamespace": namespace, "PodUID": "uid-p", "Node": node}


async def test_only_what_filter_answered_is_bound(bed: Bed):
    assert "is not in the watch yet" in (await bed.ask("/bind", binding()))["Error"]
    bed.state.on_pod(added(plain()))
    assert "expired" in (await bed.ask("/bind", binding()))["Error"]
    await bed.filter(plain())

    assert "assigned to n1" in (await bed.ask("/bind", binding(node="n2")))["Error"]
    assert "is not in the watch yet" in (await bed.ask("/bind", binding(namespace="other")))["Error"]
    assert not bed.bound
    assert (await bed.ask("/bind", binding())) == {"Error": ""}
    assert len(bed.bound) == 1


# --- malformed ------------------------------------------------------------------------------------------

ME = b'"Pod":{"metadata":{"uid":"u","namespace":"n"}}'


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        b'{"Pod":{"metadata":{"uid":"\xff"}},"NodeNames":[]}',  # UnicodeDecodeError
        b'{"Pod":{"metadata":{"uid":"\\ud800"}},"NodeNames":[]}',
        b"{" + ME + b',"X":' + b"[" * 100_000,  # RecursionError
        b"{" + ME + b',"NodeNames":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"{" + ME + b',"NodeNames":[' + b'"a",' * 10_000 + b'"a"]}',  # more nodes than any cluster has
        b"{" + ME + b',"Nodes":{"items":[' + b"{}," * 1000 + b"{}]}}",
        b"{" + ME + b',"Nodes":{"items":[' + b'{"metadata":{"name":"a"}},' * 10_000 + b'{"metadata":{"name":"a"}}]}}',
        b"{" + ME + b"}",
    ],
)
async def test_what_is_no_request_is_counted_as_malformed(bed: Bed, body: bytes, capfd: pytest.CaptureFixture[str]):
    assert "Error" in await bed.ask("/filter", body)
    assert bed.counted("malformed") == 1
    assert bed.counted("error") == 0
    assert "Traceback" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    "body",
    [
        b"{" + ME + b',"NodeNameToMetaVictims":{"n1":{"NumPDBViolations":1' + b"0" * 30 + b"}}}",  # OverflowError
        b"{" + ME + b',"NodeNameToMetaVictims":{"n1":{"Pods":[{}]}}}',
        b"{" + ME + b',"NodeNameToMetaVictims":{' + b",".join(b'"n%d":{}' % n for n in range(10_001)) + b"}}",
        b"{" + ME + b',"NodeNameToVictims":{"n1":{"Pods":[{"metadata":{"uid":"\xff"}}]}}}',
    ],
)
async def test_what_is_no_preemption_is_counted_as_malformed(bed: Bed, body: bytes):
    assert "Error" in await bed.ask("/preempt", body)
    assert bed.counted("malformed", "preempt") == 1


async def test_ten_thousand_nodes_are_answered(bed: Bed):
    bed.state.on_pod(added(plain()))
    names = [f"{number:0250}" for number in range(extender_wire.MOST_NODES - 1)]
    reply = await bed.filter(plain(), NodeNames=[*names, "n1"])  # read in a thread
    assert reply["NodeNames"] == ["n1"]


async def test_the_snapshot_is_shown_only_where_it_is_switched_on(bed: Bed):
    asked = Request("GET", "/debug/snapshot", [], b"", too_large=False)
    hidden, shown = bed.app(asked), ExtenderApp(bed.answers, bed.metrics, show_snapshot=True)(asked)
    assert isinstance(hidden, Reply)
    assert isinstance(shown, Reply)
    assert (hidden.status, shown.status) == (404, 200)
