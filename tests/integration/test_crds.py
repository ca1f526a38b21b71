"""The generated definitions against a real API server: accepted, filled in, and strict where it helps."""

from __future__ import annotations

import copy
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
import yaml
from tests.support.clusters import clients

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.kube.api.kgwe import gpuworkload_status
from kgwe.kube.client.client import KubeClient
from kgwe.kube.crd import definitions
from kgwe.kube.transport.encoding import JSON

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
TABLE = yaml.safe_load((Path(__file__).parent / "bad_manifests.yaml").read_text(encoding="utf-8"))
# Kubernetes' own kinds that examples use beside KGWE's.
_SCALER = resources.Resource(
    "autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", namespaced=True, type=dict[str, Any]
)
OURS = {(kind.definition.api_version, kind.definition.kind): kind for kind in definitions.KINDS}


def resource_of(manifest: dict[str, Any]) -> resources.Resource[Any]:
    if manifest["kind"] == _SCALER.kind:
        return _SCALER
    kind = OURS[manifest["apiVersion"], manifest["kind"]]
    of = kind.definition
    return resources.Resource(of.group, of.version, of.plural, of.kind, namespaced=of.namespaced, type=dict[str, Any])


def documents(path: Path) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(path.read_text(encoding="utf-8")) if each]


def merged(base: Any, patch: Any) -> Any:
    """A JSON merge patch: null removes, objects merge, all else replaces."""
    if not isinstance(patch, dict):
        return patch
    out = dict(base) if isinstance(base, dict) else {}
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = merged(out.get(key), value)
    return out


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def client(cluster):
    async with clients.connect(cluster.kubeconfig) as client:
        await definitions.install(client)
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def namespace(client):
    """One for the whole module: nearly every test here is a dry run and leaves nothing in it."""
    name = f"crds-{uuid.uuid4().hex[:8]}"
    await client.create(resources.NAMESPACE, {"metadata": {"name": name}})
    yield name
    await client.delete(resources.NAMESPACE, name)


async def dry_run(client: KubeClient, manifest: dict[str, Any], namespace: str) -> dict[str, Any]:
    """What the API server would store; nothing is."""
    resource = resource_of(manifest)
    body = await client.request(
        "POST",
        resource.path(namespace=namespace if resource.namespaced else None),
        body=manifest,
        params={"dryRun": "All", "fieldValidation": "Strict"},
    )
    stored: dict[str, Any] = msgspec.json.decode(body)
    return stored


def minimal(**spec: Any) -> dict[str, Any]:
    manifest: dict[str, Any] = copy.deepcopy(TABLE["bases"]["gpuworkload"])
    manifest["metadata"] = {"name": f"ok-{uuid.uuid4().hex[:8]}"}
    manifest["spec"] |= spec
    return manifest


# --- the definitions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", definitions.KINDS, ids=lambda kind: kind.definition.name)
async def test_the_definition_is_established_and_structural(client, kind):
    stored = await client.get(resources.CRD, kind.definition.name)
    conditions = {each["type"]: each["status"] for each in stored["status"]["conditions"]}
    assert conditions["Established"] == "True"
    assert conditions["NamesAccepted"] == "True"
    assert "NonStructuralSchema" not in conditions


async def test_installing_again_changes_nothing(client):
    names = [kind.definition.name for kind in definitions.KINDS]
    before = [(await client.get(resources.CRD, name))["metadata"]["resourceVersion"] for name in names]
    await definitions.install(client)
    after = [(await client.get(resources.CRD, name))["metadata"]["resourceVersion"] for name in names]
    assert after == before


# --- good manifests ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
async def test_the_example_is_accepted_without_a_word(client, namespace, path):
    for manifest in documents(path):
        # Verbatim but for the namespace, which need not exist here.
        manifest["metadata"].pop("namespace", None)
        stored = await dry_run(client, manifest, namespace)
        assert stored["metadata"]["name"] == manifest["metadata"]["name"]


def with_defaults(manifest: Any, stored: Any) -> Any:
    """The manifest with the fields that only the stored object has."""
    if not isinstance(manifest, dict) or not isinstance(stored, dict):
        return manifest
    return stored | {key: with_defaults(value, stored.get(key)) for key, value in manifest.items()}


