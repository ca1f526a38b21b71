"""Signatures of decisions: KGWE trusts only decisions that it wrote itself.

A user who may create a pod or a Job may write any annotation on it. So each decision that is stored on an object of a
user is signed with a key that only the scheduler has (`keys`), over the facts of the decision and the namespace it was
made for. Decisions without a valid signature are removed from an object when it is read: a pod with a forged seat is a
pod like any other.

    seat of a pod   namespace, owner (workload uid or gang), creation time of the pod, seat number, node, GPUs
    pod template    namespace, workload uid, node, GPUs; for runs of one pod, whose pods are copies of the template
    indexed seat    namespace, workload uid, completion index, node, GPUs; in the template of a Job of several pods.
                    The API server copies the line of each pod while it creates the pod
    offered seat    namespace, gang, seat number, time, node, GPUs; given to a pod of a gang while it is created, before
                    it has a uid and a creation time. It holds for pods that were created about that time
    binding         namespace, pod uid, node, GPUs
    plan of a run   namespace, workload uid, generation of the workload, round, the plan as it is encoded, what each
                    pod takes of its node (plans of earlier versions do not say), the smaller request that was decided

No signature holds in another namespace. The API server sets the creation time. So a signature copied from an
earlier pod is not valid on a later one, and a seat of an old plan cannot be claimed again by a gang of the same name.
Copies within the same second are left to the ledger: a seat belongs to the first pod, and needs room on its node.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kgwe.cluster.workload import metadata_keys, placement_annotations
from kgwe.kube.api import timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kgwe.kube.api import core
    from kgwe.kube.api.meta import ObjectMeta
    from kgwe.placement.live.holding import Holding
    from kgwe.placement.planning.plan import Seat

SIGNATURE_ANNOTATION: Final = placement_annotations.SIGNATURE_ANNOTATION
#: on pods and pod templates: annotations that count only with a signature
POD_DECISIONS: Final = frozenset(
    {
        placement_annotations.SEAT_ANNOTATION,
        placement_annotations.CARDS_ANNOTATION,
        placement_annotations.SLICES_ANNOTATION,
        metadata_keys.ROUND_ANNOTATION,
        SIGNATURE_ANNOTATION,
    }
)
#: bytes of the seats in a template: each pod of the Job is sent to the API server with all of them
MOST_SEAT_BYTES: Final = 96 * 1024
#: value of the annotation `seats` of a Job whose template has them
IN_TEMPLATE: Final = "in-template"
#: length of the id of a key
_ID_CHARS: Final = 8
# Objects with a forged decision that are remembered: further ones must not fill the memory.
_MOST_REPORTED: Final = 10_000
# An offered seat holds for pods created so many seconds before or after the offer. Offers end after 10 s, and the
# clocks of the scheduler and the API server may differ.
_OFFER_HOLDS_S: Final = 30
_OFFER_PARTS: Final = 5
_TIME_DIGITS: Final = 12
# 128 bits.
_MAC_CHARS: Final = 32

Facts = tuple[str, ...]


class Signer:
    """Signs with the newest key; accepts the signatures of all keys it knows."""

    def __init__(self, *keys: bytes, on_forged: Callable[[str], None] = lambda _kind: None) -> None:
        """`keys`: newest first.

        `on_forged`: called with the kind of each object whose decision has no valid signature, once per object.
        """
        self._keys: dict[str, bytes] = {}
        self.set_keys(*keys)
        self._on_forged = on_forged
        self._reported: dict[str, None] = {}  # uids of such objects, the oldest first

    def set_keys(self, *keys: bytes) -> bool:
        """Use these keys from now on, newest first; returns whether they differ from those before."""
        new = {_id_of(key): key for key in keys}
        changed, self._keys = list(new.items()) != list(self._keys.items()), new
        return changed

    @property
    def keys(self) -> tuple[bytes, ...]:
        """All that are accepted, newest first."""
        return tuple(self._keys.values())

    @property
    def newest(self) -> bytes:
        """The key that signs; empty: none is known yet."""
        return next(iter(self._keys.values()), b"")

    # --- signing ----------------------------------------------------------------------------------------

    def sign_seat(self, pod: core.Pod, owner: str, number: int, place: Holding | Seat) -> str:
        return self._sign_facts(
            _seat_facts(pod.metadata, owner, number, place.node, placement_annotations.device_annotations(place)),
            place.node,
        )

    def sign_offer(self, namespace: str, owner: str, number: int, place: Holding, at_s: int) -> str:
        """The annotation of a pod that is being created: `signature time cards slices owner/number`."""
        given = placement_annotations.device_annotations(place)
        signature = self._sign_facts(_offer_facts(namespace, (owner, number), at_s, place.node, given), place.node)
        return " ".join((signature, str(at_s), *_gpu_facts(given), f"{owner}/{number}"))

    def sign_binding(self, namespace: str, uid: str, place: Holding) -> str:
        return self._sign_facts(
            _binding_facts(namespace, uid, place.node, placement_annotations.device_annotations(place)), place.node
        )

    def sign_new_plan(self, run: ObjectMeta, annotations: Mapping[str, str]) -> dict[str, str]:
        """Annotations that replace the plan of a Job or Deployment, signed together with those that stay."""
        unknown = {
            metadata_keys.GENERATION_ANNOTATION: "0",
            metadata_keys.ROUND_ANNOTATION: "0",
            metadata_keys.AMOUNTS_ANNOTATION: "",
        }
        new = dict(annotations) if self.has_signed(run) else unknown | dict(annotations)
        facts = _plan_facts(run.namespace, run.labels.get(metadata_keys.UID_LABEL, ""), run.annotations | new)
        return new | {SIGNATURE_ANNOTATION: self._sign_facts(facts)}

    def sign_run(
        self, body: dict[str, Any], owner: str, seats: Sequence[Seat], *, seats_in_template: bool = False
    ) -> None:
        """Sign the plan of a Job or Deployment before it is created, and the template of a single pod.

        `seats_in_template`: the template gets the seats of all pods, if there is room for them.
        """
        meta, template = body["metadata"], body["spec"]["template"].setdefault("metadata", {})
        namespace = meta["namespace"]
        meta["annotations"][SIGNATURE_ANNOTATION] = self._sign_facts(_plan_facts(namespace, owner, meta["annotations"]))
        if len(seats) == 1:
            facts = _template_facts(namespace, owner, seats[0].node, placement_annotations.device_annotations(seats[0]))
            notes = template["annotations"] = dict(template.get("annotations") or {})
            notes[SIGNATURE_ANNOTATION] = self._sign_facts(facts, seats[0].node)
        elif seats_in_template:
            lines = "\n".join(self._seat_line(namespace, owner, number, seat) for number, seat in enumerate(seats))
            if len(lines) <= MOST_SEAT_BYTES:
                notes = template["annotations"] = dict(template.get("annotations") or {})
                notes[placement_annotations.SEATS_ANNOTATION] = lines
                meta["annotations"][placement_annotations.SEATS_ANNOTATION] = IN_TEMPLATE

    def _seat_line(self, namespace: str, owner: str, number: int, seat: Seat) -> str:
        """`signature cards slices`, as the policy kgwe-seats of deploy/admission.yaml reads it."""
        given = placement_annotations.device_annotations(seat)
        facts = _indexed_facts(namespace, owner, number, seat.node, given)
        return " ".join((self._sign_facts(facts, seat.node), *_gpu_facts(given)))

    def _sign_facts(self, facts: Facts, node: str = "") -> str:
        name, key = next(iter(self._keys.items()))
        return f"{name}.{_compute_mac(key, facts)}.{node}"

    # --- checking ---------------------------------------------------------------------------------------

    def strip_unsigned(self, pod: core.Pod) -> core.Pod:
        """The pod with the decisions that KGWE wrote on it, and without forged ones."""
        if placement_annotations.OFFER_ANNOTATION in pod.metadata.annotations:
            return self._read_offer(pod)
        return self._strip_unsigned(pod)

    def _read_offer(self, pod: core.Pod) -> core.Pod:
        """The pod with the annotations of the seat that it was offered, unless it has another one or forged it."""
        meta = pod.metadata
        notes = dict(meta.annotations)
        text = notes.pop(placement_annotations.OFFER_ANNOTATION)
        bare = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(meta, annotations=notes))
        if placement_annotations.SEAT_ANNOTATION in notes:
            return self._strip_unsigned(bare)
        found = self._verify_offer(pod, text)
        if found is None:
            self.report_forged("Pod", meta.uid)
            return self._strip_unsigned(bare)
        # The binding may have signed devices; a seat has its own.
        seated = {key: each for key, each in notes.items() if key not in POD_DECISIONS} | found
        return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(meta, annotations=seated))

    def _verify_offer(self, pod: core.Pod, text: str) -> dict[str, str] | None:
        """The annotations of an offered seat; None: KGWE did not offer it to a pod created then, or pinned there."""
        parts = text.split(" ")
        if len(parts) != _OFFER_PARTS or placement_annotations.is_gated(pod):
            return None
        signature, at, cards, slices, said = parts
        given = {
            placement_annotations.SEAT_ANNOTATION: said,
            placement_annotations.CARDS_ANNOTATION: cards,
            placement_annotations.SLICES_ANNOTATION: slices,
        }
        seat, at_s, meta = placement_annotations.seat_of(given), _read_seconds(at), pod.metadata
        node = placement_annotations.pinned_node(pod.spec)
        if seat is None or node != signed_node({SIGNATURE_ANNOTATION: signature}):
            return None
        if abs(timestamp.epoch_seconds(meta.creationTimestamp or "") - at_s) > _OFFER_HOLDS_S:
            return None
        if not node or not self._verify(signature, _offer_facts(meta.namespace, seat, at_s, node, given)):
            return None
        return {key: value for key, value in given.items() if value}

    def _strip_unsigned(self, pod: core.Pod) -> core.Pod:
        if POD_DECISIONS.isdisjoint(pod.metadata.annotations) or self._is_signed(pod):
            return pod
        self.report_forged("Pod", pod.metadata.uid)
        return strip_decisions(pod)

    def report_forged(self, kind: str, uid: str) -> None:
        """Count an object with a forged decision, once, however often it is read."""
        if uid not in self._reported:
            self._reported[uid] = None
            if len(self._reported) > _MOST_REPORTED:
                del self._reported[next(iter(self._reported))]
            self._on_forged(kind)

    def _is_signed(self, pod: core.Pod) -> bool:
        meta, notes = pod.metadata, pod.metadata.annotations
        # KGWE removes the gate in the write that adds the seat.
        if placement_annotations.is_gated(pod):
            return False
        text, node = notes.get(SIGNATURE_ANNOTATION, ""), signed_node(notes)
        if not node or (pod.spec.nodeName or placement_annotations.pinned_node(pod.spec) or node) != node:
            return False
        if placement_annotations.SEAT_ANNOTATION in notes:
            seat = placement_annotations.seat_of(notes)
            if seat is None:
                return False
            return self._verify(text, _seat_facts(meta, *seat, node, notes)) or self._is_indexed(pod, *seat, node)
        owner = meta.labels.get(metadata_keys.UID_LABEL, "")
        if owner and self._verify(text, _template_facts(meta.namespace, owner, node, notes)):
            return True
        return self._verify(text, _binding_facts(meta.namespace, meta.uid, node, notes))

    def _is_indexed(self, pod: core.Pod, owner: str, number: int, node: str) -> bool:
        """Whether the pod was created with the seat of its completion index. Such a pod is always pinned."""
        notes = pod.metadata.annotations
        return (
            pod.metadata.labels.get(metadata_keys.UID_LABEL) == owner
            and notes.get(placement_annotations.INDEX_ANNOTATION) == str(number)
            and placement_annotations.pinned_node(pod.spec) == node
            and self._verify(
                notes.get(SIGNATURE_ANNOTATION, ""), _indexed_facts(pod.metadata.namespace, owner, number, node, notes)
            )
        )

    def has_signed_seat(self, pod: core.Pod, owner: str, number: int, *, is_single: bool) -> bool:
        """Whether a pod without forged decisions (`strip_unsigned`) was given this seat.

        `is_single`: the owner has one seat, and its pod is a copy of the signed template.
        """
        notes = pod.metadata.annotations
        if SIGNATURE_ANNOTATION not in notes:
            return False
        if not is_single or placement_annotations.SEAT_ANNOTATION in notes:
            return placement_annotations.seat_of(notes) == (owner, number)
        facts = _template_facts(pod.metadata.namespace, owner, signed_node(notes), notes)
        return self._verify(notes[SIGNATURE_ANNOTATION], facts)

    def has_signed(self, run: ObjectMeta) -> bool:
        """Whether the plan on a Job or Deployment is the one that KGWE stored for the workload it is labelled with."""
        notes = run.annotations
        owner = run.labels.get(metadata_keys.UID_LABEL, "")
        return self._verify(notes.get(SIGNATURE_ANNOTATION, ""), _plan_facts(run.namespace, owner, notes))

    def _verify(self, text: str, facts: Facts) -> bool:
        name, _, rest = text.partition(".")
        key = self._keys.get(name)
        return key is not None and hmac.compare_digest(
            rest.partition(".")[0].encode(), _compute_mac(key, facts).encode()
        )


def signed_node(annotations: Mapping[str, str]) -> str:
    """The node that a signature on a pod is for; empty when there is none."""
    return "".join(annotations.get(SIGNATURE_ANNOTATION, "").split(".", 2)[2:])


def strip_decisions(pod: core.Pod) -> core.Pod:
    """The pod as if no decision had been written on it."""
    kept = {key: text for key, text in pod.metadata.annotations.items() if key not in POD_DECISIONS}
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, annotations=kept))


# --- facts: each kind begins with its own word, so that none can stand for another ----------------------


def _seat_facts(meta: ObjectMeta, owner: str, number: int, node: str, given: Mapping[str, str]) -> Facts:
    return ("seat", meta.namespace, owner, meta.creationTimestamp or "", str(number), node, *_gpu_facts(given))


def _offer_facts(namespace: str, seat: tuple[str, int], at_s: int, node: str, given: Mapping[str, str]) -> Facts:
    owner, number = seat
    return ("offer", namespace, owner, str(number), str(at_s), node, *_gpu_facts(given))


def _read_seconds(text: str) -> int:
    """The time of an offer; 0: KGWE would not have written it."""
    return int(text) if len(text) <= _TIME_DIGITS and text.isascii() and text.isdecimal() else 0


def _indexed_facts(namespace: str, owner: str, number: int, node: str, given: Mapping[str, str]) -> Facts:
    return ("indexed", namespace, owner, str(number), node, *_gpu_facts(given))


def _template_facts(namespace: str, owner: str, node: str, given: Mapping[str, str]) -> Facts:
    return ("template", namespace, owner, node, *_gpu_facts(given))


def _binding_facts(namespace: str, uid: str, node: str, given: Mapping[str, str]) -> Facts:
    return ("binding", namespace, uid, node, *_gpu_facts(given))


def _plan_facts(namespace: str, owner: str, annotations: Mapping[str, str]) -> Facts:
    names = (metadata_keys.GENERATION_ANNOTATION, metadata_keys.ROUND_ANNOTATION, placement_annotations.PLAN_ANNOTATION)
    amounts = annotations.get(metadata_keys.AMOUNTS_ANNOTATION, "")
    decision = annotations.get(metadata_keys.DECISION_ANNOTATION, "")
    told = (amounts, *((decision,) if decision else ())) if amounts else ()
    return ("plan", namespace, owner, *(annotations.get(name, "") for name in names), *told)


def _gpu_facts(given: Mapping[str, str]) -> tuple[str, str]:
    return given.get(placement_annotations.CARDS_ANNOTATION, ""), given.get(placement_annotations.SLICES_ANNOTATION, "")


def _compute_mac(key: bytes, facts: Facts) -> str:
    # As JSON: different facts have different encodings.
    return hmac.digest(key, msgspec.json.encode(facts), "sha256").hex()[:_MAC_CHARS]


def _id_of(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()[:_ID_CHARS]
