"""The benchmark of gangs on a cluster that is taken in part."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kgwe.bench.placement import fragmented, leaf_rules
from kgwe.bench.placement.fragmented import SCENARIO, Cell, Site
from kgwe.bench.placement.leaf_rules import Grid
from kgwe.cli.main import main


def grid(free: list[int], cards: int = 8) -> Grid:
    """Leaves of three nodes, spines of two leaves."""
    return Grid(np.array(free), cards, 3, 6)


@pytest.mark.parametrize(
    ("free", "pods", "nodes"),
    [
        pytest.param([8, 8, 8, 8, 8, 0], 2, [3, 4], id="the tightest leaf that holds it"),
        pytest.param([8, 8, 8, 8, 0, 0, 8, 8, 0, 8, 8, 0], 4, [0, 1, 2, 3], id="the tightest spine, its leaves"),
        pytest.param([8, 8, 0, 8, 0, 0, 8, 8, 0, 8, 8, 0], 5, [0, 1, 3, 6, 7], id="the leaves of all spines chosen"),
    ],
)  # fmt: skip
def test_best_fit_is_the_published_rule(free, pods, nodes):
    assert grid(free).place(leaf_rules.best_fit, pods, 8) == nodes


def test_an_even_split_is_even_on_every_level():
    free = [8, 8, 8, 8, 8, 8]
    assert grid(free).place(leaf_rules.spread_evenly, 4, 8) == [0, 1, 3, 4]


def test_first_fit_takes_the_first_leaf_that_holds_all():
    assert grid([8, 0, 0, 8, 8, 8]).place(leaf_rules.first_fit, 2, 8) == [3, 4]
    assert grid([8, 0, 0, 8, 8, 8]).place(leaf_rules.first_fit, 4, 8) == [0, 3, 4, 5]


def test_no_rule_places_what_has_no_room():
    for rule in leaf_rules.RULES.values():
        assert grid([8, 0, 0, 4, 4, 4]).place(rule, 2, 8) is None


def test_what_a_rule_places_is_taken():
    for rule in leaf_rules.RULES.values():
        cluster = grid([8, 8, 8, 4, 4, 4])
        nodes = cluster.place(rule, 3, 4)
        assert nodes is not None
        assert len(nodes) == 3
        assert cluster.free.sum() == 36 - 12
        assert cluster.free.min() >= 0


def test_the_scenario_is_that_of_the_cluster_benchmark():
    site = Site(0.45, 1)
    assert sum(site.free.values()) == 2200
    assert (np.bitwise_count(site.snapshot.free).sum(), len(set(site.leaf_of.values()))) == (2200, 32)


@pytest.mark.slow
def test_ours_needs_fewer_leaves_than_best_fit_and_an_even_split():
    runs = [fragmented.compare(Cell(0.45, SCENARIO), seed) for seed in (1, 2, 3)]
    found = fragmented.summarise(runs)
    assert found["bound"] <= found["mean_leaves"] < found["best_fit_mean_leaves"] < found["even_mean_leaves"]
    assert found["whole_gangs"] >= found["best_fit_whole_gangs"]
    assert found["whole_gangs"] <= found["most_gangs"] == 36
    assert found["max_leaves"] <= 4
    assert found["plan_ms"] > 0


def test_the_bound_on_gangs_counts_whole_nodes():
    #  Two whole nodes and three halves: pods of four on the halves leave the whole ones to the others.
    assert fragmented.count_most((4, 4, 4, 8, 8), ((2, 8), (3, 4))) == 2
    assert fragmented.count_most((4, 4, 8, 8), ((2, 8), (3, 4))) == 1
    assert fragmented.count_most((8, 8), ((2, 8), (1, 4), (1, 4), (4, 2))) == 3, "the large one is left out"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param({}, [], id="nothing"),
        pytest.param({"mean_leaves": 1.57}, ["more leaves than best fit", "more than 1.52 leaves"], id="leaves"),
        pytest.param({"whole_gangs": 34.9, "placed_gpus": 3000}, ["fewer whole gangs than best fit"], id="gangs"),
        pytest.param({"worse_than_best_fit": 0.2}, ["worse than best fit on more than 10% of the seeds"], id="seeds"),
    ],
)
def test_goals_that_are_missed_are_named(change, said):
    numbers = {"mean_leaves": 1.5, "best_fit_mean_leaves": 1.56, "whole_gangs": 35.0, "best_fit_whole_gangs": 35.0}
    found = fragmented.list_misses(Cell(0.45, SCENARIO), numbers | {"worse_than_best_fit": 0.1} | change, first=True)
    assert list(found) == [f"scenario 45%: {each}" for each in said]


def test_the_command_prints_one_line_of_json_with_the_keys_that_are_compared(capsys):
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "bench",
                "fragmented",
                "--seeds",
                "1",
                "--first-seed",
                "2",
                "--loads",
                "60",
                "--mixes",
                "large",
                "--jobs",
                "1",
                "--json",
            ]
        )
    assert ended.value.code == 0
    said = capsys.readouterr()
    found = json.loads(said.out.splitlines()[-1])
    assert set(found) == {"name", "params", "metrics", "machine"}
    keys = {"mean_leaves", "best_fit_mean_leaves", "even_mean_leaves", "bound", "worse_than_best_fit", "max_leaves"}
    assert keys | {"whole_gangs", "plan_ms"} <= set(found["metrics"])
    assert set(found["metrics"]["by_mix_and_load"]) == {"scenario 45%", "large 60%"}
    assert "large 60%" in said.err
    assert found["metrics"]["missed"] == []
