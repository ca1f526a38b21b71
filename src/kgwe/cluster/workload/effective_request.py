"""The effective request of a workload: one slice or one share where its spec asks for one whole GPU.

A decision source says what a workload should get instead. The spec never changes. The planner, the Job and the pods use
the effective request, and `status.effectiveRequirements` shows both and the reason. The status is written and never
read: what a user writes there changes nothing.

    no run      the first source that has a decision for the workload, if the workload allows it
    a run       what its signed plan says, until it is deleted: a decision never changes pods that run
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol

import msgspec
from msgspec import Meta

from kgwe.cluster.workload import metadata_keys
from kgwe.kube.api.kgwe.gpuworkload_status import EffectiveRequirements
from kgwe.kube.translate import podrequest
from kgwe.model.devices import preferences, shares
from kgwe.model.gpu import mig
from kgwe.model.units import amounts
from kgwe.placement.fleet.node import Preference

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kgwe.cluster.workload.runs import Run
    from kgwe.cluster.workload.workload import Workload

#: on pods whose request was changed: what the spec asks for
ORIGINAL_ANNOTATION: Final = "kgwe.nvidia.io/original-gpu-request"
_REASON_CHARS: Final = 1024


class SmallerRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One MIG slice or one share of a GPU, instead of one whole GPU."""

    #: the MIG profile of the slice; empty: a share
    profile: Annotated[str, Meta(max_length=63)] = ""
    #: the part of one GPU, such as 0.5; 0: a slice
    share: Annotated[float, Meta(ge=0, le=1)] = 0.0
    #: the kind that decided, such as RightsizingDecision
    source: Annotated[str, Meta(max_length=63)] = ""
    reason: Annotated[str, Meta(max_length=_REASON_CHARS)] = ""
    #: only shown, not applied
    shadow: bool = False

    @property
    def resource(self) -> str:
        return mig.resource_of(self.profile) if self.profile else amounts.SHARED

    def describe(self) -> str:
        """The request for people, as `requestedGPUs` shows it."""
        return f"1×{self.profile}" if self.profile else f"{self.share:.2g}"


class DecisionSource(Protocol):
    """Decides on smaller requests. It is asked whenever a workload without a run is read."""

    def decide(self, workload: Workload) -> SmallerRequest | None:
        """What the workload should get instead of what its spec asks for; None: no decision."""
        ...


def choose_decision(workload: Workload, sources: Iterable[DecisionSource]) -> SmallerRequest | None:
    """Return the decision of the first source that has one that the workload allows; None: there is none."""
    written = as_written(workload)
    for source in sources:
        found = source.decide(written)
        if found is not None and not find_objection(written, found):
            return found
    return None


def as_written(workload: Workload) -> Workload:
    """Return the workload as its spec says."""
    return workload.written or workload


def find_objection(workload: Workload, smaller: SmallerRequest) -> str:
    """Return why the workload, as written, cannot get this request; empty: it can."""
    if workload.resource != amounts.GPU or workload.per_pod != 1 or workload.pods != 1:
        return "only a request for one whole GPU can become smaller"
    if bool(smaller.profile) == bool(smaller.share):
        return "a smaller request is one slice or one share"
    template = workload.template.get("metadata")
    own = template.get("annotations") if isinstance(template, dict) else None
    allowed = preferences.read_preferences(workload.meta.annotations, own if isinstance(own, dict) else {})
    if why := allowed.find_objection(smaller.profile):
        return why
    return _find_contradiction(workload, smaller) or _check_values(smaller)


def _find_contradiction(workload: Workload, smaller: SmallerRequest) -> str:
    """Return which requirement of the spec the smaller request does not meet; empty: none."""
    needs = workload.needs
    if needs.preference is Preference.NVLINK_REQUIRED or needs.min_bandwidth_gbps:
        return "it needs NVLink or a bandwidth between GPUs, which slices and shares do not have"
    if needs.min_memory_gb and (not smaller.profile or _memory_gb(smaller.profile) < needs.min_memory_gb):
        return f"its minMemoryGB is {needs.min_memory_gb}"
    if smaller.share and workload.device_mode == "DRA":
        return "its deviceMode is DRA, and a share cannot be claimed"
    return ""


