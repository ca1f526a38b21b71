"""Strategies of other packages: found by entry point, left out when they do not load."""

from kgwe.apps.scheduler.main import load_choosers
from kgwe.placement.planning.custom_strategies import Candidate

PLUGIN = """
class Tightest:
    def choose(self, candidates, ask, rng):
        return min(candidates, key=lambda candidate: candidate.free)
"""
ENTRY_POINTS = """
[kgwe.strategies]
tightest = my_strategies:Tightest
broken = my_strategies:Missing
"""


def test_an_installed_package_adds_its_strategies(tmp_path, monkeypatch):
    (tmp_path / "my_strategies.py").write_text(PLUGIN)
    info = tmp_path / "my_strategies-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-strategies\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path)

    found = load_choosers()

    assert set(found) == {"tightest"}
    nodes = [Candidate("a", 8, 8, {}), Candidate("b", 2, 8, {})]
    assert found["tightest"].choose(nodes, None, None).name == "b"  # type: ignore[arg-type] # it looks at neither
