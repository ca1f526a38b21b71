"""The doctor on a server in memory: what it finds, and what it says to do."""

from __future__ import annotations

import base64
import datetime as dt
from typing import Any

import pytest
from tests.support.fakes.memory_api import MemoryApi

from kgwe import errors
from kgwe.certificates import authority
from kgwe.cli.install.doctor import load_rights
from kgwe.install.doctor import permissions
from kgwe.install.doctor.findings import Finding, Level, format_table
from kgwe.install.doctor.main import NAMES, Doctor
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient

NOW = dt.datetime(2026, 11, 18, 12, tzinfo=dt.UTC)
SPACE = "kgwe-system"
LABELS = {"app.kubernetes.io/part-of": "kgwe", "app.kubernetes.io/name": "kgwe-cost-engine"}


class Bed:
    def __init__(self) -> None:
        self.api = MemoryApi()

    def create(self, prefix: str, plural: str, name: str, namespace: str = SPACE, **body: Any) -> None:
        meta = {"name": name, **body.pop("metadata", {})}
        place = f"/namespaces/{namespace}" if namespace else ""
        self.api.call("POST", f"{prefix}{place}/{plural}", {"metadata": meta, **body})

    async def examine(self, check: str) -> list[Finding]:
        doctor = Doctor(KubeClient(self.api), [], now=lambda: NOW)
        return await doctor.examine([check])

    async def find(self, check: str) -> Finding:
        return (await self.examine(check))[0]


@pytest.fixture
def bed() -> Bed:
    return Bed()


async def test_an_unknown_check_is_refused_with_the_names_of_all(bed):
    with pytest.raises(errors.Permanent, match="unknown check 'laeder'; checks: kubernetes, kinds"):
        await bed.examine("laeder")


async def test_a_check_that_fails_leaves_the_others_alone(bed):
    bed.api.refuse_next("GET", resources.SECRET, 403, "secrets is forbidden", "Forbidden")
    names = [name for name in NAMES if name != "kubernetes"]  # the server in memory has no version
    doctor = Doctor(KubeClient(bed.api), load_rights(SPACE, "kgwe-node"), now=lambda: NOW)
    found = await doctor.examine(names)
    assert {each.check for each in found} >= set(names) - {"nodes"}
    (unknown,) = [each for each in found if each.level is Level.UNKNOWN and each.check == "certificates"]
    assert unknown.fix == "run doctor as a cluster administrator"
    assert all(each.fix for each in found if each.level in (Level.ERROR, Level.WARNING))


@pytest.mark.parametrize(
    ("spec", "level", "says"),
    [
        ({}, Level.ERROR, "no scheduler of KGWE leads"),
        ({"holderIdentity": "a", "renewTime": "2026-11-18T11:59:57.000000Z", "leaseDurationSeconds": 7}, Level.OK, "a"),
        (
            {"holderIdentity": "a", "renewTime": "2026-11-18T11:50:00.000000Z", "leaseDurationSeconds": 7},
            Level.ERROR,
            "the leader a was last seen 600 s ago",
        ),
    ],
)
async def test_the_leader_must_have_been_seen(bed, spec, level, says):
    bed.create("/apis/coordination.k8s.io/v1", "leases", "kgwe-scheduler", spec=spec)
    found = await bed.find("leader")
    assert found.level is level
    assert says in found.message


@pytest.mark.parametrize(
    ("days", "level", "says"),
    [
        (90, Level.OK, "1 certificates are valid"),
        (5, Level.WARNING, "kgwe-extender-tls expires on 2026-11-23"),
        (-5, Level.ERROR, "kgwe-extender-tls expired on 2026-11-13"),
        (None, Level.ERROR, "no certificate yet in Secret kgwe-extender-tls"),
    ],
)
async def test_certificates_that_end_are_reported(bed, days, level, says):
    data = {}
    if days is not None:
        start = NOW - dt.timedelta(days=100)
        root = authority.make_authority("kgwe", start, dt.timedelta(days=900))
        pair = authority.issue(root, "kgwe-extender", ("a",), start, dt.timedelta(days=100 + days))
        data = {"tls.crt": base64.b64encode(pair.certificate).decode()}
    bed.create("/api/v1", "secrets", "kgwe-extender-tls", data=data)
    found = await bed.find("certificates")
    assert found.level is level
    assert says in found.message


@pytest.mark.parametrize(
    ("level_of_namespace", "level"), [("restricted", Level.OK), ("baseline", Level.WARNING), (None, Level.WARNING)]
)
async def test_the_namespace_must_enforce_the_restricted_level(bed, level_of_namespace, level):
    labels = {"pod-security.kubernetes.io/enforce": level_of_namespace} if level_of_namespace else {}
    bed.create("/api/v1", "namespaces", SPACE, "", metadata={"labels": labels})
    found = await bed.find("namespace")
    assert found.level is level
    assert (found.fix == "") == (level is Level.OK)


