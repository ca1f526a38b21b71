"""Manifests treated as created objects, with the pods that their controllers would create.

Supported are workloads of both API groups, pods, Jobs, Deployments, and the gang objects of other systems. Nothing is
sent to the API server, so its validation errors are not noticed.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kgwe import errors
from kgwe.apps.whatif import manifest_errors
from kgwe.kube import dialects
from kgwe.kube.api import resources
from kgwe.kube.client.informer import Change

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from kgwe.cluster.offline import View
    from kgwe.kube.api.resources import Resource

#: uid prefix of objects that do not exist
UID_PREFIX: Final = "submitted-"
_INDEX: Final = "batch.kubernetes.io/job-completion-index"
_MAKERS: Final = frozenset({("batch", "Job"), ("apps", "Deployment"), ("apps", "ReplicaSet"), ("apps", "StatefulSet")})
# Maximum pods per manifest; more are a mistake and would take too long.
_MOST_PODS: Final = 10_000

Document = dict[str, Any]


class Submitted:
    """Adds manifests to a view."""

    def __init__(self, view: View, namespace: str, now: str) -> None:
        self._view = view
        self._namespace = namespace
        self._now = now
        self._numbers = itertools.count(1)
        #: kinds that do not affect placement
        self.ignored: list[str] = []
        self.uids: set[str] = set()

    def put(self, documents: Iterable[Document]) -> None:
        """Add the manifests, gang objects first, so that pods are read with their gang."""
        listed = [self._add_server_fields(document) for document in documents]
        for document in sorted(listed, key=lambda each: each["kind"] == "Pod" or _group_kind(each) in _MAKERS):
            self._put(document)

    def _put(self, document: Document) -> None:
        group, kind = _group_kind(document)
        state = self._view.state
        own: dict[tuple[str, str], tuple[Resource[Any], Callable[[Any], None]]] = {
            (resources.GPU_WORKLOAD.group, "GPUWorkload"): (resources.GPU_WORKLOAD, state.on_kgwe),
            (resources.WARP_GPU_WORKLOAD.group, "GPUWorkload"): (resources.WARP_GPU_WORKLOAD, state.on_warp),
        }
        described = next((each for each in dialects.KINDS if (each.group, each.kind) == (group, kind)), None)
        if (group, kind) in own:
            resource, listener = own[group, kind]
            _check_fields(resource, document)
            _on_object(listener, self._read(resource, document))
        elif (group, kind) == ("", "Pod"):
            self._pod(document)
        elif (group, kind) in _MAKERS:
            self._maker(document, kind)
        elif described is not None:
            self._store(described, self._read(described, document))
        else:
            self.ignored.append(f"{kind} {document['metadata']['name']}")

    # --- objects ----------------------------------------------------------------------------------------

    def _add_server_fields(self, document: Mapping[str, Any]) -> Document:
        """Return the document with the fields that the API server adds."""
        meta = dict(document["metadata"])
        meta.setdefault("namespace", self._namespace)
        meta |= {"uid": f"{UID_PREFIX}{next(self._numbers)}", "creationTimestamp": self._now, "generation": 1}
        self.uids.add(meta["uid"])
        return {**document, "metadata": meta}

    def _read(self, resource: Resource[Any], document: Document) -> Any:
        try:
            return msgspec.convert(document, resource.type, strict=False)
        except msgspec.ValidationError as exc:
            problem = manifest_errors.describe_error(str(exc), document)
            raise errors.Permanent(f"{_title(document)}: {problem}") from exc

    def _store(self, kind: Resource[Any], obj: Any) -> None:
        objects = self._view.state.group_objects
        objects.add_store(kind, {**objects.stores.get(kind, {}), obj.metadata.key: obj})

    def _pod(self, document: Document) -> None:
        spec = dict(document.get("spec") or {})
        spec.setdefault("schedulerName", "default-scheduler")
        name = spec.get("priorityClassName", "")
        if name and "priority" not in spec:
            if name not in self._view.state.priority_classes:
                raise errors.Permanent(f"Pod {document['metadata']['name']}: PriorityClass {name!r} does not exist")
            spec["priority"] = self._view.state.priority_classes[name]
        spec.pop("nodeName", None)
        spec = _quote_quantities(spec)
        pod = self._read(resources.POD, {**document, "spec": spec, "status": {"phase": "Pending"}})
        _on_object(self._view.state.on_pod, pod)

    def _maker(self, document: Document, kind: str) -> None:
        spec = document.get("spec") or {}
        template = spec.get("template") or {}
        if kind == "Job":
            bare = {key: value for key, value in spec.items() if key not in ("suspend", "template")}
            self._store(resources.JOB, self._read(resources.JOB, {**document, "spec": bare}))
            parallelism, completions = spec.get("parallelism", 1), spec.get("completions")
            count = parallelism if completions is None else min(parallelism, completions)
        else:
            count = spec.get("replicas", 1)
        if not isinstance(count, int) or count > _MOST_PODS:
            raise errors.Permanent(
                f"{kind} {document['metadata']['name']}: {count!r} pods; the maximum is {_MOST_PODS}"
            )
        for pod in self._pods(document, template, count, indexed=spec.get("completionMode") == "Indexed"):
            self._pod(self._add_server_fields(pod))

    def _pods(self, maker: Document, template: Mapping[str, Any], count: int, *, indexed: bool) -> Iterator[Document]:
        meta = maker["metadata"]
        owner = {
            "apiVersion": maker["apiVersion"],
            "kind": maker["kind"],
            "name": meta["name"],
            "uid": meta["uid"],
            "controller": True,
        }
        given = template.get("metadata") or {}
        for number in range(count):
            index = {_INDEX: str(number)} if indexed else {}
            yield {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"{meta['name']}-{number}",
                    "namespace": meta["namespace"],
                    "labels": {**(given.get("labels") or {}), **index},
                    "annotations": {**(given.get("annotations") or {}), **index},
                    "ownerReferences": [owner],
                },
                "spec": dict(template.get("spec") or {}),
            }


def _quote_quantities(spec: Document) -> Document:
    """Return the document with numeric quantities as strings."""
    found = dict(spec)
    for part in ("containers", "initContainers"):
        if isinstance(spec.get(part), list):
            found[part] = [_with_text(each) for each in spec[part]]
    return _with_text(found)


def _with_text(holder: Document) -> Document:
    wants = holder.get("resources")
    if not isinstance(wants, dict):
        return holder
    texts = {
        part: {name: str(amount) for name, amount in (wants.get(part) or {}).items()} for part in ("limits", "requests")
    }
    return {**holder, "resources": {**wants, **texts}}


def _check_fields(resource: Resource[Any], document: Document) -> None:
    """Raise Permanent for a field of the spec that the kind does not have, as kubectl would."""
    fields = {each.name: each.type for each in msgspec.structs.fields(resource.type)}
    if problem := manifest_errors.find_unknown_field(document.get("spec"), fields["spec"], "spec"):
        raise errors.Permanent(f"{_title(document)}: {problem}")


def _title(document: Document) -> str:
    return f"{document['kind']} {document['metadata']['name']}"


def _group_kind(document: Mapping[str, Any]) -> tuple[str, str]:
    return document["apiVersion"].rpartition("/")[0], document["kind"]


def _on_object(listener: Callable[[Any], None], obj: Any) -> None:
    listener(Change(obj.metadata.key, None, obj))
