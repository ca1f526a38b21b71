"""Objects that the pods of a workload need and that do not exist: waiting for room would not help."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgwe.cluster.workload import scheduler_policy
from kgwe.placement.refusal import Reason, Refusal

if TYPE_CHECKING:
    from kgwe.cluster.state.cluster_state import ClusterState
    from kgwe.cluster.workload.workload import Workload
    from kgwe.kube.api import core


def find_missing(state: ClusterState, workload: Workload) -> Refusal | None:
    """The PriorityClass or ResourceClaim that does not exist; None: nothing is missing, as far as is known."""
    if missing := scheduler_policy.missing_class(workload, state.priority_classes):
        return Refusal(Reason.NO_PRIORITY_CLASS, missing, possible=False)
    if claim := state.claim_names.find_missing(workload.claim_keys):
        namespace, _, name = claim.partition("/")
        message = (
            f"ResourceClaim {name} does not exist in namespace {namespace}. Create it, or change resourceClaims of the"
            " pod template."
        )
        return Refusal(Reason.NO_RESOURCE_CLAIM, message, possible=False)
    return None


def find_unused_template(pod: core.Pod) -> str:
    """The ResourceClaimTemplate of the pod from which no ResourceClaim was created; empty: there is none."""
    created = {each.name for each in pod.status.resourceClaimStatuses}
    templates = (each.resourceClaimTemplateName for each in pod.spec.resourceClaims if each.name not in created)
    return next((name for name in templates if name), "")
