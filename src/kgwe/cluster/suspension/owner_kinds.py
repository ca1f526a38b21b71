"""Kinds of owners that KGWE can suspend, how each is suspended."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from kgwe.kube.api import resources
from kgwe.kube.api.owners import OwnerObject
from kgwe.kube.api.resources import Resource

if TYPE_CHECKING:
    from kgwe.kube.api.meta import OwnerReference

#: on a Kubeflow Notebook: it is stopped while it has this annotation
STOP_ANNOTATION: Final = "kubeflow-resource-stopped"

_VERSION: Final = re.compile(r"v[1-9][0-9]*((alpha|beta)[1-9][0-9]*)?")
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_MOST_NAME_CHARS: Final = 253


class Method(StrEnum):
    """How a kind is suspended."""

    SUSPEND_FIELD = "suspend"
    REPLICAS = "replicas"
    STOP_ANNOTATION = "annotation"


@dataclass(frozen=True, slots=True)
class OwnerKind:
    """A kind that can be suspended."""

    resource: Resource[OwnerObject]
    method: Method
    #: its objects select their pods by labels
    has_selector: bool = False

    @property
    def is_gpu_workload(self) -> bool:
        return self.resource.kind == resources.GPU_WORKLOAD.kind


def _view(known: Resource[Any]) -> Resource[OwnerObject]:
    return Resource(known.group, known.version, known.plural, known.kind, namespaced=True, type=OwnerObject)


def _kind(group: str, version: str, plural: str, kind: str) -> Resource[OwnerObject]:
    return Resource(group, version, plural, kind, namespaced=True, type=OwnerObject)


KINDS: Final[tuple[OwnerKind, ...]] = (
    OwnerKind(_view(resources.GPU_WORKLOAD), Method.SUSPEND_FIELD),
    OwnerKind(_view(resources.WARP_GPU_WORKLOAD), Method.SUSPEND_FIELD),
    OwnerKind(_view(resources.JOB), Method.SUSPEND_FIELD, has_selector=True),
    OwnerKind(_view(resources.DEPLOYMENT), Method.REPLICAS, has_selector=True),
    OwnerKind(_kind("apps", "v1", "statefulsets", "StatefulSet"), Method.REPLICAS, has_selector=True),
    OwnerKind(_kind("apps", "v1", "replicasets", "ReplicaSet"), Method.REPLICAS, has_selector=True),
    OwnerKind(_kind("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet"), Method.REPLICAS),
    OwnerKind(_kind("kubeflow.org", "v1", "notebooks", "Notebook"), Method.STOP_ANNOTATION),
)
_BY_GROUP_AND_KIND: Final = {(each.resource.group, each.resource.kind): each for each in KINDS}


def kind_of_reference(reference: OwnerReference) -> OwnerKind | None:
    """The kind that an owner reference names; None: KGWE cannot suspend it.

    A user wrote the reference: its version and name become parts of a path only if they look like such.
    """
    group, _, version = reference.apiVersion.rpartition("/")
    known = _BY_GROUP_AND_KIND.get((group, reference.kind))
    if known is None or not _VERSION.fullmatch(version) or not is_name(reference.name):
        return None
    return replace(known, resource=replace(known.resource, version=version))


def is_name(text: str) -> bool:
    """Whether an object can have this name."""
    return len(text) <= _MOST_NAME_CHARS and _NAME.fullmatch(text) is not None
