"""Whether the cluster has room for an alternative, asked of the scheduler's own engine.

Advice of one round is booked on a copy of the fleet, so that all of it can be followed, in any order: room that is
promised to one pod is promised to no other, and what a pod would free stays taken until it has moved.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from kgwe import errors
from kgwe.cluster.workload import metadata_keys
from kgwe.forecast.waste import gpu_parts
from kgwe.forecast.waste.alternatives import Action
from kgwe.kube.api import core
from kgwe.model.gpu import catalog
from kgwe.placement.fleet.node import Gpus, SpotPolicy, share_milli
from kgwe.placement.fleet.snapshot import Grant
from kgwe.placement.live.scratch import ScratchFleet
from kgwe.placement.pod.engine import Decision

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.cluster.offline import View
    from kgwe.forecast.waste.alternatives import Alternative
    from kgwe.placement.fleet.node import Request
    from kgwe.placement.fleet.snapshot import Snapshot

    Undo = Callable[[], None]


class Feasibility:
    """Asks the engine about alternatives and books those that fit, one round at a time."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._scratch = ScratchFleet(view.fleet)
        self._seen: tuple[Snapshot, int] | None = None
        self._moves: dict[str, list[Undo]] = {}
        #: pod -> what it was promised in this round
        self.promised: dict[str, Grant] = {}

    def start_round(self) -> None:
        """Forget the advice so far, and start from the cluster as it is now."""
        live = self._view.fleet.snapshot
        self._scratch.sync()
        self._moves.clear()
        self.promised.clear()
        self._seen = (live, live.version)

    def check(self, uid: str, alternative: Alternative) -> bool | None:
        """Whether a node fits the pod if it asked for the alternative; None if the pod is not known.

        An alternative that fits is booked instead of an earlier one of the same pod.
        """
        live = self._view.fleet.snapshot
        if self._seen is None or self._seen[0] is not live or self._seen[1] != live.version:
            self.start_round()
        pod = self._view.state.pods.get(uid)
        if pod is None:
            return None
        try:
            request = change_request(self._read_request(pod), alternative)
            if alternative.changes_size:
                request = _keep_model(request, alternative, live)
        except errors.Permanent:
            return None
        _take_back(self._moves.pop(uid, []))
        self.promised.pop(uid, None)
        return self._move(uid, request)

    def _read_request(self, pod: core.Pod) -> Request:
        """Return what the pod asks for. A pod of a workload is pinned to its node; the workload is not."""
        state = self._view.state
        run = state.run_of(pod)
        owner = run.meta.controller if run is not None else None
        workload = state.find_workload(owner.uid) if owner is not None else None
        return (self._view.ask_of(workload) if workload is not None else self._view.ask_of_pod(unpin(pod))).request

    def _move(self, uid: str, request: Request) -> bool:
        """Book the pod with another request, and keep what it frees for itself; return whether it fits."""
        snapshot = self._scratch.snapshot
        held = [grant for grant in self._view.fleet.grants(uid) if snapshot.is_booked(grant)]
        undos = [snapshot.release(grant) for grant in held]
        found = self._scratch.engine.decide(request)
        if not isinstance(found, Decision):
            _take_back(undos)
            return False
        undos.append(snapshot.commit(found.grant))
        undos += [snapshot.book(_find_rest(snapshot, grant, found.grant)) for grant in held]
        self._moves[uid], self.promised[uid] = undos, found.grant
        return True


def _take_back(undos: list[Undo]) -> None:
    while undos:
        undos.pop()()


def _find_rest(snapshot: Snapshot, old: Grant, new: Grant) -> Grant:
    """Return the part of a released grant that its pod does not use again."""
    if old.node != new.node:
        return old
    node = old.node
    share = old.share
    if share is not None:
        gpu, milli, mib = share
        left = min(milli, int(snapshot.milli[node, gpu])), min(mib, int(snapshot.share_mib[node, gpu]))
        share = (gpu, *left) if left[0] else None
    free = old.gpus & int(snapshot.free[node])
    slices = tuple(each for each in old.slices if each[1] in snapshot.free_slices.get((node, each[0]), ()))
    return Grant(node, gpus=free, share=share, slices=slices, pods=0)


def unpin(pod: core.Pod) -> core.Pod:
    """Return the pod without the node that KGWE chose for it: the alternative is placed again."""
    required = pod.spec.affinity.nodeAffinity.required
    if required is None or metadata_keys.UID_LABEL not in pod.metadata.labels:
        return pod
    terms = tuple(msgspec.structs.replace(term, matchFields=()) for term in required.nodeSelectorTerms)
    is_free = any(not term.matchExpressions for term in terms)
    affinity = core.NodeAffinity(None if is_free else msgspec.structs.replace(required, nodeSelectorTerms=terms))
    spec = msgspec.structs.replace(pod.spec, affinity=core.Affinity(affinity))
    return msgspec.structs.replace(pod, spec=spec)


def change_request(request: Request, alternative: Alternative) -> Request:
    """Return the request of a pod that asks for the alternative instead."""
    match alternative.action:
        case Action.MIG_PROFILE:
            return replace(request, gpus=Gpus(profile=alternative.mig_profile, slices=alternative.devices))
        case Action.SHARE:
            return replace(request, gpus=Gpus(milli=share_milli(alternative.shares)))
        case Action.SMALLER_GPU:
            return replace(request, gpus=Gpus(count=alternative.devices), model=alternative.model)
        case Action.FEWER_GPUS:
            return replace(request, gpus=Gpus(count=alternative.devices))
        case Action.SPOT:
            return replace(request, spot=SpotPolicy.REQUIRE)
    return request


def _keep_model(request: Request, alternative: Alternative, snapshot: Snapshot) -> Request:
    """Return the request for GPUs of the alternative's model alone: the promised saving has its price.

    On nodes without labels of their GPUs, any GPU may be of the model. An alternative without a model is for any.
    """
    if not alternative.model:
        return request
    model = gpu_parts.find_model(alternative.model)
    name = alternative.model if model is None else model.label
    is_labeled = any(shape.model and catalog.name_matches(name, shape.model) for shape in snapshot.shapes)
    return replace(request, model=name) if is_labeled else request
