"""Changes to a pod while it is created, as operations of a JSON patch: annotations, its node, and the removed gate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kgwe.cluster.workload import placement_annotations

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.kube.translate.admission_wire import Patch

_TERMS: Final = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution"


def read_map(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the map of that name; empty if there is none."""
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def add(path: str, value: Any) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}


def annotate(name: str, value: str) -> dict[str, Any]:
    """Return the change that sets an annotation; the pod must have annotations (`begin_annotations`)."""
    return add(f"/metadata/annotations/{escape(name)}", value)


def begin_annotations(meta: Mapping[str, Any]) -> Patch:
    """Return the change without which annotations cannot be added to a pod that has none."""
    return [] if meta.get("annotations") else [add("/metadata/annotations", {})]


def escape(name: str) -> str:
    """Return the name as a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def list_gates(body: Mapping[str, Any]) -> list[Any]:
    return [each.get("name") for each in body.get("schedulingGates") or ()]


def remove_gate(body: Mapping[str, Any]) -> Patch:
    """Return the change that removes KGWE's gate and no other; empty: there is none."""
    gates, path = list_gates(body), "/spec/schedulingGates"
    if placement_annotations.GATE not in gates:
        return []
    kept = [{"name": name} for name in gates if name != placement_annotations.GATE]
    return [{"op": "replace", "path": path, "value": kept} if kept else {"op": "remove", "path": path}]


def pin_to_node(body: Mapping[str, Any], node: str) -> Patch:
    """Return the changes that add the node to the required affinity. Terms are alternatives, so each gets it."""
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    affinity = body.get("affinity")
    of_node = read_map(affinity or {}, "nodeAffinity")
    terms = read_map(of_node, "requiredDuringSchedulingIgnoredDuringExecution").get("nodeSelectorTerms") or []
    required = {"nodeSelectorTerms": [{"matchFields": [here]}]}
    if terms:
        return [
            add(f"{_TERMS}/nodeSelectorTerms/{number}/matchFields/-", here)
            if term.get("matchFields")
            else add(f"{_TERMS}/nodeSelectorTerms/{number}/matchFields", [here])
            for number, term in enumerate(terms)
        ]
    if of_node:
        return [add(_TERMS, required)]
    if affinity is not None:
        return [add("/spec/affinity/nodeAffinity", {"requiredDuringSchedulingIgnoredDuringExecution": required})]
    added = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return [add("/spec/affinity", added)]
