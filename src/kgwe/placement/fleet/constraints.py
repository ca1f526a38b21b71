"""Where a pod may go, as kube-scheduler sees it: selectors, affinity, taints, as sets of nodes.

Labels are turned into small integers once per fleet (one code per distinct value of a key), so a requirement
is a comparison over an array and a whole pod's constraints are a few ANDs and ORs. Results are remembered
per constraint: pods of one template share them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from kgwe.placement.fleet.taints import Taint, Toleration

#: code of nodes that do not have the label
_ABSENT = -1
# Constraints remembered, the oldest forgotten first: excluded nodes make ever new ones.
_KEPT = 2048
#: matchFields may name only this
NAME_FIELD = "metadata.name"


class Operator(enum.StrEnum):
    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One line of a node selector term. Gt and Lt compare whole numbers, as Kubernetes does."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether one node meets it; `LabelIndex` answers the same for a whole fleet at once."""
        value = name if self.key == NAME_FIELD else labels.get(self.key)
        match self.operator:
            case Operator.EXISTS:
                return value is not None
            case Operator.DOES_NOT_EXIST:
                return value is None
            case Operator.IN:
                return value in self.values
            case Operator.NOT_IN:
                return value not in self.values
            case Operator.GT | Operator.LT:
                return value is not None and self._compare_number(value)

    def _compare_number(self, value: str) -> bool:
        mine = _parse_integer(value)
        bound = _parse_integer(self.values[0]) if len(self.values) == 1 else None
        if mine is None or bound is None:
            return False
        return mine > bound if self.operator is Operator.GT else mine < bound


def any_term_matches(terms: tuple[tuple[Requirement, ...], ...], name: str, labels: Mapping[str, str]) -> bool:
    """Terms are alternatives, the lines of a term are not; an empty term matches nothing."""
    return any(term and all(line.matches(name, labels) for line in term) for term in terms)


@dataclass(frozen=True, slots=True)
class Constraints:
    """What a pod's spec says about nodes. `affinity` is any of its terms; a term is all of its lines."""

    selector: tuple[tuple[str, str], ...] = ()
    affinity: tuple[tuple[Requirement, ...], ...] | None = None
    tolerations: tuple[Toleration, ...] = ()
    #: nodes to leave out (they refused, or are to be emptied)
    avoid: frozenset[str] = frozenset()


ANYWHERE = Constraints()


class LabelIndex:
    """Labels, names and taints of a fixed list of nodes."""

    def __init__(
        self, names: Sequence[str], labels: Sequence[Mapping[str, str]], taints: Sequence[tuple[Taint, ...]]
    ) -> None:
        self._names = names
        self._labels = labels
        self._taint_sets = sorted(set(taints), key=repr)
        codes = {taint_set: code for code, taint_set in enumerate(self._taint_sets)}
        self._taints = np.array([codes[each] for each in taints], dtype=np.int32)
        self._columns: dict[str, tuple[NDArray[np.int32], dict[str, int]]] = {}
        self._allowed: dict[Constraints, NDArray[np.bool_]] = {}

    def find_allowed(self, constraints: Constraints) -> NDArray[np.bool_]:
        """For each node whether the pod may go there; the array is shared: do not write to it."""
        known = self._allowed.get(constraints)
        if known is None:
            known = self.match_selectors(constraints) & self.match_taints(constraints.tolerations)
            known.flags.writeable = False
            if len(self._allowed) >= _KEPT:
                del self._allowed[next(iter(self._allowed))]
            self._allowed[constraints] = known
        return known

    def match_selectors(self, constraints: Constraints) -> NDArray[np.bool_]:
        result = np.ones(len(self._names), dtype=np.bool_)
        for key, value in constraints.selector:
            result &= self._match_requirement(Requirement(key, Operator.IN, (value,)))
        if constraints.affinity is not None:
            # No term at all matches nothing, and neither does an empty term.
            result &= self._match_any_term(constraints.affinity)
        if constraints.avoid:
            result &= ~np.isin(np.asarray(self._names), list(constraints.avoid))
        return result

    def match_taints(self, tolerations: tuple[Toleration, ...]) -> NDArray[np.bool_]:
        """Nodes without a taint that excludes the pod; PreferNoSchedule excludes none."""
        fine = [
            all(
                taint.effect == "PreferNoSchedule" or any(each.tolerates(taint) for each in tolerations)
                for taint in taint_set
            )
            for taint_set in self._taint_sets
        ]
        return np.asarray(fine, dtype=np.bool_)[self._taints] if fine else np.ones(len(self._names), dtype=np.bool_)

    def _match_any_term(self, terms: tuple[tuple[Requirement, ...], ...]) -> NDArray[np.bool_]:
        result = np.zeros(len(self._names), dtype=np.bool_)
        for term in terms:
            if term:
                matched = np.ones(len(self._names), dtype=np.bool_)
                for requirement in term:
                    matched &= self._match_requirement(requirement)
                result |= matched
        return result

    def _match_requirement(self, requirement: Requirement) -> NDArray[np.bool_]:
        codes, values = self._encode_label(requirement.key)
        present: NDArray[np.bool_] = codes != _ABSENT
        match requirement.operator:
            case Operator.EXISTS:
                return present
            case Operator.DOES_NOT_EXIST:
                return ~present
            case Operator.IN | Operator.NOT_IN:
                wanted = [values[value] for value in requirement.values if value in values]
                found = np.isin(codes, wanted)
                # A node without the label is "not in" any set.
                return found if requirement.operator is Operator.IN else ~found
            case Operator.GT | Operator.LT:
                meets = [code for value, code in values.items() if requirement.matches(value, {requirement.key: value})]
                return np.isin(codes, meets)

    def _encode_label(self, key: str) -> tuple[NDArray[np.int32], dict[str, int]]:
        known = self._columns.get(key)
        if known is None:
            values: dict[str, int] = {}
            codes = np.full(len(self._names), _ABSENT, dtype=np.int32)
            for index, (name, labels) in enumerate(zip(self._names, self._labels, strict=True)):
                value = name if key == NAME_FIELD else labels.get(key)
                if value is not None:
                    codes[index] = values.setdefault(value, len(values))
            known = self._columns[key] = (codes, values)
        return known


def _parse_integer(text: str) -> int | None:
    """Kubernetes reads both sides as base 10 integers; what is not one matches nothing."""
    digits = text[1:] if text[:1] in ("-", "+") else text
    return int(text) if digits.isascii() and digits.isdigit() else None
