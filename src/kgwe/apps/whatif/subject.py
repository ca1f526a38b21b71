"""The workload or pod that a user named, and whose plan its place is part of."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Final, Literal

from kgwe import errors
from kgwe.cluster.workload.workload import Workload
from kgwe.kube.api import resources
from kgwe.kube.client.client import Forbidden

if TYPE_CHECKING:
    from kgwe.cluster.offline import View
    from kgwe.kube.api import core
    from kgwe.kube.api.resources import Resource

Kind = Literal["workload", "pod"]
#: for kubectl: both kinds by their full names, because kubectl shows only one of two kinds of the same plural
LISTED: Final = f"{resources.GPU_WORKLOAD.full_name},{resources.WARP_GPU_WORKLOAD.full_name},pods"

_SIMILAR: Final = 5


def find(view: View, name: str, namespace: str, kind: Kind | None = None, group: str = "") -> Workload | core.Pod:
    """The workload or pod of that name; NotFound, with names that come near, when there is none.

    `group`: API group of the workload; Permanent when workloads of both groups have the name and it is left out.
    """
    every = view.state.workloads.values() if kind != "pod" else ()
    workloads = [w for w in every if group in ("", w.kind.resource.group)]
    pods = {p.metadata.key: p for p in view.state.pods.values()} if kind != "workload" else {}
    key = f"{namespace}/{name}"
    found = [w for w in workloads if w.meta.key == key]
    if len({w.object_uid for w in found}) > 1:
        names = " or ".join(sorted(f"gpuworkload.{w.kind.resource.group}/{name}" for w in found))
        raise errors.Permanent(f"two GPUWorkloads are named {name!r} in namespace {namespace}: give {names}")
    if found:
        # Of several replicas the first that should run and has no place, else the first that should run.
        return min(found, key=lambda w: (w.suspend, w.meta.uid in view.state.runs, w.replica))
    if key in pods:
        return pods[key]
    if (unreadable := _find_forbidden(view, namespace, kind, group)) is not None:
        raise unreadable
    raise errors.NotFound(_not_found(name, namespace, kind, [*(w.meta.key for w in workloads), *pods]))


def _find_forbidden(view: View, namespace: str, kind: Kind | None, group: str) -> Forbidden | None:
    """The error for a user who may list none of the kinds that were searched; None: at least one could be listed."""
    searched: dict[Resource[Any], str] = {}
    if kind != "pod":
        both = (resources.GPU_WORKLOAD, resources.WARP_GPU_WORKLOAD)
        searched |= {each: "GPUWorkloads" for each in both if group in ("", each.group)}
    if kind != "workload":
        searched[resources.POD] = "pods"
    if not searched.keys() & set(view.hidden) or searched.keys() & set(view.listed):
        return None
    names = " or ".join(dict.fromkeys(searched.values()))
    missing = ", ".join(each.full_name for each in view.hidden)
    return Forbidden(f"You may not read {names} in namespace {namespace}. Rights to list that you lack: {missing}")


def _not_found(name: str, namespace: str, kind: Kind | None, keys: list[str]) -> str:
    what = {"workload": "GPUWorkload", "pod": "pod", None: "GPUWorkload or pod"}
    text = f"no {what[kind]} named {name!r} in namespace {namespace}"
    elsewhere = sorted({key.partition("/")[0] for key in keys if key.partition("/")[2] == name})
    if elsewhere:
        return f"{text}; namespace {', '.join(elsewhere)} has one: add -n {elsewhere[0]}"
    here = [key.partition("/")[2] for key in keys if key.startswith(f"{namespace}/")]
    similar = [each for each in here if each.startswith(name)][:_SIMILAR]
    similar = similar or difflib.get_close_matches(name, here, _SIMILAR)
    if similar:
        return f"{text}; did you mean {' or '.join(similar)}?"
    return f"{text}; to list all: kubectl get {LISTED} -n {namespace}"


def owner_of(view: View, subject: Workload | core.Pod) -> str:
    """Whose plan the subject's place is part of: a workload's, a gang's, or its own."""
    if isinstance(subject, Workload):
        return subject.meta.uid
    seat = view.state.seat_of(subject)
    return (seat[0] if seat is not None else "") or view.gangs.owner_of(subject.metadata.uid) or subject.metadata.uid
