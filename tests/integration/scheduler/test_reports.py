"""Settings that do not work, domains, gangs that stay incomplete, attempts that fail: what the objects say."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.support.clusters.bed import condition, kgwe
from tests.support.clusters.broken import break_nodes, gang, racks, running, until_event
from tests.support.clusters.waits import events_on, until

from kgwe import errors
from kgwe.apps.whatif import explain, subject
from kgwe.cluster import offline
from kgwe.kube.api import resources
from kgwe.kube.client import manifests

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.support.clusters.bed import Bed


@pytest.fixture
async def settings(bed: Bed) -> AsyncIterator[Callable[[dict[str, Any]], Any]]:
    """Write the SchedulerConfig; it and all TopologyDomains are gone afterwards."""

    async def write(spec: dict[str, Any]) -> Any:
        return await bed.client.apply(resources.SCHEDULER_CONFIG, {"metadata": {"name": "default"}, "spec": spec})

    yield write
    with contextlib.suppress(errors.NotFound):
        await bed.client.delete(resources.SCHEDULER_CONFIG, "default")
    for obj in await bed.client.list(resources.TOPOLOGY_DOMAIN):
        await bed.client.delete(resources.TOPOLOGY_DOMAIN, obj.metadata.name)


async def ready(bed: Bed, status: str) -> Any:
    """The condition of the SchedulerConfig, once it has that status."""

    async def read() -> Any:
        config = await bed.client.get(resources.SCHEDULER_CONFIG, "default")
        return next((c for c in config.status.conditions if c.type == "Ready" and c.status == status), None)

    return await until(read)


async def test_a_config_that_names_absent_labels_says_so(bed: Bed, settings: Callable[[dict[str, Any]], Any]):
    await racks(bed, {"a": 2})
    await settings({"topology": {"levels": [{"name": "leaf", "labels": ["example.com/rack"]}]}})
    await bed.controller()
    workload, _ = await running(bed, kgwe("w", 1), 1)

    said = await ready(bed, "False")
    assert said.reason == "LabelNotFound"
    assert said.message.startswith("label example.com/rack is on 0 of 2 nodes, so every node counts as its own leaf")
    assert "set preset topograph, whose labels the nodes have" in said.message
    await until(lambda: events_on(bed, "default", "LabelNotFound"))
    seen = await offline.read(bed.client)
    told = explain.explain(seen, subject.find(seen, "w", "default"))
    assert any("label example.com/rack is on 0 of 2 nodes" in problem for problem in told.problems)
    assert bed.phase(workload) == "Running"

    for node in ("a0", "a1"):
        await bed.client.patch(resources.NODE, node, {"metadata": {"labels": {"example.com/rack": "r"}}})
    assert (await ready(bed, "True")).message == "in use; label example.com/rack is on 2 of 2 nodes (level leaf)"


async def test_a_config_that_names_no_labels_leaves_the_network_as_it_is(
    bed: Bed, settings: Callable[[dict[str, Any]], Any]
):
    """Labels of another preset than topograph's are still found."""
    for number in range(2):
        await bed.node(f"n{number}", labels={"kgwe.nvidia.io/leaf": "left"})
    await settings({"nodeWeights": {"topology": 50, "resource": 30, "balance": 20}})
    seen = await offline.read(bed.client)
    assert [level.names for level in seen.fleet.tree.levels if level.name == "leaf"] == [("left",)]


