"""Slim views of the kinds of group policy: PodDisruptionBudget."""

import msgspec

from kgwe.kube.api.meta import ObjectMeta


class LabelRequirement(msgspec.Struct, frozen=True, gc=False):
    key: str
    operator: str
    values: tuple[str, ...] = ()


class LabelSelector(msgspec.Struct, frozen=True, gc=False):
    matchLabels: dict[str, str] = {}
    matchExpressions: tuple[LabelRequirement, ...] = ()

    def selects(self, labels: dict[str, str]) -> bool:
        """Whether it selects the labels. An empty selector selects all; an unknown operator selects, to be safe."""
        return self.matchLabels.items() <= labels.items() and all(
            _matches_expression(line, labels.get(line.key)) for line in self.matchExpressions
        )


def _matches_expression(line: LabelRequirement, value: str | None) -> bool:
    match line.operator:
        case "In":
            return value in line.values
        case "NotIn":
            return value not in line.values
        case "DoesNotExist":
            return value is None
        case "Exists":
            return value is not None
        case _:
            return True


class BudgetSpec(msgspec.Struct, frozen=True, gc=False):
    #: None selects nothing
    selector: LabelSelector | None = None


class BudgetStatus(msgspec.Struct, frozen=True, gc=False):
    disruptionsAllowed: int = 0
    observedGeneration: int = 0


class PodDisruptionBudget(msgspec.Struct, frozen=True, gc=False):
    metadata: ObjectMeta
    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()
