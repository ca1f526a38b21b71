"""Manifests as others write them, and what becomes of them.

A Pod in a manifest stands for several: `$i` is replaced by the number of each, `$q` by the number of its group of four.
Every pod takes a whole node of eight cards unless it says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from kgwe import yaml_text
from kgwe.kube.api import core
from kgwe.kube.dialects import KINDS, Gang, Groups, Levels, Membership, Problem, find_membership, gang_request
from kgwe.kube.translate import podspec
from kgwe.model.network.domain_labels import TOPOGRAPH
from kgwe.placement.fleet.node import Gpus, Request

#: as `tests.support.builders.racks` has them
LEVELS = Levels(TOPOGRAPH, ("leaf", "spine"))
LEAF = "fabric.topograph.run/tier-0"
SPINE = "fabric.topograph.run/tier-1"

_KINDS = {(kind.api_version, kind.kind): kind for kind in KINDS}
_CONTAINERS = [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]


@dataclass
class World:
    pods: list[core.Pod] = field(default_factory=list)
    groups: Groups = field(default_factory=lambda: Groups(LEVELS, {}))

    @property
    def memberships(self) -> list[Membership]:
        return [member for _, member in self.members]

    @property
    def members(self) -> list[tuple[core.Pod, Membership]]:
        found = [(pod, find_membership(pod, self.groups)) for pod in self.pods]
        return [(pod, member) for pod, member in found if member is not None]

    def gang(self) -> Gang:
        gang = gang_request(self.members, request_of)
        assert isinstance(gang, Gang), gang
        return gang

    def problem(self) -> Problem:
        problem = gang_request(self.members, request_of)
        assert isinstance(problem, Problem), problem
        return problem


def request_of(pod: core.Pod) -> Request:
    taken = podspec.sum_requests(pod.spec)
    return Request(Gpus(count=taken.get("nvidia.com/gpu", 0)), taken.get("cpu", 0))


def load(text: str, count: int = 8, *, served: bool = True) -> World:
    """Objects of the kinds in the text are known; with `served`, every kind is watched, also those without objects."""
    stores: dict[Any, dict[str, Any]] = {kind: {} for kind in KINDS} if served else {}
    pods: list[core.Pod] = []
    for document in yaml_text.parse_documents(text):
        if document["kind"] == "Pod":
            pods += [_pod(document, number) for number in range(document.pop("count", count))]
        else:
            metadata = document["metadata"]
            key = "/".join(metadata[word] for word in ("namespace", "name") if word in metadata)
            stores.setdefault(_KINDS[document["apiVersion"], document["kind"]], {})[key] = document
    return World(pods, Groups(LEVELS, stores))


def _pod(document: dict[str, Any], number: int) -> core.Pod:
    text = msgspec.json.encode(document).decode()
    numbered = msgspec.json.decode(text.replace("$i", str(number)).replace("$q", str(number // 4)))
    numbered.setdefault("spec", {}).setdefault("containers", _CONTAINERS)
    return msgspec.convert(numbered, core.Pod)


def pod(name: str = "p", *, namespace: str = "train", **fields: Any) -> core.Pod:
    metadata = {"name": name, "namespace": namespace, **fields.pop("metadata", {})}
    for word in ("labels", "annotations"):
        metadata[word] = fields.pop(word, {})
    spec = {"containers": _CONTAINERS, **fields.pop("spec", {})}
    return msgspec.convert({"metadata": metadata, "spec": spec, **fields}, core.Pod)


def gang_of(size: int, **said: str) -> dict[str, str]:
    """Annotations of our own dialect for a pod of gang llama."""
    named = {"kgwe.nvidia.io/" + word.replace("_", "-"): text for word, text in said.items()}
    return {"kgwe.nvidia.io/gang": "llama", "kgwe.nvidia.io/gang-size": str(size), **named}
