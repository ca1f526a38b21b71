"""Words about a suspended workload, from annotations that its user may edit."""

from __future__ import annotations

from kgwe.cluster.suspension import marks
from kgwe.kube.api import resources
from kgwe.kube.api.meta import ObjectMeta

ATTACK = "\x1b[2J\x1b]0;title\x07\u202e"


def test_annotations_do_not_control_the_terminal_of_a_reader() -> None:
    notes = {marks.BY: "kgwe-optimizer", marks.AT: ATTACK, marks.REASON: f"Idle: {ATTACK}"}
    reason, message = marks.describe_suspension(resources.GPU_WORKLOAD, ObjectMeta("w", "default", annotations=notes))
    assert reason == "Idle"
    assert message.isprintable()
    assert r"at \u001b[2J\u001b]0;title\u0007\u202e" in message
