"""Whose spend a budget counts, and which budgets overlap."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kgwe.costing.segments import Account


@dataclass(frozen=True, slots=True)
class BudgetScope:
    """Accounts that a budget counts. Every name that is set must match; an organization needs one of its parts."""

    namespace: str = ""
    team: str = ""
    project: str = ""
    cost_center: str = ""
    experiment: str = ""
    user: str = ""
    #: parts of an organization: accounts of any of these teams or namespaces; both empty: all accounts
    teams: frozenset[str] = frozenset()
    namespaces: frozenset[str] = frozenset()

    def matches(self, account: Account) -> bool:
        """Whether the budget counts what this account spends."""
        for name in _NAMES:
            wanted = getattr(self, name)
            if wanted and wanted != getattr(account, name):
                return False
        if not self.teams and not self.namespaces:
            return True
        return account.team in self.teams or account.namespace in self.namespaces


_NAMES = tuple(field.name for field in fields(BudgetScope) if field.name not in {"teams", "namespaces"})
