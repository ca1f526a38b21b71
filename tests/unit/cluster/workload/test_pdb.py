"""Which disruption budget work counts against, and what it still allows."""

from __future__ import annotations

import msgspec
from tests.support.builders.objects import pod

from kgwe.cluster.workload.pdb import DisruptionBudgets
from kgwe.kube.api.policy import LabelSelector, PodDisruptionBudget


def labelled(name, **labels):
    made = pod(name)
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, labels=labels))


def budget(name, allowed=1, *, namespace="team", generation=1, observed=1, selector=None, **labels):
    spec = {"selector": {"matchLabels": labels} if selector is None else selector}
    meta = {"name": name, "namespace": namespace, "generation": generation}
    status = {"disruptionsAllowed": allowed, "observedGeneration": observed}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": status}, PodDisruptionBudget)


def budgets(*given):
    return DisruptionBudgets({each.metadata.key: each for each in given})


def test_a_pod_counts_against_the_budget_of_its_namespace_that_selects_it():
    known = budgets(budget("b", 2, app="x"), budget("elsewhere", 5, namespace="other", app="x"))
    assert known.budget_of_all([labelled("p", app="x")]) == "team/b"
    assert known.left == {"team/b": 2}
    assert known.budget_of_all([labelled("p", app="y")]) == ""


def test_a_pod_under_two_budgets_cannot_be_evicted_at_all():
    known = budgets(budget("b", app="x"), budget("c", tier="y"))
    assert known.budget_of_all([labelled("p", app="x", tier="y")]) is None


def test_pods_under_different_budgets_are_held_by_the_tighter_one():
    known = budgets(budget("b", 3, app="x"), budget("c", 1, app="y"))
    name = known.budget_of_all([labelled("p", app="x"), labelled("q", app="y")])
    assert name == "team/b|team/c"
    assert known.left[name] == 1


def test_a_budget_that_was_changed_a_moment_ago_allows_nothing():
    known = budgets(budget("b", 3, generation=2, observed=1, app="x"))
    assert known.budget_of_all([labelled("p", app="x")]) == "team/b"
    assert known.left == {"team/b": 0}


def test_a_budget_without_a_selector_selects_nothing_and_an_empty_one_everything():
    nothing = msgspec.convert({"metadata": {"name": "n", "namespace": "team"}, "spec": {}}, PodDisruptionBudget)
    assert budgets(nothing).budget_of_all([labelled("p")]) == ""
    assert budgets(budget("b", selector={})).budget_of_all([labelled("p")]) == "team/b"


def test_expressions_are_followed_and_an_unknown_operator_is_taken_to_select():
    def selects(operator, values=(), **labels):
        line = {"key": "app", "operator": operator, "values": list(values)}
        return msgspec.convert({"matchExpressions": [line]}, LabelSelector).selects(labels)

    assert selects("In", ["x"], app="x")
    assert not selects("In", ["x"], app="y")
    assert selects("NotIn", ["x"])
    assert not selects("NotIn", ["x"], app="x")
    assert selects("Exists", app="")
    assert not selects("Exists")
    assert selects("DoesNotExist")
    assert selects("Resembles", ["x"])
