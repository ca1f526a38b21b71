"""To which names a pod's cost is attributed.

Team, project and cost center are those of the namespace where it has them: tenants cannot edit their namespace, and so
cannot spend the budget of others. Experiment and user are those of the pod. What the first does not state, the second
may.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.costing.segments import Account

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_CHARS: Final = 253


@dataclass(frozen=True, slots=True)
class AttributionRules:
    """Labels and annotations that name each dimension; the first that is present counts."""

    team: tuple[str, ...] = ("kgwe.nvidia.io/team", "gpu-autoscaler.io/team", "team")
    project: tuple[str, ...] = ("kgwe.nvidia.io/project", "gpu-project", "gpu-autoscaler.io/project", "project")
    cost_center: tuple[str, ...] = (
        "kgwe.nvidia.io/cost-center",
        "gpu-cost-center",
        "gpu-autoscaler.io/cost-center",
        "cost-center",
    )
    experiment: tuple[str, ...] = (
        "kgwe.nvidia.io/experiment-id",
        "gpu-autoscaler.io/experiment-id",
        "experiment-id",
    )
    user: tuple[str, ...] = ("kgwe.nvidia.io/user", "user")


def attribute_pod(
    rules: AttributionRules,
    namespace: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    namespace_labels: Mapping[str, str],
) -> Account:
    """Return the account of a pod. What is not stated is empty."""

    def find(keys: tuple[str, ...], *sources: Mapping[str, str]) -> str:
        for source in sources:
            for key in keys:
                if found := source.get(key):
                    return found[:_MOST_CHARS]
        return ""

    return Account(
        namespace,
        find(rules.team, namespace_labels, labels, annotations),
        find(rules.project, namespace_labels, labels, annotations),
        find(rules.cost_center, namespace_labels, labels, annotations),
        find(rules.experiment, labels, annotations, namespace_labels),
        find(rules.user, labels, annotations, namespace_labels),
    )