@pytest.mark.parametrize("name", ["training.yaml", "warp-inference.yaml"])
async def test_the_manifests_users_already_have_apply_verbatim(client, name):
    [manifest] = documents(ROOT / "examples" / name)
    namespace = manifest["metadata"].get("namespace", "default")
    await client.apply(resources.NAMESPACE, {"metadata": {"name": namespace}})
    stored = await client.apply(resource_of(manifest), manifest, namespace)
    await client.delete(resource_of(manifest), manifest["metadata"]["name"], namespace)
    assert with_defaults(manifest["spec"], stored["spec"]) == stored["spec"]
    assert "status" not in stored


async def test_defaults_of_a_workload_are_filled_in(client, namespace):
    manifest = {
        "apiVersion": "kgwe.nvidia.io/v1",
        "kind": "GPUWorkload",
        "metadata": {"name": "bare"},
        "spec": {"gpuRequirements": {"mig": {"profile": "1g.10gb"}}, "distributedConfig": {}},
    }
    assert (await dry_run(client, manifest, namespace))["spec"] == {
        "gpuRequirements": {
            "mig": {"profile": "1g.10gb", "count": 1},
            "topology": {"preference": "None"},
            "hardware": "Same",
        },
        "workloadType": "Training",
        "distributedConfig": {"backend": "NCCL"},
        "priority": 0,
        "preemptible": False,
        "suspend": False,
        "replicas": 1,
        "recoveryPolicy": "ReplaceFailed",
        "retryPolicy": {"maxRetries": 3, "backoffSeconds": 30},
    }


async def test_defaults_of_a_warp_workload_are_filled_in(client, namespace):
    stored = await dry_run(client, TABLE["bases"]["warp"], namespace)
    assert stored["spec"] == {
        "modelName": "llama2",
        "gpuCount": 2,
        "priority": "normal",
        "schedulingStrategy": "leastLoaded",
        "suspend": False,
        "retryPolicy": {"maxRetries": 3, "backoffSeconds": 30},
    }


@pytest.mark.parametrize("name", TABLE["bases"])
async def test_the_api_server_and_the_struct_agree_on_every_default(client, namespace, name):
    """Decoding what the server filled in and decoding the bare manifest must be the same thing."""
    bare = TABLE["bases"][name]
    kind = OURS[bare["apiVersion"], bare["kind"]]
    stored = await dry_run(client, bare, namespace)
    assert msgspec.convert(stored, kind) == msgspec.convert(bare | {"metadata": stored["metadata"]}, kind)


def test_every_kind_has_bad_manifests():
    tried = {(base["apiVersion"], base["kind"]) for base in TABLE["bases"].values()}
    assert tried == set(OURS)
    assert {case["base"] for case in TABLE["cases"]} == set(TABLE["bases"])


async def test_a_scheduler_config_without_a_spec_gets_every_setting(client, namespace):
    manifest = {"apiVersion": "kgwe.nvidia.io/v1", "kind": "SchedulerConfig", "metadata": {"name": "default"}}
    stored = await dry_run(client, manifest, namespace)
    assert stored["spec"]["nodeWeights"] == {"topology": 40, "resource": 35, "balance": 25}
    assert stored["spec"]["schedulingTimeout"] == "30s"


async def test_the_same_bandwidth_may_stand_in_both_places(client, namespace):
    requirements = {"count": 8, "minBandwidthGBps": 600, "topology": {"minBandwidthGBps": 600}}
    await dry_run(client, minimal(gpuRequirements=requirements), namespace)


async def test_a_null_counts_as_left_out(client, namespace):
    stored = await dry_run(client, minimal(priority=None, framework=None), namespace)
    assert stored["spec"]["priority"] == 0
    assert "framework" not in stored["spec"]


async def test_the_pod_template_is_free_and_kept_as_written(client, namespace):
    template = {
        "metadata": {"labels": {"team": "a"}, "annotations": {"x.example/y": "z"}},
        "spec": {
            "tolerations": [{"operator": "Exists"}],
            "containers": [
                {"name": "main", "image": "train", "env": [{"name": "A", "value": "1"}], "aFieldOfNextYear": {"b": [1]}}
            ],
        },
    }
    stored = await dry_run(client, minimal(podTemplate=template), namespace)
    assert stored["spec"]["podTemplate"] == template


# --- bad manifests -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", TABLE["cases"], ids=lambda case: f"{case['base']}: {case['why']}")
async def test_a_bad_manifest_is_refused_with_what_to_change(client, namespace, case):
    manifest = merged(TABLE["bases"][case["base"]], case["patch"])
    with pytest.raises(errors.Permanent) as refused:
        await dry_run(client, manifest, namespace)
    assert case["expect"] in str(refused.value)


