"""Pods as their owners created them, without their places."""

from __future__ import annotations

import msgspec

from kgwe.cluster.workload import placement_annotations
from kgwe.kube.api import core


def strip_placement(pod: core.Pod) -> core.Pod:
    """The pod without its node, and without the affinity that pins it to its seat."""
    spec = pod.spec
    if spec.nodeName:
        spec = msgspec.structs.replace(spec, nodeName="")
    if placement_annotations.SEAT_ANNOTATION in pod.metadata.annotations:
        spec = msgspec.structs.replace(spec, affinity=_remove_pin(spec))
    return pod if spec is pod.spec else msgspec.structs.replace(pod, spec=spec)


def without_pin(pod: core.Pod) -> core.Pod:
    """The pod as its owner would create it again: without the affinity that pins it."""
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, affinity=_remove_pin(pod.spec)))


def _remove_pin(spec: core.PodSpec) -> core.Affinity:
    """The affinity without the expression that pins the pod; a term with nothing else is removed."""
    required = spec.affinity.nodeAffinity.required
    here = placement_annotations.pinned_node(spec)
    if required is None or not here:
        return spec.affinity
    terms = []
    for term in required.nodeSelectorTerms:
        fields = tuple(line for line in term.matchFields if line.values != (here,))
        if fields or term.matchExpressions:
            terms.append(msgspec.structs.replace(term, matchFields=fields))
    selector = msgspec.structs.replace(required, nodeSelectorTerms=tuple(terms)) if terms else None
    return msgspec.structs.replace(spec.affinity, nodeAffinity=core.NodeAffinity(required=selector))
