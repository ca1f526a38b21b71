"""The set algebra of constraints against the plain reading of Kubernetes' rules."""

from hypothesis import given
from hypothesis import strategies as st

from kgwe.placement.fleet.constraints import NAME_FIELD, Constraints, LabelIndex, Operator, Requirement
from kgwe.placement.fleet.taints import Taint, Toleration

KEYS = ("zone", "size", NAME_FIELD)
VALUES = ("a", "b", "3", "10", "-2", "x9", "")
EFFECTS = ("NoSchedule", "NoExecute", "PreferNoSchedule")

labels = st.dictionaries(st.sampled_from(KEYS[:2]), st.sampled_from(VALUES))
taints = st.lists(
    st.builds(Taint, st.sampled_from(("k1", "k2")), st.sampled_from(("", "v")), st.sampled_from(EFFECTS)), max_size=2
).map(tuple)
nodes = st.lists(st.tuples(labels, taints), min_size=1, max_size=8)
requirements = st.builds(
    Requirement,
    st.sampled_from(KEYS),
    st.sampled_from(list(Operator)),
    st.lists(st.sampled_from((*VALUES, "n0", "n1")), max_size=3).map(tuple),
)
tolerations = st.builds(
    Toleration,
    st.sampled_from(("", "k1", "k2")),
    st.sampled_from(("Equal", "Exists")),
    st.sampled_from(("", "v")),
    st.sampled_from(("", *EFFECTS)),
)
terms = st.lists(st.lists(requirements, max_size=3).map(tuple), max_size=3).map(tuple)


def plain_integer(text):
    try:
        return int(text) if text.strip() == text and "_" not in text else None
    except ValueError:
        return None


def plain_requirement(requirement, name, has):
    value = name if requirement.key == NAME_FIELD else has.get(requirement.key)
    match requirement.operator:
        case Operator.IN:
            return value is not None and value in requirement.values
        case Operator.NOT_IN:
            return value is None or value not in requirement.values
        case Operator.EXISTS:
            return value is not None
        case Operator.DOES_NOT_EXIST:
            return value is None
    if value is None or len(requirement.values) != 1:
        return False
    mine, bound = plain_integer(value), plain_integer(requirement.values[0])
    if mine is None or bound is None:
        return False
    return mine > bound if requirement.operator is Operator.GT else mine < bound


def plainly_allowed(constraints, name, has, tainted):
    if name in constraints.avoid or any(has.get(key) != value for key, value in constraints.selector):
        return False
    if constraints.affinity is not None and not any(
        term and all(plain_requirement(r, name, has) for r in term) for term in constraints.affinity
    ):
        return False
    return all(
        t.effect == "PreferNoSchedule" or any(each.tolerates(t) for each in constraints.tolerations) for t in tainted
    )


@given(
    fleet=nodes,
    selector=st.dictionaries(st.sampled_from(KEYS[:2]), st.sampled_from(VALUES), max_size=2),
    affinity=st.none() | terms,
    tolerates=st.lists(tolerations, max_size=2).map(tuple),
    avoid=st.frozensets(st.sampled_from(("n0", "n1", "n9"))),
)
def test_equals_the_plain_reading_node_by_node(fleet, selector, affinity, tolerates, avoid):
    names = [f"n{i}" for i in range(len(fleet))]
    constraints = Constraints(tuple(sorted(selector.items())), affinity, tolerates, avoid)
    index = LabelIndex(names, [has for has, _ in fleet], [tainted for _, tainted in fleet])

    found = index.find_allowed(constraints).tolist()

    assert found == [plainly_allowed(constraints, n, has, t) for n, (has, t) in zip(names, fleet, strict=True)]
