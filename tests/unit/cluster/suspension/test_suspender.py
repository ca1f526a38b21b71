"""Owners of pods are found, suspended and restored, and nothing that annotations or references claim is believed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.fakes.memory_api import MemoryApi

from kgwe import errors
from kgwe.cluster.suspension import marks, named_owners, owner_kinds
from kgwe.cluster.suspension.owner_kinds import STOP_ANNOTATION
from kgwe.cluster.suspension.owner_search import NoOwner, Owner, find_owner
from kgwe.cluster.suspension.scaling_targets import HORIZONTAL_POD_AUTOSCALER
from kgwe.cluster.suspension.suspender import MOST_REPLICAS, Outcome, Result, Suspender
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kgwe.cluster.suspension.owner_kinds import OwnerKind

NOW_S = 1_767_225_600.0  # 2026-01-01
LABELS = {"app": "a"}
SELECTOR = {"matchLabels": LABELS}
BY_NAME = {each.resource.full_name: each for each in owner_kinds.KINDS}
GW = BY_NAME["gpuworkloads.kgwe.nvidia.io"]
WARP = BY_NAME["gpuworkloads.gpu.warp.dev"]
JOB = BY_NAME["jobs.batch"]
DEPLOYMENT = BY_NAME["deployments.apps"]
STATEFUL_SET = BY_NAME["statefulsets.apps"]
REPLICA_SET = BY_NAME["replicasets.apps"]
LWS = BY_NAME["leaderworkersets.leaderworkerset.x-k8s.io"]
NOTEBOOK = BY_NAME["notebooks.kubeflow.org"]


class World:
    """Objects in one namespace."""

    def __init__(self) -> None:
        self.api = MemoryApi()
        self.client = KubeClient(self.api)
        self.suspender = Suspender(self.client, "kgwe-optimizer")

    async def make(
        self, kind: OwnerKind, name: str, owner: dict[str, Any] | None = None, **body: Any
    ) -> dict[str, Any]:
        """Create an object; returns the reference to it."""
        meta: dict[str, Any] = {"name": name, "ownerReferences": [owner] if owner else []}
        meta["annotations"] = body.pop("annotations", {})
        spec = {"selector": SELECTOR, **body.pop("spec", {})} if kind.has_selector else body.pop("spec", {})
        made = await self.client.create(kind.resource, {"metadata": meta, "spec": spec, **body}, "team")
        resource = kind.resource
        reference = {"apiVersion": resource.api_version, "kind": resource.kind, "name": name, "controller": True}
        return {**reference, "uid": made.metadata.uid}

    async def pod(self, owner: dict[str, Any] | None, labels: dict[str, str] | None = None) -> Any:
        meta = {
            "name": "p",
            "labels": LABELS if labels is None else labels,
            "ownerReferences": [owner] if owner else [],
        }
        return await self.client.create(resources.POD, {"metadata": meta}, "team")

    def get(self, kind: OwnerKind, name: str = "a") -> dict[str, Any]:
        return self.api.call("GET", kind.resource.path(namespace="team", name=name))

    async def edit(self, kind: OwnerKind, body: dict[str, Any], name: str = "a") -> None:
        await self.client.patch(kind.resource, name, body, "team")


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.client.close()


async def chain(world: World, *kinds: OwnerKind, **top: Any) -> Any:
    """A pod under owners of these kinds, the last on top; all are named a."""
    reference = None
    for kind in reversed(kinds):
        reference = await world.make(kind, "a", reference, **(top if kind is kinds[-1] else {}))
    return await world.pod(reference)


CHAINS = {
    "gpuworkload": (JOB, GW),
    "inference": (REPLICA_SET, DEPLOYMENT, GW),
    "small kind": (JOB, WARP),
    "job": (JOB,),
    "deployment": (REPLICA_SET, DEPLOYMENT),
    "statefulset": (STATEFUL_SET,),
    "replicaset": (REPLICA_SET,),
    "leaderworkerset": (STATEFUL_SET, LWS),
    "notebook": (STATEFUL_SET, NOTEBOOK),
}


@pytest.mark.parametrize("kinds", CHAINS.values(), ids=CHAINS.keys())
async def test_the_top_owner_is_suspended_and_restored_to_what_it_was(world: World, kinds: tuple[OwnerKind, ...]):
    top = kinds[-1]
    spec = {"replicas": 3} if top.method is owner_kinds.Method.REPLICAS else {}
    pod = await chain(world, *kinds, spec=spec, status={"jobName": "a"})
    before = world.get(top)

    first = await world.suspender.suspend_pod(pod, "IdleGPU: idle for 2 h", NOW_S)
    stored = world.get(top)
    second = await world.suspender.suspend_pod(pod, "IdleGPU", NOW_S + 60)

    assert (first.result, second.result) == (Result.SUSPENDED, Result.ALREADY_SUSPENDED)
    assert (first.kind, first.uid) == (top.resource.kind, before["metadata"]["uid"])
    assert world.get(top) == stored, "the second call writes nothing"
    record = marks.read_record(stored["metadata"]["annotations"])
    assert record is not None
    assert (record.by, record.at) == ("kgwe-optimizer", "2026-01-01T00:00:00Z")
    for below in kinds[:-1]:
        assert not marks.read_record(world.get(below)["metadata"]["annotations"])

    restored = await world.suspender.restore(top, "team", "a", first)
    after = world.get(top)
    assert restored.result is Result.RESTORED
    assert after["metadata"]["annotations"] == {}
    assert {key: value for key, value in after["spec"].items() if value} == before["spec"]
    again = await world.suspender.restore(top, "team", "a", first)
    assert (again.result, again.reason) == (Result.REFUSED, "NotSuspendedByKGWE")


async def test_each_kind_is_stopped_in_its_own_way(world: World):
    async def stopped(*kinds: OwnerKind) -> dict[str, Any]:
        pod = await chain(world, *kinds, status={"jobName": "a"})
        assert (await world.suspender.suspend_pod(pod, "IdleGPU", NOW_S)).result is Result.SUSPENDED
        await world.client.delete(resources.POD, "p", "team")
        return world.get(kinds[-1])

    assert (await stopped(JOB, GW))["spec"]["suspend"] is True
    assert (await stopped(REPLICA_SET, DEPLOYMENT))["spec"]["replicas"] == 0
    notebook = await stopped(STATEFUL_SET, NOTEBOOK)
    assert notebook["metadata"]["annotations"][STOP_ANNOTATION] == "2026-01-01T00:00:00Z"


async def test_a_bare_pod_is_never_stopped(world: World):
    outcome = await world.suspender.suspend_pod(await world.pod(None), "IdleGPU", NOW_S)
    assert (outcome.result, outcome.reason, outcome.kind) == (Result.REFUSED, "BarePod", "Pod")


async def test_a_job_of_a_cron_job_is_suspended_itself(world: World):
    cron = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "c", "uid": "u", "controller": True}
    pod = await world.pod(await world.make(JOB, "a", cron))
    assert (await world.suspender.suspend_pod(pod, "IdleGPU", NOW_S)).kind == "Job"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kind": "PyTorchJob", "apiVersion": "kubeflow.org/v1"}, "UnsupportedOwner"),
        ({"apiVersion": "apps/v1/../../v1"}, "UnsupportedOwner"),
        ({"apiVersion": "evil.example/v1"}, "UnsupportedOwner"),
        ({"name": "../../kube-system/deployments/a"}, "UnsupportedOwner"),
        ({"name": "gone"}, "OwnerMissing"),
        ({"uid": "forged"}, "OwnerMissing"),
    ],
)
async def test_a_forged_reference_stops_nothing(world: World, change: dict[str, str], reason: str):
    reference = await world.make(STATEFUL_SET, "a", spec={"replicas": 2})
    outcome = await world.suspender.suspend_pod(await world.pod(reference | change), "IdleGPU", NOW_S)
    assert (outcome.result, outcome.reason) == (Result.REFUSED, reason)
    assert world.get(STATEFUL_SET)["spec"]["replicas"] == 2
    assert all("kube-system" not in path for _, path in world.api.requests)


async def test_an_owner_that_does_not_select_the_pod_is_not_stopped(world: World):
    reference = await world.make(STATEFUL_SET, "a", spec={"replicas": 2})
    pod = await world.pod(reference, {"app": "another"})
    assert (await world.suspender.suspend_pod(pod, "IdleGPU", NOW_S)).reason == "NotItsOwner"


async def test_a_workload_that_does_not_name_the_job_as_its_run_is_not_stopped(world: World):
    pod = await chain(world, JOB, GW, status={"jobName": "another"})
    assert (await world.suspender.suspend_pod(pod, "IdleGPU", NOW_S)).reason == "NotItsOwner"
    assert "suspend" not in world.get(GW)["spec"]


async def test_owners_in_a_circle_and_endless_chains_end_the_search(world: World):
    first = await world.make(LWS, "a")
    second = await world.make(STATEFUL_SET, "b", first)
    await world.edit(LWS, {"metadata": {"ownerReferences": [second]}})
    found = await find_owner(world.client, await world.pod(second))
    assert isinstance(found, NoOwner)
    assert found.reason == "OwnerCycle"
    reference = first | {"name": "c0", "uid": (await world.make(LWS, "c0"))["uid"]}
    for number in range(1, 9):
        reference = await world.make(LWS, f"c{number}", reference)
    pod = await world.client.create(resources.POD, {"metadata": {"name": "q", "ownerReferences": [reference]}}, "team")
    found = await find_owner(world.client, pod)
    assert isinstance(found, NoOwner)
    assert found.reason == "TooManyOwners"


async def test_an_autoscaled_owner_is_not_stopped(world: World):
    pod = await chain(world, REPLICA_SET, DEPLOYMENT, spec={"replicas": 2})
    target = {"kind": "Deployment", "name": "a", "apiVersion": "apps/v1"}
    await world.client.create(
        HORIZONTAL_POD_AUTOSCALER, {"metadata": {"name": "h"}, "spec": {"scaleTargetRef": target}}, "team"
    )
    assert (await world.suspender.suspend_pod(pod, "IdleGPU", NOW_S)).reason == "Autoscaled"
    assert world.get(DEPLOYMENT)["spec"]["replicas"] == 2


async def test_without_the_right_to_see_autoscalers_nothing_is_scaled(world: World):
    pod = await chain(world, STATEFUL_SET, spec={"replicas": 2})
    world.api.refuse_next("GET", HORIZONTAL_POD_AUTOSCALER, 403, "no", "Forbidden")
    assert (await world.suspender.suspend_pod(pod, "IdleGPU", NOW_S)).reason == "AutoscalersUnknown"


@pytest.mark.parametrize(
    ("until", "result"),
    [
        ("2026-01-01T04:00:00Z", Result.REFUSED),
        ("2025-12-31T23:59:59Z", Result.SUSPENDED),
        ("9999-01-01T00:00:00Z", Result.SUSPENDED),
        ("2026-01-01T04:00:00", Result.SUSPENDED),
        ("tomorrow", Result.SUSPENDED),
    ],
)
async def test_a_kept_owner_is_not_stopped_before_its_time(world: World, until: str, result: Result):
    pod = await chain(world, JOB, annotations={marks.KEEP_UNTIL: until})
    assert (await world.suspender.suspend_pod(pod, "IdleGPU", NOW_S)).result is result


async def test_a_job_that_has_ended_is_left_alone(world: World):
    pod = await chain(world, JOB, status={"conditions": [{"type": "Complete", "status": "True"}]})
    assert (await world.suspender.suspend_pod(pod, "IdleGPU", NOW_S)).reason == "AlreadyFinished"


async def test_a_write_of_another_client_meanwhile_makes_it_decide_again(world: World):
    pod = await chain(world, STATEFUL_SET, spec={"replicas": 2})
    world.api.refuse_next("PATCH", STATEFUL_SET.resource, 409, "modified", "Conflict")
    assert (await world.suspender.suspend_pod(pod, "IdleGPU", NOW_S)).result is Result.SUSPENDED
    stale = Owner(STATEFUL_SET, await world.client.get(STATEFUL_SET.resource, "a", "team"))
    await world.edit(STATEFUL_SET, {"spec": {"replicas": 5}})
    fresh = Owner(STATEFUL_SET, await world.client.get(STATEFUL_SET.resource, "a", "team"))
    await world.edit(STATEFUL_SET, {"metadata": {"labels": {"x": "y"}}})
    assert (await world.suspender.suspend(stale, "IdleGPU", NOW_S)).result is Result.ALREADY_SUSPENDED
    with pytest.raises(errors.Conflict):
        await world.suspender.suspend(fresh, "IdleGPU", NOW_S)


# --- restoring ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "ledger", "restored"),
    [
        ("1000000", 3, 3),
        ("2", 3, 2),
        ("-1", 3, 3),
        (None, 3, 3),
        ("1000000", None, MOST_REPLICAS),
        ("7", None, 7),
        ("many", None, None),
        ("٣", None, None),
    ],
)
async def test_a_forged_number_of_replicas_is_limited(
    world: World, written: str | None, ledger: int | None, restored: int | None
):
    pod = await chain(world, STATEFUL_SET, spec={"replicas": 3})
    done = await world.suspender.suspend_pod(pod, "IdleGPU", NOW_S)
    await world.edit(STATEFUL_SET, {"metadata": {"annotations": {marks.REPLICAS: written}}})
    kept = done if ledger is not None else None
    outcome = await world.suspender.restore(STATEFUL_SET, "team", "a", kept)
    assert outcome.replicas == restored
    assert world.get(STATEFUL_SET)["spec"]["replicas"] == (restored or 0)


async def test_what_a_user_stopped_is_not_restored(world: World):
    await world.make(GW, "a", spec={"suspend": True})
    outcome = await world.suspender.restore(GW, "team", "a")
    assert (outcome.reason, world.get(GW)["spec"]["suspend"]) == ("NotSuspendedByKGWE", True)


async def test_what_another_client_started_meanwhile_is_left_as_it_is(world: World):
    pod = await chain(world, STATEFUL_SET, spec={"replicas": 3})
    done = await world.suspender.suspend_pod(pod, "IdleGPU", NOW_S)
    await world.edit(STATEFUL_SET, {"spec": {"replicas": 1}})
    outcome = await world.suspender.restore(STATEFUL_SET, "team", "a", done)
    assert outcome.reason == "ChangedSince"
    stored = world.get(STATEFUL_SET)
    assert (stored["spec"]["replicas"], stored["metadata"]["annotations"]) == (1, {})


async def test_a_notebook_that_its_user_stopped_again_stays_stopped(world: World):
    pod = await chain(world, STATEFUL_SET, NOTEBOOK)
    done = await world.suspender.suspend_pod(pod, "IdleGPU", NOW_S)
    await world.edit(NOTEBOOK, {"metadata": {"annotations": {STOP_ANNOTATION: "2026-02-02T00:00:00Z"}}})
    assert (await world.suspender.restore(NOTEBOOK, "team", "a", done)).reason == "ChangedSince"


async def test_an_object_of_the_same_name_is_not_restored(world: World):
    pod = await chain(world, STATEFUL_SET, spec={"replicas": 3})
    done = await world.suspender.suspend_pod(pod, "IdleGPU", NOW_S)
    await world.client.delete(STATEFUL_SET.resource, "a", "team")
    notes = marks.write_record("kgwe-optimizer", "2026-01-01T00:00:00Z", "IdleGPU", 9)
    await world.make(STATEFUL_SET, "a", spec={"replicas": 0}, annotations=notes)
    assert (await world.suspender.restore(STATEFUL_SET, "team", "a", done)).reason == "Replaced"


# --- by name --------------------------------------------------------------------------------------------


async def test_a_name_means_the_owner_on_top(world: World):
    await chain(world, STATEFUL_SET, NOTEBOOK)
    assert (await named_owners.find_named(world.client, "a", "team")).kind.resource.kind == "Notebook"
    assert (await named_owners.find_named(world.client, "sts/a", "team")).kind.resource.kind == "Notebook"
    assert (await named_owners.find_named(world.client, "p", "team")).kind.resource.kind == "Notebook"


async def test_a_name_of_two_objects_has_to_be_given_with_its_kind(world: World):
    await world.make(GW, "a")
    await world.make(STATEFUL_SET, "a")
    with pytest.raises(errors.Permanent, match=r"gpuworkload\.kgwe\.nvidia\.io/a or statefulset\.apps/a"):
        await named_owners.find_named(world.client, "a", "team")
    assert (await named_owners.find_named(world.client, "gw/a", "team")).kind is GW
    with pytest.raises(errors.NotFound):
        await named_owners.find_named(world.client, "b", "team")


@pytest.mark.parametrize("text", ["", "cat/a", "gw/", "a b", "../a", "A"])
async def test_a_malformed_name_is_an_error(world: World, text: str):
    with pytest.raises(errors.Permanent):
        await named_owners.find_named(world.client, text, "team")


async def test_keeping_writes_the_time_and_ends_the_notice(world: World):
    await world.make(GW, "a", annotations=_notice())
    outcome = await world.suspender.keep(GW, "team", "a", NOW_S + 4 * 3600)
    assert isinstance(outcome, Outcome)
    notes = world.get(GW)["metadata"]["annotations"]
    assert notes[marks.KEEP_UNTIL] == "2026-01-01T04:00:00Z"
    assert marks.IDLE_ACTION_AT not in notes


def _notice() -> dict[str, str | None]:
    return marks.write_notice(marks.Notice(NOW_S - 3600, NOW_S + 600, 2.5))


async def test_full_annotations_do_not_keep_an_object_from_being_suspended(world: World) -> None:
    await world.make(GW, "w", spec={"suspend": False})
    world.api.refuse_next("PATCH", GW.resource, 422, "metadata.annotations: Too long", "Invalid")
    owner = Owner(GW, await world.client.get(GW.resource, "w", "team"))
    assert (await world.suspender.suspend(owner, "Idle", NOW_S)).result is Result.SUSPENDED
    found = await world.client.get(GW.resource, "w", "team")
    assert found.spec.suspend
    assert marks.read_record(found.metadata.annotations) is None
