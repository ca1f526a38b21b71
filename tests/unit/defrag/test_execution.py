"""The order of moves, and what is said of a plan."""

from kgwe.apps.defrag import execution, proposal
from kgwe.apps.defrag.proposal import Move, NoMoves, Proposal


def move(pod: str, source: str, target: str, *, consents: bool = True) -> Move:
    return Move("default", pod, f"uid-{pod}", 2.0, source, target, 0.5, 0.1, consents)


def test_a_pod_that_makes_way_for_another_goes_first():
    chain = (move("a", "n1", "n2"), move("b", "n2", "n3"), move("c", "n3", "n4"))
    assert [each.pod for each in execution.order_moves(chain)] == ["c", "b", "a"]


def test_moves_in_a_circle_are_made_all_the_same():
    circle = (move("a", "n1", "n2"), move("b", "n2", "n1"))
    assert {each.pod for each in execution.order_moves(circle)} == {"a", "b"}


def test_a_plan_names_moves_cost_gain_and_missing_consent():
    plan = Proposal(
        "gang default/train", 8.0, ("n1",), (move("a", "n1", "n2", consents=False),), 0.5, 0.1, 8.0, proven=True
    )
    text = proposal.to_text(plan)
    assert "default/a  2 GPUs  n1 -> n2  loses 0.5 GPU-hours" in text
    assert "does not consent" in text
    assert "Gain: 8 GPU-hours" in text


def test_a_refusal_has_its_reason_and_figures():
    text = proposal.to_text(NoMoves("gang default/train", "CostsMoreThanItBrings", "too dear", 2, 9.0, 8.0))
    assert "CostsMoreThanItBrings: too dear (2 moves would lose 9 GPU-hours and gain 8)" in text


def test_what_happened_stands_beside_what_was_predicted():
    moved = execution.Moved("default/a", "n1", "default/b", "n2", 0.6, 0.02)
    text = execution.to_text(execution.Outcome("gang default/train", True, (moved,), 0.5, 0.6, 0.1, 0.02, 12.0))  # noqa: FBT003
    assert "Lost work: 0.6 GPU-hours, predicted 0.5" in text
    assert "has started (12 s)" in text
