"""How test processes share the tests (tests/support/scheduling.py)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("xdist")

from tests.support.families import UNIT, family
from tests.support.scheduling import FamilyScheduling, _is_silent


class Worker:
    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.queued: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.queued += indices

    def shutdown(self) -> None:
        self.shutting_down = True


LIFE, HOSTILE = "tests/integration/scheduler/test_life.py", "tests/integration/scheduler/test_hostile.py"
FLEET, CRDS = "tests/integration/fleet/test_nodes.py", "tests/integration/test_crds.py"
COLLECTED = [
    f"{module}::test_{number}"
    for module in (LIFE, "tests/unit/test_a.py", FLEET, HOSTILE, "tests/property/test_b.py", CRDS)
    for number in range(6)
]


def run(count: int) -> dict[str, list[str]]:
    """What each of so many workers ran, one test of each at a time."""
    config: Any = SimpleNamespace(getvalue=lambda _: None, option=SimpleNamespace(loadscopereorder=False))
    config.getvalue = lambda name: ["popen"] * count if name == "tx" else None
    made = FamilyScheduling(config)
    made.numnodes = count
    workers = [Worker(f"gw{number}") for number in range(count)]
    ran: dict[str, list[str]] = {each.gateway.id: [] for each in workers}
    for each in workers:
        made.add_node(each)
    for each in workers:
        made.add_node_collection(each, COLLECTED)
    made.schedule()
    while any(each.queued for each in workers):
        for each in workers:
            if each.queued:
                index = each.queued.pop(0)
                ran[each.gateway.id].append(COLLECTED[index])
                made.mark_test_complete(each, index)
    return ran


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_test_runs_once(count: int):
    assert sorted(each for ran in run(count).values() for each in ran) == sorted(COLLECTED)


def test_the_first_worker_begins_without_a_cluster_and_the_others_with_one():
    ran = run(3)
    assert {family(each.partition("::")[0]) for each in ran["gw0"][:12]} == {UNIT}
    assert UNIT not in {family(ran[name][0].partition("::")[0]) for name in ("gw1", "gw2")}


@pytest.mark.parametrize("count", [2, 3])
def test_a_worker_returns_to_no_family_that_it_left(count: int):
    for ran in run(count).values():
        families = [family(each.partition("::")[0]) for each in ran]
        changes = [new for old, new in zip(["", *families], families, strict=False) if old != new]
        assert len(changes) == len(set(changes))


@pytest.mark.parametrize(
    ("when", "outcome", "sections", "silent"),
    [
        ("setup", "passed", [], True),
        ("teardown", "passed", [("stdout", "words")], False),
        ("teardown", "failed", [], False),
        ("call", "passed", [], False),
        ("setup", "skipped", [], False),
    ],
)
def test_only_a_set_up_or_teardown_without_words_is_not_reported(when, outcome, sections, silent):
    assert _is_silent({"when": when, "outcome": outcome, "sections": sections}) is silent
