"""The webhook changes what the policies change, and nothing twice; whatever it gets, the pod is allowed."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import msgspec
import pytest
from tests.support.fakes import json_patches

from kgwe.apps.webhook.handler import PATH, AdmissionHandler
from kgwe.apps.webhook.main import LIMITS
from kgwe.apps.webhook.metrics import Metrics
from kgwe.kube.api.kgwe.rightsizingdecision import RightsizingDecisionSpec, Smaller
from kgwe.telemetry import http
from kgwe.telemetry.messages import Request

MIG = "nvidia.com/mig-1g.10gb"
KEY = "Deployment/chat registry.example/chat:1 1"
SLICE = Smaller(resource=MIG, profile="1g.10gb", reason="small")
SPEC = RightsizingDecisionSpec(mode="enforce", offered=(MIG,), decisions={KEY: SLICE})
JOB_CONTROLLER = "system:serviceaccount:kube-system:job-controller"
LINE = "01234567.0123456789abcdef0123456789abcdef.node-{number} f {slices}"


def make_pod(**changes: Any) -> dict[str, Any]:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "chat-7d9", "uid": "1abc", "controller": True}
    limits = {"nvidia.com/gpu": "1", "cpu": "2"}
    container = {
        "name": "main",
        "image": "registry.example/chat:1",
        "resources": {"limits": limits, "requests": dict(limits)},
    }
    meta: dict[str, Any] = {
        "generateName": "chat-7d9-",
        "labels": {"pod-template-hash": "7d9"},
        "ownerReferences": [owner],
    }
    spec: dict[str, Any] = {"containers": [container], "volumes": [{"name": "kube-api-access-xyzzb"}]}
    return {"metadata": meta | changes.pop("metadata", {}), "spec": spec | changes}


class Bed:
    def __init__(self, spec: RightsizingDecisionSpec | None = SPEC, revoked: tuple[str, ...] = ()) -> None:
        self.metrics = Metrics()
        self.handler = AdmissionHandler(
            find_decisions=lambda _namespace: spec,
            list_revoked=lambda: revoked,
            exempt=("kube-system",),
            metrics=self.metrics,
        )

    def ask(self, pod: dict[str, Any], user: str = "me", namespace: str = "team", **more: Any) -> dict[str, Any]:
        """The pod after the answer was carried out."""
        request = {"uid": "u", "namespace": namespace, "operation": "CREATE", "object": pod} | more
        body = msgspec.json.encode({"request": request | {"userInfo": {"username": user}}})
        reply = self.handler(Request("POST", PATH, [], body, too_large=False))
        answer = msgspec.json.decode(reply.body)["response"]
        assert (reply.status, answer["uid"], answer["allowed"]) == (200, "u", True)
        if "patch" not in answer:
            return pod
        changed: dict[str, Any] = json_patches.apply(pod, msgspec.json.decode(base64.b64decode(answer["patch"])))
        return changed

    def count(self, outcome: str) -> float:
        return self.metrics.registry.get_sample_value("kgwe_webhook_requests_total", {"outcome": outcome}) or 0.0


def request_of(pod: dict[str, Any]) -> dict[str, str]:
    return {name: text for name, text in pod["spec"]["containers"][0]["resources"]["limits"].items() if "/" in name}


def test_a_pod_gets_the_slice_once() -> None:
    bed = Bed()
    made = bed.ask(make_pod())
    assert made["spec"]["containers"][0]["resources"] == {
        part: {"cpu": "2", MIG: "1"} for part in ("limits", "requests")
    }
    assert made["metadata"]["annotations"]["kgwe.nvidia.io/original-gpu-request"] == "1"
    assert bed.ask(made) == made
    assert (bed.count("changed"), bed.count("unchanged")) == (1, 1)


def test_a_dry_run_gets_the_same_answer_and_is_not_counted() -> None:
    bed = Bed()
    assert request_of(bed.ask(make_pod(), dryRun=True)) == {MIG: "1"}
    assert bed.count("changed") == 0


@pytest.mark.parametrize(
    ("mode", "letters", "is_applied"), [("shadow", "", False), ("canary", "b", True), ("canary", "c", False)]
)
def test_in_shadow_and_outside_the_canary_an_annotation_says_what_would_happen(
    mode: str, letters: str, *, is_applied: bool
) -> None:
    made = Bed(msgspec.structs.replace(SPEC, mode=mode, canaryLetters=letters)).ask(make_pod())
    assert request_of(made) == ({MIG: "1"} if is_applied else {"nvidia.com/gpu": "1"})
    assert ("kgwe.nvidia.io/would-be-gpu-request" in made["metadata"]["annotations"]) is not is_applied


UNCHANGED: dict[str, tuple[dict[str, Any], RightsizingDecisionSpec | None]] = {
    "no decisions": (make_pod(), None),
    "off": (make_pod(), msgspec.structs.replace(SPEC, mode="off")),
    "stopped by the error budget": (make_pod(), msgspec.structs.replace(SPEC, problem="budget")),
    "a slice that no node offers": (make_pod(), msgspec.structs.replace(SPEC, offered=())),
    "another key": (make_pod(), msgspec.structs.replace(SPEC, decisions={"Deployment/x i 1": SLICE})),
    "bound already": (make_pod(nodeName="n1"), SPEC),
    "of a GPUWorkload": (make_pod(metadata={"labels": {"kgwe.nvidia.io/workload-uid": "w"}}), SPEC),
    "opted out": (make_pod(metadata={"annotations": {"kgwe.nvidia.io/optimize": "false"}}), SPEC),
    "exclusive": (make_pod(metadata={"annotations": {"gpu-autoscaler.io/sharing-mode": "exclusive"}}), SPEC),
    "of Kueue": (make_pod(metadata={"labels": {"pod-template-hash": "7d9", "kueue.x-k8s.io/managed": "true"}}), SPEC),
    "of Volcano": (make_pod(schedulerName="volcano"), SPEC),
    "of a gang": (make_pod(metadata={"annotations": {"kgwe.nvidia.io/gang": "g"}}), SPEC),
    "without GPUs": (make_pod(containers=[{"name": "main", "image": "i"}]), SPEC),
    "with slices": (make_pod(containers=[{"name": "c", "image": "i", "resources": {"limits": {MIG: "1"}}}]), SPEC),
    "a strange pod": ({"metadata": {"ownerReferences": [7]}, "spec": {"containers": [7]}}, SPEC),
    "no spec": ({"metadata": None, "spec": None}, SPEC),
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_a_pod_stays_as_it_is(name: str) -> None:
    pod, spec = UNCHANGED[name]
    assert Bed(spec).ask(pod) == pod


def test_exempt_namespaces_are_left_alone() -> None:
    assert Bed().ask(make_pod(), namespace="kube-system") == make_pod()


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"request": 7}', b"\xff", b"[" * 100_000])
def test_what_is_no_review_gets_a_clear_error(body: bytes) -> None:
    assert Bed().handler(Request("POST", PATH, [], body, too_large=False)).status == 400


# --- seats ------------------------------------------------------------------------------------------------


def make_member(index: str = "1", slices: str = "", **changes: Any) -> dict[str, Any]:
    lines = "\n".join(LINE.format(number=number, slices=slices) for number in range(3))
    notes = {"kgwe.nvidia.io/seats": lines, "batch.kubernetes.io/job-completion-index": index}
    labels = {"kgwe.nvidia.io/workload-uid": "w", "batch.kubernetes.io/controller-uid": "job"}
    spec = {"containers": [{"name": "main"}], "schedulingGates": [{"name": "kgwe.nvidia.io/plan"}]}
    return {"metadata": {"annotations": notes, "labels": labels}, "spec": spec | changes}


def test_a_member_gets_the_seat_of_its_index() -> None:
    made = Bed(None).ask(make_member(), JOB_CONTROLLER)
    assert made["metadata"]["annotations"] == {
        "batch.kubernetes.io/job-completion-index": "1",
        "kgwe.nvidia.io/seat": "w/1",
        "kgwe.nvidia.io/signature": LINE.format(number=1, slices="").split(" ")[0],
        "kgwe.nvidia.io/cards": "f",
    }
    assert "schedulingGates" not in made["spec"]
    required = made["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert required["nodeSelectorTerms"][0]["matchFields"][0]["values"] == ["node-1"]
    assert Bed(None).ask(made, JOB_CONTROLLER) == made


@pytest.mark.parametrize(
    "affinity",
    [
        {},
        {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": []}]}
            }
        },
        {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [{}]}, {}]}
            }
        },
    ],
)
def test_every_alternative_of_an_affinity_gets_the_node(affinity: dict[str, Any]) -> None:
    gate = {"name": "example.com/mine"}
    pod = make_member(affinity=affinity, schedulingGates=[gate, {"name": "kgwe.nvidia.io/plan"}])
    made = Bed(None).ask(pod, JOB_CONTROLLER)
    terms = made["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert all(term["matchFields"][-1]["values"] == ["node-1"] for term in terms)
    assert made["spec"]["schedulingGates"] == [gate]


@pytest.mark.parametrize(
    ("pod", "user", "revoked"),
    [
        (make_member(), "tenant", ()),
        (make_member(), JOB_CONTROLLER, ("job",)),
        (make_member("3"), JOB_CONTROLLER, ()),
        (make_member("-1"), JOB_CONTROLLER, ()),
        (make_member("x"), JOB_CONTROLLER, ()),
        (make_member(schedulingGates=[]), JOB_CONTROLLER, ()),
    ],
    ids=["of a user", "plan changed", "beyond the plan", "negative", "no number", "no gate"],
)
def test_a_member_keeps_its_gate(pod: dict[str, Any], user: str, revoked: tuple[str, ...]) -> None:
    assert Bed(None, revoked).ask(pod, user) == pod


async def test_an_api_server_may_have_600_requests_in_flight_beside_idle_connections() -> None:
    address = http.Address("127.0.0.1", 0)
    async with http.serving(Bed().handler, address, limits=LIMITS) as port:
        lines = [await asyncio.open_connection("127.0.0.1", port) for _ in range(700)]
        try:
            for _, writer in lines:
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
            heads = await asyncio.gather(*(reader.readline() for reader, _ in lines))
            assert set(heads) == {b"HTTP/1.1 404 Not Found\r\n"}
        finally:
            for _, writer in lines:
                writer.close()