def _check_values(smaller: SmallerRequest) -> str:
    if smaller.profile:
        return "" if _memory_gb(smaller.profile) else f"{smaller.profile[:40]!r} is no MIG profile"
    try:
        shares.shares_of_fraction(smaller.share)
    except ValueError as exc:
        return str(exc)
    return ""


def _memory_gb(profile: str) -> int:
    """The memory of a slice, from the name of its profile: 10 of 1g.10gb; 0: not a profile."""
    text = profile.partition("+")[0].partition(".")[2].removesuffix("gb")
    return int(text) if text.isascii() and text.isdecimal() else 0


def apply_decision(workload: Workload, smaller: SmallerRequest | None) -> Workload:
    """Return the workload with this decision instead of the one it had; None: as its spec says."""
    written = as_written(workload)
    if smaller is None:
        return written
    if smaller.shadow:
        return replace(written, decision=smaller, written=written)
    return replace(
        written,
        resource=smaller.resource,
        per_pod=1,
        share=smaller.share,
        divisible=False,
        template=_rewrite_template(written.template, smaller.resource),
        decision=smaller,
        written=written,
    )


def _rewrite_template(template: dict[str, Any], resource: str) -> dict[str, Any]:
    """Return a copy of the template whose containers ask for the other resource, where they ask for a GPU."""
    spec = template.get("spec")
    if not isinstance(spec, dict):
        return template
    containers = spec.get("containers")
    if not isinstance(containers, list):
        return template
    return template | {"spec": spec | {"containers": [_rewrite_container(each, resource) for each in containers]}}


def _rewrite_container(container: Any, resource: str) -> Any:
    wants = container.get("resources") if isinstance(container, dict) else None
    if not isinstance(wants, dict):
        return container
    parts = {
        part: {(resource if name == amounts.GPU else name): count for name, count in listed.items()}
        for part, listed in wants.items()
        if part in ("requests", "limits") and isinstance(listed, dict)
    }
    return container | {"resources": wants | parts}


# --- what a run keeps -----------------------------------------------------------------------------------


def encode_decision(workload: Workload) -> dict[str, str]:
    """Return the annotation of a run that keeps its decision; empty: it has the request of the spec."""
    if workload.decision is None or workload.decision.shadow:
        return {}
    return {metadata_keys.DECISION_ANNOTATION: msgspec.json.encode(workload.decision).decode()}


def read_decision(workload: Workload, run: Run) -> SmallerRequest | None:
    """Return the decision with which a run was planned; None: it has the request of the spec.

    The amounts of the plan and the annotation are both signed; the decision has to agree with the amounts.
    """
    if not run.is_signed or run.planned is None or run.planned.get(as_written(workload).resource):
        return None
    text = run.meta.annotations.get(metadata_keys.DECISION_ANNOTATION, "")
    try:
        found = msgspec.json.decode(text or "null", type=SmallerRequest | None)
    except (msgspec.DecodeError, RecursionError):
        return None
    if found is None or found.shadow or _check_values(found) or run.planned.get(found.resource) != 1:
        return None
    return found


# --- what users see -------------------------------------------------------------------------------------


def build_status(workload: Workload) -> EffectiveRequirements | None:
    """Return what the status shows; None: no decision."""
    decision = workload.decision
    if decision is None:
        return None
    original = as_written(workload).gpus
    return EffectiveRequirements(
        original=original,
        effective=original if decision.shadow else decision.describe(),
        wouldBe=decision.describe() if decision.shadow else "",
        resource=workload.resource,
        source=decision.source,
        reason=decision.reason,
    )


def build_pod_annotations(workload: Workload) -> Mapping[str, str]:
    """Return the annotations that the pods of a workload with a changed request get."""
    if workload.decision is None or workload.decision.shadow:
        return {}
    found = {ORIGINAL_ANNOTATION: as_written(workload).gpus}
    return found | ({podrequest.SHARE: f"{workload.share:g}"} if workload.share else {})
