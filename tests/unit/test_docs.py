"""Docs that the code must keep true: the words of concepts.md, and the files and modules that guides name."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from kgwe.apps.scheduler.workloads import placement_attempts
from kgwe.cluster.state import run_state
from kgwe.placement.refusal import Reason

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src" / "kgwe"
#: folders of tests that guides name files of
TESTS = (ROOT / "tests/integration/scheduler", ROOT / "tests/support")
#: guides that tell where things are
GUIDES = ("CONTRIBUTING.md", "docs/internals/architecture.md", "docs/concepts.md", "docs/queue.md", "docs/simulator.md")


def read_terms() -> list[str]:
    rows = [line for line in (ROOT / "docs/concepts.md").read_text().splitlines() if line.startswith("| **")]
    return [term for row in rows for term in re.findall(r"\*\*(.+?)\*\*", row)]


@cache
def read_words() -> str:
    """Every word of the sources in order: identifiers taken apart, comments and docstrings as they are."""
    text = "\n".join(path.read_text() for path in sorted(SOURCES.rglob("*.py")) if not path.stem.endswith("_pb2"))
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text).lower()
    return f" {' '.join(re.findall(r'[a-z0-9]+', apart))} "


def test_the_glossary_is_of_a_size_that_one_can_learn() -> None:
    terms = read_terms()
    assert 40 <= len(terms) <= 80
    assert len(set(terms)) == len(terms)


@pytest.mark.parametrize("term", read_terms())
def test_every_word_of_the_glossary_occurs_in_the_code(term: str) -> None:
    word = term.lower()
    assert any(f" {form} " in read_words() for form in (word, f"{word}s"))


def names_in(guide: str) -> list[str]:
    """Files and dotted modules that a guide names in code spans, but for patterns."""
    spans = re.findall(r"`([^`\n]+)`", (ROOT / guide).read_text())
    return [span for span in spans if re.fullmatch(r"[\w./]+\.py|[\w/]+/|kgwe(\.\w+)+", span)]


@pytest.mark.parametrize("guide", GUIDES)
def test_every_file_and_module_that_a_guide_names_exists(guide: str) -> None:
    assert [name for name in names_in(guide) if not is_there(name)] == []


def is_there(name: str) -> bool:
    if not name.startswith("kgwe."):
        return any((base / name).exists() for base in (ROOT, SOURCES, *TESTS))
    # A module, a name in a module, or a package.
    parts = name.split(".")[1:]
    modules = (SOURCES.joinpath(*parts[:size]).with_suffix(".py") for size in range(1, len(parts) + 1))
    return SOURCES.joinpath(*parts).is_dir() or any(module.is_file() for module in modules)


def test_the_tree_in_contributing_names_every_package() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    tree = text.split("```\n")[3]
    path: list[str] = []
    named = set()
    for line in tree.splitlines():
        depth, name = (len(line) - len(line.lstrip())) // 2, line.split()[0].rstrip("/")
        path[depth:] = [name]
        named.add("/".join(path))
    packages = {str(init.parent.relative_to(SOURCES)) for init in SOURCES.rglob("__init__.py")} - {"."}
    assert named == packages


#: reasons of preemption, defragmentation and the simulator, of the condition Degraded, and inside the planner
NOT_OF_SCHEDULED = {
    Reason.NO_ROOM,
    Reason.TIMED_OUT,
    Reason.ATTEMPTS_EXHAUSTED,
    Reason.NOTHING_LOWER,
    Reason.NOT_ENOUGH,
    Reason.BUDGETS,
    Reason.STARTS_ANYWAY,
    Reason.NOT_NOW,
    Reason.NOTHING_MOVABLE,
    Reason.NO_ARRANGEMENT,
    Reason.TOO_MANY,
    Reason.NOT_WORTH_IT,
    run_state.SCALED_DOWN,
    run_state.NO_ROOM_TO_SCALE,
}


def test_the_guide_explains_every_reason_of_a_workload_that_does_not_run() -> None:
    reasons = {str(reason) for reason in Reason} | {placement_attempts.EXHAUSTED}
    constants = {name: value for name, value in vars(run_state).items() if name.isupper() and name[0] != "_"}
    reasons |= {value for value in constants.values() if isinstance(value, str)}
    for path in (SOURCES / "apps/scheduler/workloads").glob("*.py"):
        text = path.read_text()
        reasons |= set(re.findall(r'(?:give_up|retry_placement)\(\s*workload, "(\w+)"', text))
        reasons |= set(re.findall(r'\(False, "(\w+)"', text))
    guide = (ROOT / "docs/workloads.md").read_text()
    rows = [line.split("|") for line in guide.splitlines() if line.startswith("| `")]
    explained = {reason for row in rows for reason in re.findall(r"`([A-Z]\w+)`", row[1])}
    assert {"PlanTooLarge", "QuotaExceeded", "JobCreationFailed", "PodsNotCreated"} <= reasons
    assert reasons - NOT_OF_SCHEDULED <= explained, "add them to docs/workloads.md"
