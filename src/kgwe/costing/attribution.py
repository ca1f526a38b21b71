"""To which names a pod's cost is attributed.

Team, project and cost center are those of the namespace where it has them: tenants cannot edit their namespace, and so
cannot spend the budget of others. Experiment and user are those of the pod. What the first does not state, the second
may.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.costing.segments import Account

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_CHARS: Final = 253


@dataclass(frozen=True, slots=True)
class CustomRule:
    """Names that cluster operators give to pods that match. They come before the labels of users."""

    namespace: str = "*"
    """A pattern of a shell; the same for values of labels."""
    labels: tuple[tuple[str, str], ...] = ()
    names: tuple[tuple[str, str], ...] = ()
    """(team, project, cost_center, experiment or user; its name)."""

    def matches(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Whether a pod gets these names."""
        return fnmatch.fnmatchcase(namespace, self.namespace) and all(
            key in labels and fnmatch.fnmatchcase(labels[key], pattern) for key, pattern in self.labels
        )


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
    custom: tuple[CustomRule, ...] = ()
    """The first rule that matches and gives a name counts."""


def attribute_pod(
    rules: AttributionRules,
    namespace: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    namespace_labels: Mapping[str, str],
) -> Account:
    """Return the account of a pod. What is not stated is empty."""
    given: dict[str, str] = {}
    for rule in rules.custom:
        if rule.matches(namespace, labels):
            given = {**dict(rule.names), **given}

    def find(name: str, keys: tuple[str, ...], *sources: Mapping[str, str]) -> str:
        if name in given:
            return given[name][:_MOST_CHARS]
        for source in sources:
            for key in keys:
                if found := source.get(key):
                    return found[:_MOST_CHARS]
        return ""

    return Account(
        namespace,
        find("team", rules.team, namespace_labels, labels, annotations),
        find("project", rules.project, namespace_labels, labels, annotations),
        find("cost_center", rules.cost_center, namespace_labels, labels, annotations),
        find("experiment", rules.experiment, labels, annotations, namespace_labels),
        find("user", rules.user, labels, annotations, namespace_labels),
    )
