"""The GPUBudgets and namespaces of the cluster, as the scheduler's watches show them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from kgwe.cluster.budgets.rules import BudgetRule, read_rule, read_spend
from kgwe.kube.api import resources
from kgwe.kube.api.meta import ObjectMeta  # noqa: TC001 - read by msgspec when it decodes
from kgwe.kube.client.informer import Informer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kgwe.costing.attribution import AttributionRules
    from kgwe.costing.budgets.admission import Spend
    from kgwe.kube.api.kgwe.gpubudget import GPUBudget
    from kgwe.kube.client.client import KubeClient
    from kgwe.kube.client.informer import Change


class _Namespace(msgspec.Struct, frozen=True, gc=False):
    metadata: ObjectMeta


_NAMESPACES: Final = resources.Resource("", "v1", "namespaces", "Namespace", namespaced=False, type=_Namespace)


class BudgetObjects:
    """Rules and spends of the budgets that count. A budget that cannot be read has no effect on others."""

    def __init__(self, client: KubeClient, attribution: AttributionRules, currency: str) -> None:
        self.attribution = attribution
        self._currency = currency
        self._budgets: Informer[GPUBudget] = Informer(client, resources.GPU_BUDGET)
        self._namespaces: Informer[_Namespace] = Informer(client, _NAMESPACES)
        self.informers: list[Informer[Any]] = [self._budgets, self._namespaces]
        self.rules: dict[str, BudgetRule] = {}
        self.spends: dict[str, Spend] = {}
        self._on_rules: Callable[[], None] = _ignore
        self._on_spend: Callable[[str], None] = lambda _key: None
        self._budgets.on_change(self._set_budget)
        self._namespaces.on_change(self._set_namespace)

    def subscribe(self, on_rules: Callable[[], None], on_spend: Callable[[str], None]) -> Callable[[], None]:
        """Call `on_rules` when a limit or a scope changes, and `on_spend` with a budget whose spend changes."""
        self._on_rules, self._on_spend = on_rules, on_spend
        return self._unsubscribe

    def _unsubscribe(self) -> None:
        self._on_rules, self._on_spend = _ignore, lambda _key: None

    def find(self, key: str) -> GPUBudget | None:
        """Return the object of a budget."""
        return self._budgets.store.get(key)

    def labels_of(self, namespace: str) -> Mapping[str, str]:
        """Return the labels of a namespace."""
        found = self._namespaces.store.get(namespace)
        return found.metadata.labels if found is not None else {}

    def _set_budget(self, change: Change[GPUBudget]) -> None:
        key, new = change.key, change.new
        rule = read_rule(new, self.attribution, self._currency) if new is not None else None
        before = self.rules.pop(key, None)
        if new is None or not isinstance(rule, BudgetRule):
            self.spends.pop(key, None)
            if before is not None:
                self._on_rules()
            return
        self.rules[key] = rule
        spend, known = read_spend(new.status), self.spends.get(key)
        self.spends[key] = spend
        if rule != before:
            self._on_rules()
        elif spend != known:
            self._on_spend(key)

    def _set_namespace(self, change: Change[_Namespace]) -> None:
        old = change.old.metadata.labels if change.old is not None else {}
        new = change.new.metadata.labels if change.new is not None else {}
        if old != new:
            self._on_rules()


def _ignore() -> None:
    pass
