"""What a merge patch makes of a message, and when an object is written whole."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from google.protobuf import json_format
from tests.support.fakes.recording_client import RecordingClient

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.kube.client import client as kube_client
from kgwe.kube.client.replace import ProtobufReplacer
from kgwe.kube.transport import protobuf, protobuf_patch
from kgwe.kube.transport.encoding import MAGIC
from kgwe.proto import kubernetes_pb2

READ = protobuf.reader(resources.POD.type, resources.POD.message).read
#: fields of a pod that no message of ours names: a volume, the restart policy, a host name
UNKNOWN = b"\x0a\x03\x0a\x01v" + b"\x1a\x05Never" + b"\x82\x01\x01h"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
HERE = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
POD = {
    "metadata": {
        "name": "p",
        "namespace": "n",
        "uid": "u",
        "resourceVersion": "7",
        "labels": {"team": "a"},
        "annotations": {"mine": "1", "seat": "old"},
        "managedFields": ["AAAA"],
    },
    "spec": {
        "schedulingGates": [{"name": "plan"}, {"name": "other"}],
        "priority": 0,
        "affinity": {
            "nodeAffinity": {
                REQUIRED: {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
                }
            }
        },
    },
}


def raw_pod(pod: dict[str, Any]) -> bytes:
    message = json_format.ParseDict(pod, kubernetes_pb2.Pod())
    message.spec.MergeFromString(UNKNOWN)
    return message.SerializeToString()


def after(patch: dict[str, Any], pod: dict[str, Any] = POD) -> kubernetes_pb2.Pod:
    written = protobuf_patch.merge_patch(resources.POD, raw_pod(pod), patch)
    envelope = kubernetes_pb2.Envelope.FromString(written.removeprefix(MAGIC))
    assert (envelope.typeMeta.apiVersion, envelope.typeMeta.kind) == ("v1", "Pod")
    return kubernetes_pb2.Pod.FromString(envelope.raw)


def by_the_book(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = by_the_book(result.get(name), value)
    return result


PATCHES: list[dict[str, Any]] = [
    {},
    {"metadata": {"uid": "u", "annotations": {"seat": "new", "cards": "f0", "mine": None}}},
    {"metadata": {"annotations": None, "labels": {"seated": "true"}}},
    {"spec": {"schedulingGates": [{"name": "other"}]}},
    {"spec": {"schedulingGates": []}},
    {"spec": {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchFields": [HERE]}]}}}}},
    {"spec": {"affinity": None, "nodeSelector": {"zone": "b"}, "priority": 3}},
]


@pytest.mark.parametrize("patch", PATCHES)
def test_a_patch_does_what_it_does_to_the_same_object_in_json(patch):
    expected = by_the_book(copy.deepcopy(POD), patch)
    del expected["metadata"]["managedFields"]

    written = after(patch)

    shown = json_format.MessageToDict(written)
    assert shown == json_format.MessageToDict(json_format.ParseDict(expected, kubernetes_pb2.Pod()))


@pytest.mark.parametrize("patch", PATCHES)
def test_fields_that_nobody_here_knows_are_written_as_they_came(patch):
    written = after(patch)
    kubernetes_pb2.Pod.ClearField(written.spec, "schedulingGates")
    for field, _ in written.spec.ListFields():
        written.spec.ClearField(field.name)

    assert written.spec.SerializeToString() == UNKNOWN


def test_zero_that_was_given_stays_given():
    assert after({}).spec.HasField("priority")
    assert not after({}, {"metadata": {"name": "p"}}).spec.HasField("priority")


@pytest.mark.parametrize(
    "patch",
    [
        {"spec": {"hostNetwork": True}},
        {"spec": {"priority": "high"}},
        {"spec": {"overhead": {"cpu": "1"}}},
        {"metadata": {"creationTimestamp": "2026-01-02T03:04:05Z"}},
        {"spec": {"schedulingGates": "none"}},
    ],
)
def test_a_patch_that_cannot_be_carried_out_here_is_refused(patch):
    with pytest.raises(errors.Permanent, match="Pod"):
        after(patch)


# --- writing --------------------------------------------------------------------------------------------


PATCH = PATCHES[1]


def rewriter(client: Any, raw: bytes | None = None) -> ProtobufReplacer[Any]:
    return ProtobufReplacer(client, resources.POD, lambda _: raw_pod(POD) if raw is None else raw)


async def test_an_object_whose_bytes_are_at_hand_is_written_whole():
    client = RecordingClient()
    writer = rewriter(client)
    await writer.merge(READ(raw_pod(POD)), PATCH)

    assert [(each.verb, each.body) for each in client.writes] == [
        ("put", protobuf_patch.merge_patch(resources.POD, raw_pod(POD), PATCH))
    ]
    assert writer.replaced == 1


@pytest.mark.parametrize(("raw", "as_known"), [(b"", True), (None, False)])
async def test_one_of_which_that_is_not_so_is_patched(raw, as_known):
    client = RecordingClient()
    await rewriter(client, raw).merge(READ(raw_pod(POD)), PATCH, as_known=as_known)

    assert [(each.verb, each.body) for each in client.writes] == [("patch", PATCH)]


@pytest.mark.parametrize("refusal", [errors.Conflict("written meanwhile"), errors.Permanent("invalid")])
async def test_one_that_cannot_be_replaced_is_patched_and_the_next_is_tried_again(refusal):
    client = RecordingClient(refusal)
    writer = rewriter(client)
    for _ in range(2):
        await writer.merge(READ(raw_pod(POD)), PATCH)

    assert client.attempts == ["put", "patch", "put"]


async def test_who_may_not_replace_does_not_ask_again():
    client = RecordingClient(kube_client.Forbidden("no right to update pods"))
    writer = rewriter(client)
    for _ in range(2):
        await writer.merge(READ(raw_pod(POD)), PATCH)

    assert client.attempts == ["put", "patch", "patch"]


@pytest.mark.parametrize("failure", [errors.Transient("busy"), errors.NotFound("gone")])
async def test_what_a_patch_would_meet_as_well_is_passed_on(failure):
    client = RecordingClient(failure)
    with pytest.raises(type(failure)):
        await rewriter(client).merge(READ(raw_pod(POD)), PATCH)

    assert client.attempts == ["put"]


async def test_a_patch_that_cannot_be_carried_out_here_is_left_to_the_server():
    client = RecordingClient()
    await rewriter(client).merge(READ(raw_pod(POD)), {"spec": {"hostNetwork": True}})

    assert client.attempts == ["patch"]