def deploy(bed: Bed, **spec: Any) -> None:
    template = {"spec": {"containers": [{"name": "a"}], **spec}}
    body: dict[str, Any] = {"spec": {"replicas": 1, "template": template}, "status": {"availableReplicas": 1}}
    bed.create("/apis/apps/v1", "deployments", "kgwe-cost-engine", metadata={"labels": LABELS}, **body)


@pytest.mark.parametrize(
    ("text", "level", "says"),
    [
        ("instance_type,usd_per_hour\n", Level.ERROR, "ConfigMap prices: prices.csv"),
        (None, Level.ERROR, "ConfigMap prices does not exist"),
    ],
)
async def test_price_files_are_read(bed, text, level, says):
    deploy(bed, volumes=[{"name": "prices", "configMap": {"name": "prices"}}])
    if text is not None:
        bed.create("/api/v1", "configmaps", "prices", data={"prices.csv": text})
    found = await bed.find("prices")
    assert found.level is level
    assert says in found.message


async def test_a_store_that_is_lost_with_its_pod_is_reported(bed):
    deploy(bed, volumes=[{"name": "store", "emptyDir": {}}])
    found = await bed.find("store")
    assert (found.level, found.message) == (Level.WARNING, "kgwe-cost-engine loses its data with its pod")


async def test_a_store_whose_secret_is_missing_is_an_error(bed):
    reference = {"name": "KGWE_COST_STORE", "valueFrom": {"secretKeyRef": {"name": "db", "key": "url"}}}
    deploy(bed, containers=[{"name": "a", "env": [reference]}])
    assert (await bed.find("store")).message == "kgwe-cost-engine: Secret db has no key url"


async def test_a_container_that_does_not_start_is_named_with_its_reason(bed):
    body = {"spec": {"replicas": 2, "template": {}}, "status": {}}
    bed.create("/apis/apps/v1", "deployments", "kgwe-cost-engine", metadata={"labels": LABELS}, **body)
    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}}
    status = {"status": {"containerStatuses": [waiting]}}
    bed.create("/api/v1", "pods", "kgwe-cost-engine-1", metadata={"labels": LABELS}, **status)
    found = await bed.find("processes")
    assert found.message == "kgwe-cost-engine: 0 of 2 replicas are ready"
    assert found.fix.startswith("ImagePullBackOff: not found; kubectl logs")


async def test_a_kube_scheduler_without_configuration_is_found(bed):
    spec = {"containers": [{"name": "a", "command": ["kube-scheduler", "--kubeconfig=x"]}]}
    labels = {"component": "kube-scheduler"}
    bed.create("/api/v1", "pods", "kube-scheduler-a", "kube-system", metadata={"labels": labels}, spec=spec)
    found = await bed.find("kube-scheduler")
    assert found.level is Level.ERROR
    assert "kube-scheduler-a has no --config" in found.message


async def test_gpu_nodes_need_labels_of_the_operator_and_of_the_network(bed):
    status = {"allocatable": {"nvidia.com/gpu": "8"}}
    bed.create("/api/v1", "nodes", "a", "", status=status)
    operator, network = await bed.examine("nodes")
    assert operator.message == "1 node with GPUs; without the label nvidia.com/gpu.present=true: a"
    assert network.message == "no GPU node says where it is in the network"


def test_rights_of_all_accounts_are_listed():
    rights = permissions.list_rights(load_rights("gpu-platform", "gpu-nodes"))
    accounts = {(each.account_namespace, each.account) for each in rights}
    assert ("gpu-nodes", "kgwe-agent") in accounts
    assert {name for space, name in accounts if space == "gpu-platform"} >= {
        "kgwe-scheduler", "kgwe-mig", "kgwe-optimizer", "kgwe-cost", "kgwe-autoscaler", "kgwe-webhook", "kgwe-advisor",
    }  # fmt: skip
    texts = {each.text for each in rights if each.account == "kgwe-scheduler"}
    assert {"create pods/eviction", "get secrets kgwe-decision-key in gpu-platform"} <= texts


def test_the_table_counts_and_shows_advice():
    text = format_table([Finding("leader", Level.ERROR, "none", "start one"), Finding("dcgm", Level.OK, "fine")])
    assert text.splitlines() == [
        "ERROR    leader  none",
        "                 -> start one",
        "ok       dcgm    fine",
        "",
        "1 ok, 0 warnings, 1 errors, 0 unknown",
    ]


def test_no_rule_repeats_the_rights_of_others():
    """Removing any one rule of a role takes a right away, which the doctor then names."""
    documents = load_rights(SPACE, "kgwe-node")
    every = set(permissions.list_rights(documents))
    idle = []
    for document in documents:
        rules = document.get("rules", [])
        for number, rule in enumerate(rules):
            if _is_bound(document, documents):
                document["rules"] = rules[:number] + rules[number + 1 :]
                if set(permissions.list_rights(documents)) == every:
                    idle.append((document["metadata"]["name"], rule))
        document["rules"] = rules
    assert idle == []


def _is_bound(role: dict[str, Any], documents: list[dict[str, Any]]) -> bool:
    wanted = (role["kind"], role["metadata"]["name"])
    return any((each["roleRef"]["kind"], each["roleRef"]["name"]) == wanted for each in documents if "roleRef" in each)