async def test_unknown_fields_are_warned_of_when_not_refused(client, namespace):
    manifest = minimal(gpuRequirement={"count": 1})
    path = resources.GPU_WORKLOAD.path(namespace=namespace)
    params = {"dryRun": "All", "fieldValidation": "Warn"}
    content = msgspec.json.encode(manifest)
    reply = await client.transport.request("POST", path, params=params, content=content, content_type=JSON)
    assert reply.status_code == 201
    assert r"unknown field \"spec.gpuRequirement\"" in reply.headers["Warning"]
    assert "gpuRequirement" not in msgspec.json.decode(reply.content)["spec"]


# --- status and structs --------------------------------------------------------------------------------


async def test_status_is_written_only_through_its_own_door(client, namespace):
    manifest = minimal() | {"status": {"phase": "Running", "scheduledNode": "nowhere"}}
    name = manifest["metadata"]["name"]
    created = await client.create(resources.GPU_WORKLOAD, manifest, namespace)
    assert created.status == gpuworkload_status.GPUWorkloadStatus()

    patched = await client.patch(
        resources.GPU_WORKLOAD,
        name,
        {"status": {"phase": "Pending"}, "spec": {"priority": 7}},
        namespace,
        subresource="status",
    )
    assert patched.status.phase == gpuworkload_status.Phase.PENDING
    assert patched.spec.priority == 0
    assert patched.metadata.generation == created.metadata.generation

    replaced = await client.replace(
        resources.GPU_WORKLOAD, name, patched.manifest() | {"status": {"phase": "Failed"}}, namespace
    )
    assert replaced.status.phase == gpuworkload_status.Phase.PENDING
    with pytest.raises(errors.Permanent, match='Unsupported value: "Lost"'):
        await client.patch(resources.GPU_WORKLOAD, name, {"status": {"phase": "Lost"}}, namespace, subresource="status")


async def test_conditions_merge_by_type(client, namespace):
    manifest = minimal()
    name = manifest["metadata"]["name"]
    await client.create(resources.GPU_WORKLOAD, manifest, namespace)
    for manager, kind in (("one", "Scheduled"), ("two", "Ready")):
        # The same connection under another field manager's name.
        other = KubeClient(client.transport, field_manager=manager)
        condition = {"type": kind, "status": "True", "reason": "Test", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        await other.apply(
            resources.GPU_WORKLOAD,
            {"metadata": {"name": name}, "status": {"conditions": [condition]}},
            namespace,
            subresource="status",
        )
    stored = await client.get(resources.GPU_WORKLOAD, name, namespace)
    assert sorted(each.type for each in stored.status.conditions) == ["Ready", "Scheduled"]


async def test_an_object_survives_the_way_through_the_struct_and_back(client, namespace):
    manifest = documents(ROOT / "examples" / "distributed.yaml")[0]
    manifest["metadata"] = {"name": "round-trip"}
    await client.create(resources.GPU_WORKLOAD, manifest, namespace)
    status = gpuworkload_status.GPUWorkloadStatus(
        phase=gpuworkload_status.Phase.SUCCEEDED,
        scheduledNode="gpu-1",
        placements=(gpuworkload_status.PodPlacement("gpu-1", 1), gpuworkload_status.PodPlacement("gpu-2", 3)),
        allocatedGPUs=("GPU-1", "GPU-2"),
        migInstances=(gpuworkload_status.MIGInstance("GPU-1", "MIG-1", "1g.10gb"),),
        schedulingScore=97,
        estimatedBandwidth=450.5,
        startTime="2026-01-01T00:00:00Z",
        observedGeneration=1,
    )
    stored = await client.patch(
        resources.GPU_WORKLOAD, "round-trip", {"status": msgspec.to_builtins(status)}, namespace, subresource="status"
    )
    assert stored.status == status

    untyped = resource_of(manifest)
    before = await client.get(untyped, "round-trip", namespace)
    again = await client.replace(resources.GPU_WORKLOAD, "round-trip", stored.manifest(), namespace)
    after = await client.get(untyped, "round-trip", namespace)
    assert again.metadata.generation == stored.metadata.generation
    assert (after["spec"], after["status"]) == (before["spec"], before["status"])
