"""Pods as their owners made them, before they were given their places."""

from __future__ import annotations

import msgspec

from kgwe.cluster.workload import placement_annotations
from kgwe.kube.api import core


def strip_placement(pod: core.Pod) -> core.Pod:
    """Without a node, and without the affinity that holds it to its seat."""
    spec = pod.spec
    if spec.nodeName:
        spec = msgspec.structs.replace(spec, nodeName="")
    if placement_annotations.SEAT_ANNOTATION in pod.metadata.annotations:
        spec = msgspec.structs.replace(spec, affinity=_remove_pin(spec))
    return pod if spec is pod.spec else msgspec.structs.replace(pod, spec=spec)


def without_pin(pod: core.Pod) -> core.Pod:
    """As its owner would make it again: without the affinity to a seat that it has lost."""
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, affinity=_remove_pin(pod.spec)))


def _remove_pin(spec: core.PodSpec) -> core.Affinity:
    """Without the line that names its node; a term that consisted of nothing else was not there before."""
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
