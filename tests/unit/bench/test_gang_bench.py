"""The gangs' benchmark measures what it says, and notices a gang in the wrong place."""

import json

import pytest

from kgwe.bench.placement import gang
from kgwe.cli.main import main
from kgwe.local.fleet import models
from kgwe.placement.fleet.node import Gpus, Request
from kgwe.sim.fleet import fleets


@pytest.mark.slow
def test_the_command_prints_one_line_of_json_with_the_keys_that_are_compared(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["bench", "gang", "--repeat", "1", "--json"])
    assert ended.value.code == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    metrics = said["metrics"]
    assert {"plan_s", "one_leaf_share", "impossible_s", "certificate", "naive_plan_s"} <= metrics.keys()
    assert metrics["one_leaf_share"] == metrics["ideal_one_leaf_share"] == 1.0
    assert "cannot start" in metrics["certificate"]


def test_a_gang_that_is_split_for_no_reason_is_not_correct():
    assert not gang.is_correct({"one_leaf_share": 0.9, "ideal_one_leaf_share": 1.0, "unplaced": 0})
    assert not gang.is_correct({"one_leaf_share": 1.0, "ideal_one_leaf_share": 1.0, "unplaced": 1})


def test_the_scheduler_it_is_compared_with_climbs_levels_and_says_no():
    shape = fleets.shape_of(models.load("dgx-h100").pools[0].machine)
    where = gang.build_site(shape, (("leaf", 2), ("spine", 4)), 8)
    whole = Request(Gpus(count=8))
    assert gang.naive_plan(where, whole, 2) == [0, 1]
    assert gang.naive_plan(where, whole, 4) == [0, 1, 2, 3]
    assert gang.naive_plan(where, whole, 9) is None
