"""Disruption budgets for planning: which budget covers a workload, and how many pods each still allows to stop.

The API server decides when a pod is evicted. This keeps plans from relying on evictions that it would refuse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kgwe.kube.api import core
    from kgwe.kube.api.policy import PodDisruptionBudget


class DisruptionBudgets:
    """The budgets at one moment."""

    def __init__(self, known: Mapping[str, PodDisruptionBudget]) -> None:
        self._known = known
        self._in: dict[str, list[str]] = {}  # namespace -> keys of its budgets
        for key, budget in known.items():
            self._in.setdefault(budget.metadata.namespace, []).append(key)
        #: budget, or several of which all must hold -> pods that may still be stopped
        self.left: dict[str, int] = {}

    def budget_of(self, pod: core.Pod) -> list[str]:
        """Keys of the budgets that cover the pod."""
        return [
            key
            for key in self._in.get(pod.metadata.namespace, ())
            if (selector := self._known[key].spec.selector) is not None and selector.selects(pod.metadata.labels)
        ]

    def budget_of_all(self, pods: Iterable[core.Pod]) -> str | None:
        """The budget that covers the pods together; empty: none. None: they cannot be evicted.

        The API server evicts no pod that two budgets cover.
        """
        keys: set[str] = set()
        for pod in pods:
            found = self.budget_of(pod)
            if len(found) > 1:
                return None
            keys.update(found)
        if not keys:
            return ""
        name = "|".join(sorted(keys))
        self.left[name] = min(self._allowed_disruptions(key) for key in keys)
        return name

    def _allowed_disruptions(self, key: str) -> int:
        budget = self._known[key]
        # A budget that its controller has not processed since the last change allows nothing yet.
        is_current = budget.status.observedGeneration >= budget.metadata.generation
        return budget.status.disruptionsAllowed if is_current else 0