@pytest.mark.usefixtures("settings")
async def test_a_domain_says_how_full_it_is_and_what_became_of_work_there(bed: Bed):
    await racks(bed, {"a": 2, "b": 1})
    for leaf, nodes in (("rack-a", ["a0", "a1"]), ("rack-b", ["b0"]), ("rack-c", ["nowhere"])):
        spec = {"type": "Leaf", "parent": "row", "nodes": nodes}
        await bed.client.apply(resources.TOPOLOGY_DOMAIN, {"metadata": {"name": leaf}, "spec": spec})
    row = {"metadata": {"name": "row"}, "spec": {"type": "Spine"}}
    await bed.client.apply(resources.TOPOLOGY_DOMAIN, row)
    await bed.controller(domain_status_seconds="1")
    on_a = {"nodeSelector": {"kubernetes.io/hostname": "a0"}}
    short = await bed.submit(kgwe("short", 4, duration="1s", pod=on_a))
    await bed.until_phase(short, "Succeeded")
    workload, _ = await running(bed, gang("g", 2, level="leaf"), 2)

    async def told(name: str, **wanted: Any) -> bool:
        status = (await bed.client.get(resources.TOPOLOGY_DOMAIN, name)).status
        return all(getattr(status, field) == value for field, value in wanted.items())

    await until(lambda: told("rack-a", nodes=2, gpus=16, freeGPUs=0))
    await until(lambda: told("rack-b", nodes=1, gpus=8, freeGPUs=8))
    await until(lambda: told("row", nodes=3, gpus=24, freeGPUs=8))
    empty = await bed.client.get(resources.TOPOLOGY_DOMAIN, "rack-c")
    assert condition(empty, "Ready").reason == "NoNodes"

    async def outcomes() -> tuple[float, float]:
        found = (await bed.client.get(resources.TOPOLOGY_DOMAIN, "rack-a")).status.outcomes
        assert found is not None
        return found.completed, found.lost

    assert await outcomes() == (1.0, 0.0)
    await break_nodes(bed, "a1")

    async def lost() -> bool:
        return (await outcomes())[1] >= 0.99

    await until(lost)
    assert bed.now(workload) is not None


async def test_work_whose_attempts_are_used_up_waits_for_a_change(bed: Bed, settings: Callable[[dict[str, Any]], Any]):
    await bed.node("n1")
    await settings({"maxSchedulingAttempts": 2})
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "no-jobs", "namespace": "strict"},
        "spec": {"hard": {"count/jobs.batch": "0"}},
    }
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "strict"}}
    await manifests.apply_manifest(bed.client, [namespace, quota])

    async def enforced() -> bool:
        answer = await bed.client.request("GET", "/api/v1/namespaces/strict/resourcequotas/no-jobs")
        return bool(msgspec.json.decode(answer).get("status", {}).get("hard"))

    await until(enforced)
    await bed.controller()
    workload = await bed.submit(kgwe("w", 1, retryPolicy={"backoffSeconds": 1}), "strict")
    reason = "AttemptsExhausted"
    await bed.until_phase(workload, "Pending")
    await bed.until(lambda: reason in {c.reason for c in bed.now(workload).status.conditions})
    said = condition(bed.now(workload), "Scheduled")
    assert said.message.startswith("2 attempts in a row failed, last: QuotaExceeded: ")
    assert bed.phase(workload) == "Pending", "it is not failed"

    await bed.client.request("DELETE", "/api/v1/namespaces/strict/resourcequotas/no-jobs")
    await bed.node("n2")
    await bed.until_phase(workload, "Running")
    await bed.delete(workload)


async def test_the_first_refusal_is_normal_and_repeated_ones_are_warnings(bed: Bed):
    await bed.node("n1", 4)
    await bed.controller(message_interval_seconds="1")
    await running(bed, kgwe("holder", 4), 1)
    await bed.submit(kgwe("late", 2))

    async def both() -> bool:
        return {each["type"] for each in await events_on(bed, "late", "InsufficientGPU")} == {"Normal", "Warning"}

    await until(both)


async def test_a_failure_that_nothing_is_done_about_is_shown(bed: Bed):
    await racks(bed, {"a": 2})
    await bed.controller()
    workload, before = await running(bed, gang("g", 2, recoveryPolicy="None"), 2)
    await break_nodes(bed, before[0].spec.nodeName)
    await until_event(bed, workload, "LeftAlone")
    await bed.until(lambda: "LeftAlone" in {c.reason for c in bed.now(workload).status.conditions})
    assert condition(bed.now(workload), "Degraded").status == "True"
