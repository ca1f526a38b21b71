"""Right-sizing of GPUWorkloads: the decisions of their namespaces, as a source of smaller requests.

The same objects drive the admission policy for pods that no GPUWorkload owns (deploy/rightsizing.yaml), so that both
use one key: owner, image and whole GPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kgwe.cluster import names
from kgwe.cluster.workload.effective_request import SmallerRequest
from kgwe.kube.api.kgwe import rightsizingdecision
from kgwe.kube.api.kgwe.rightsizingdecision import Mode
from kgwe.model.usage.fingerprint import generalize_name

if TYPE_CHECKING:
    from kgwe.cluster.workload.workload import Workload
    from kgwe.kube.api.kgwe.rightsizingdecision import RightsizingDecision, RightsizingDecisionSpec
    from kgwe.kube.client.informer import Change

SOURCE: Final = "RightsizingDecision"


def make_key(owner_kind: str, owner_name: str, image: str, gpus: int) -> str:
    """Return the key of a pod."""
    return f"{owner_kind}/{owner_name} {image} {gpus}"


def make_workload_key(name: str, image: str, gpus: int) -> str:
    """Return the key of a GPUWorkload and its pods: a name without generated suffixes, so that the next run has it."""
    return make_key("GPUWorkload", generalize_name(name), image, gpus)


class RightsizingDecisions:
    """The decisions of all namespaces, fed by an informer."""

    def __init__(self) -> None:
        self._by_namespace: dict[str, RightsizingDecisionSpec] = {}

    def update(self, change: Change[RightsizingDecision]) -> str:
        """Take in a change; returns the namespace whose decisions changed, empty: none did."""
        namespace, _, name = change.key.partition("/")
        if name != rightsizingdecision.NAME:
            return ""
        before = self._by_namespace.pop(namespace, None)
        if change.new is not None:
            self._by_namespace[namespace] = change.new.spec
        return "" if before == self._by_namespace.get(namespace) else namespace

    def decide(self, workload: Workload) -> SmallerRequest | None:
        """Return the smaller request of a workload, as written; None: there is none."""
        spec = self._by_namespace.get(workload.meta.namespace)
        if spec is None or spec.mode not in (Mode.SHADOW, Mode.CANARY, Mode.ENFORCE) or spec.problem:
            return None
        if (workload.queue or workload.pods > 1) and not spec.includeManaged:
            return None
        gpus = workload.per_pod * workload.pods
        found = spec.decisions.get(make_workload_key(workload.meta.name, _find_image(workload.template), gpus))
        if found is None or found.resource not in spec.offered:
            return None
        try:
            share = float(found.share) if found.share else 0.0
        except ValueError:
            return None
        is_applied = spec.mode == Mode.ENFORCE or (
            spec.mode == Mode.CANARY and bool(workload.meta.uid) and workload.meta.uid[0] in spec.canaryDigits
        )
        return SmallerRequest(found.profile, share, SOURCE, found.reason, shadow=not is_applied)


def _find_image(template: dict[str, Any]) -> str:
    """Return the image of the container with GPUs: the first that asks for some, or the first of all."""
    spec = template.get("spec")
    containers = spec.get("containers") if isinstance(spec, dict) else None
    listed = [each for each in containers or () if isinstance(each, dict)]
    if not listed:
        return names.DEFAULT_IMAGE
    chosen = next((each for each in listed if "nvidia.com/" in str(each.get("resources") or "")), listed[0])
    return str(chosen.get("image") or "")
