"""Gives each gated pod its seat: pins it to the planned node and removes the gate, in one write.

kube-scheduler ignores gated pods, so a gang costs it nothing until every member has a place. Then it checks one node
for each member. The patch has the pod's uid as a precondition, and contains all that a restarted scheduler needs.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import structlog

from kgwe import errors
from kgwe.cluster.workload import metadata_keys, placement_annotations, relocation, signatures
from kgwe.cluster.workload.manifests import dra_claims
from kgwe.kube.api import resources
from kgwe.kube.client.client import STRATEGIC_MERGE_PATCH
from kgwe.kube.client.replace import ProtobufReplacer
from kgwe.kube.client.worker_pool import WorkerPool
from kgwe.kube.client.workqueue import WorkQueue

if TYPE_CHECKING:
    from kgwe.apps.scheduler.deps import Deps
    from kgwe.kube.api import core
    from kgwe.placement.live.holding import Holding

log = structlog.get_logger(__name__)

_WORKERS = 16
# If the watch has not shown the write after this long, the pod is written again.
_LOOK_AGAIN_S = 10.0
# Seats of pods that are gone are remembered up to about this many.
_FEW = 1000


class Pinner:
    """Writes the seats of one term of leadership. The queue has uids: each pod is read again when its turn comes."""

    def __init__(self, deps: Deps) -> None:
        self._client = deps.client
        self._pods = ProtobufReplacer(deps.client, resources.POD, deps.bytes_of)
        self._state = deps.state
        self._queue: WorkQueue[str] = WorkQueue()
        self._owner: dict[str, str] = {}  # pod uid -> owner of its seat
        self._chosen: dict[str, int] = {}  # pod uid -> the number of the seat it must get
        self._freed: set[str] = set()  # pods that need no seat
        self._revoked: set[str] = set()  # pods whose seats were released
        self._given: dict[str, int] = {}  # pod uid -> seat it was given in this term
        self._holder: dict[tuple[str, int], str] = {}  # seat -> the pod it was given to in this term
        self._pool = WorkerPool(self._queue, self._process_pod, workers=_WORKERS, on_error=self._handle_error)

    def start(self) -> None:
        self._pool.start()

    async def stop(self) -> None:
        await self._pool.stop()

    def pin(self, owner: str, pod: core.Pod, number: int | None = None) -> None:
        """Give the pod a seat of its owner soon; `number`: that seat. Nothing happens if the pod is gone."""
        uid = pod.metadata.uid
        self._revoked.discard(uid)
        if uid not in self._given:
            self._owner[uid] = owner
            if number is not None:
                self._chosen[uid] = number
            self._queue.add(uid)

    def remove_gate(self, pod: core.Pod) -> None:
        """Only remove the gate: the pod belongs to no gang."""
        self._freed.add(pod.metadata.uid)
        self._queue.add(pod.metadata.uid)

    def unpin(self, pod: core.Pod) -> None:
        """Remove the annotations of a released seat, so that a restarted scheduler does not restore it."""
        self._drop_pod(pod.metadata.uid)
        self._revoked.add(pod.metadata.uid)
        self._queue.add(pod.metadata.uid)

    async def _process_pod(self, uid: str) -> None:
        await self._write_seat(uid)
        self._queue.forget(uid)

    def _handle_error(self, uid: str, error: Exception) -> None:
        if isinstance(error, errors.NotFound):
            self._drop_pod(uid)
            return
        # Perhaps another pod has this name now: then the watch shows that this one is gone.
        self._given.pop(uid, None)
        delay_s = round(self._queue.retry(uid), 2)
        if isinstance(error, errors.KgweError):
            log.warning("seating_failed", pod=uid, error=str(error), retry_in_s=delay_s)
        else:
            log.error("seating_crashed", pod=uid, retry_in_s=delay_s, exc_info=error)

    def _drop_pod(self, uid: str) -> None:
        for known in (self._owner, self._given, self._chosen):
            known.pop(uid, None)
        self._freed.discard(uid)
        self._revoked.discard(uid)

    async def _write_seat(self, uid: str) -> None:
        pod = self._state.pods.get(uid)
        owner = self._owner.get(uid, "")
        if uid in self._revoked:
            await self._revoke_seat(uid, pod)
            return
        if pod is None or pod.spec.nodeName or pod.metadata.deletionTimestamp or not self._lacks_seat(pod):
            self._drop_pod(uid)
            return
        if uid in self._freed:
            gates = [
                {"name": gate.name} for gate in pod.spec.schedulingGates if gate.name != placement_annotations.GATE
            ]
            await self._write_pod(pod, {"metadata": {"uid": uid}, "spec": {"schedulingGates": gates}})
            return
        number = self._choose_seat(pod, owner)
        holding = self._state.ledger.booked_seat(owner, number)
        if holding is None or self._is_taken(owner, number, uid):
            return  # it is planned again, or has no seat left; the pod is queued again when it gets one
        self._given[uid] = number
        self._remember_holder(owner, number, uid)
        entered = await self._prepare_claim(pod, owner, holding) if dra_claims.is_used(pod.spec) else False
        if entered is None:
            self._given.pop(uid, None)
            return  # the watch will show when Kubernetes has entered its claim
        signature = self._state.signer.sign_seat(pod, owner, number, holding) if self._state.signer else ""
        patch = relocation.mark_round(pin_patch(pod, owner, number, holding, signature), self._state.runs.get(owner))
        await self._write_pod(pod, patch, as_known=not entered)

    async def _revoke_seat(self, uid: str, pod: core.Pod | None) -> None:
        """Remove the seat, unless the pod was bound meanwhile."""
        if (
            pod is not None
            and not pod.spec.nodeName
            and placement_annotations.SEAT_ANNOTATION in pod.metadata.annotations
        ):
            said = dict.fromkeys(sorted({*signatures.POD_DECISIONS, placement_annotations.OFFER_ANNOTATION}))
            meta = {"resourceVersion": pod.metadata.resourceVersion, "annotations": said}
            await self._client.patch(resources.POD, pod.metadata.name, {"metadata": meta}, pod.metadata.namespace)
        self._revoked.discard(uid)

    async def _prepare_claim(self, pod: core.Pod, owner: str, holding: Holding) -> bool | None:
        """Make sure that the pod's claim is for exactly the devices of its seat.

        Returns whether that was written into the pod; None: not yet possible.
        """
        names, run, meta = self._state.reader.cards, self._state.runs.get(owner), pod.metadata
        if run is not None and dra_claims.is_exact(pod, run.meta.name, run.seats, holding, names):
            return False
        body = dra_claims.build_claim(pod, holding, names, {metadata_keys.UID_LABEL: owner})
        name, known = body["metadata"]["name"], dra_claims.claim_name_of(pod)
        if known in ("", name):
            return False if known else None
        with contextlib.suppress(errors.AlreadyExists):
            await self._client.create(resources.RESOURCE_CLAIM, body, meta.namespace)
        entry = dra_claims.pod_claim_entry(pod, name)
        await self._client.patch(
            resources.POD, meta.name, entry, meta.namespace, subresource="status", kind=STRATEGIC_MERGE_PATCH
        )
        return True

    async def _write_pod(self, pod: core.Pod, patch: dict[str, Any], *, as_known: bool = True) -> None:
        await self._pods.merge(pod, patch, as_known=as_known)
        self._queue.add_after(pod.metadata.uid, _LOOK_AGAIN_S)

    def _lacks_seat(self, pod: core.Pod) -> bool:
        if placement_annotations.is_gated(pod):
            return True
        return (
            pod.metadata.uid in self._chosen and placement_annotations.SEAT_ANNOTATION not in pod.metadata.annotations
        )

    def _choose_seat(self, pod: core.Pod, owner: str) -> int:
        """The seat of its index if it has one, else the first free seat."""
        uid = pod.metadata.uid
        if uid in self._chosen:
            return self._chosen[uid]
        if (fixed := self._state.seat_of(pod)) is not None and fixed[0] == owner:
            return fixed[1]
        # Seats that the watch shows, and seats that were just written.
        taken = self._state.run_registry.taken_seats(owner)
        taken |= {number for other, number in self._given.items() if other != uid and self._is_on_its_way(other, owner)}
        return next((number for number in sorted(self._state.ledger.reserved_seats(owner)) if number not in taken), -1)

    def _is_taken(self, owner: str, number: int, uid: str) -> bool:
        """Whether another pod that is not being deleted has the seat: it belongs to the first pod.

        In an externally created gang each pod has its own seat number; no two share one.
        """
        if uid in self._chosen:
            return False
        for other in {self._holder.get((owner, number), ""), self._state.ledger.pod_in(owner, number)} - {"", uid}:
            pod = self._state.pods.get(other)
            if pod is not None and pod.metadata.deletionTimestamp is None and self._has_seat(other, owner, number):
                return True
        return False

    def _remember_holder(self, owner: str, number: int, uid: str) -> None:
        if len(self._holder) > 2 * len(self._state.pods) + _FEW:
            self._holder = {seat: pod for seat, pod in self._holder.items() if pod in self._state.pods}
        self._holder[owner, number] = uid

    def _has_seat(self, uid: str, owner: str, number: int) -> bool:
        pod = self._state.pods.get(uid)
        return self._given.get(uid) == number or (pod is not None and self._state.seat_of(pod) == (owner, number))

    def _is_on_its_way(self, uid: str, owner: str) -> bool:
        """Whether the pod was given a seat that the watch has not shown yet."""
        pod = self._state.pods.get(uid)
        return self._owner.get(uid) == owner and pod is not None and self._lacks_seat(pod)


def pin_patch(pod: core.Pod, owner: str, number: int, holding: Holding, signature: str = "") -> dict[str, Any]:
    """The merge patch that gives a pod its place.

    A pod without a gate cannot be pinned any more. The extender keeps it to its seat, and a change of its label makes
    kube-scheduler try it again.
    """
    annotations: dict[str, str | None] = {placement_annotations.SEAT_ANNOTATION: f"{owner}/{number}"}
    if signature:
        # Decisions that the pod was created with are forged: remove them before it is signed.
        forged = dict.fromkeys(
            (
                placement_annotations.CARDS_ANNOTATION,
                placement_annotations.SLICES_ANNOTATION,
                metadata_keys.ROUND_ANNOTATION,
            )
        )
        annotations |= {**forged, placement_annotations.SIGNATURE_ANNOTATION: signature}
    if placement_annotations.SEATS_ANNOTATION in pod.metadata.annotations:
        annotations[placement_annotations.SEATS_ANNOTATION] = None  # the seats of all pods, which no policy removed
    annotations |= placement_annotations.device_annotations(holding)
    meta: dict[str, Any] = {"uid": pod.metadata.uid, "annotations": annotations}
    if not placement_annotations.is_gated(pod):
        again = pod.metadata.labels.get(placement_annotations.SEATED_LABEL) == "true"
        return {"metadata": meta | {"labels": {placement_annotations.SEATED_LABEL: "again" if again else "true"}}}
    required = pod.spec.affinity.nodeAffinity.required
    terms: list[dict[str, Any]] = [
        {
            "matchExpressions": [_match_expression(line) for line in term.matchExpressions],
            "matchFields": [_match_expression(line) for line in term.matchFields],
        }
        for term in (required.nodeSelectorTerms if required else ())
    ]
    spec: dict[str, Any] = {}
    if terms:
        key = "requiredDuringSchedulingIgnoredDuringExecution"
        spec["affinity"] = {"nodeAffinity": {key: {"nodeSelectorTerms": terms}}}
    placement_annotations.pin_to_node(spec, holding.node)
    spec["schedulingGates"] = [
        {"name": gate.name} for gate in pod.spec.schedulingGates if gate.name != placement_annotations.GATE
    ]
    return {"metadata": meta, "spec": spec}


def _match_expression(line: core.NodeRequirement) -> dict[str, Any]:
    return {"key": line.key, "operator": line.operator, "values": list(line.values)}
