"""AdmissionReviews: what the API server asks a webhook about a pod, and the answer. The pod is always allowed."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from kgwe import errors

#: operations of a JSON patch
Patch = list[dict[str, Any]]


class User(msgspec.Struct, frozen=True):
    username: str = ""


class AdmissionRequest(msgspec.Struct, frozen=True):
    uid: str
    namespace: str = ""
    operation: str = ""
    dryRun: bool = False  # noqa: N815 - the name in the API
    userInfo: User = User()  # noqa: N815 - the name in the API
    object: dict[str, Any] | None = None


class _Review(msgspec.Struct, frozen=True):
    request: AdmissionRequest


def read_review(body: bytes) -> AdmissionRequest:
    """Return the request of an AdmissionReview; raise Permanent if it is none."""
    try:
        return msgspec.json.decode(body, type=_Review, strict=False).request
    except (msgspec.DecodeError, UnicodeError, OverflowError, RecursionError) as exc:
        raise errors.Permanent(f"not an AdmissionReview: {exc}") from exc


def encode_reply(uid: str, patch: Patch) -> bytes:
    """Return an AdmissionReview that allows the pod with these changes."""
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    if patch:
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(msgspec.json.encode(patch)).decode()}
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
