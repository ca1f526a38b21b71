"""The engine's benchmark measures what it says, and notices when the engine is wrong."""

import json

import pytest

from kgwe import errors
from kgwe.bench.placement import engine
from kgwe.cli.main import main
from kgwe.local.host.progress import Silent


def test_it_reports_every_size_and_the_loop_agrees():
    measured = engine.run(engine.Options(nodes=(30, 60), decisions=60, naive=12), Silent())
    assert list(measured.metrics["by_nodes"]) == ["30", "60"]
    assert measured.metrics["by_nodes"]["60"]["gpus"] == 480
    assert engine.is_correct(measured.metrics)
    assert {"decisions_per_s", "p99_ms", "rss_mb", "naive_decisions_per_s", "growth"} <= measured.metrics.keys()


def test_a_choice_that_differs_is_not_correct():
    assert not engine.is_correct({"by_nodes": {"10": {"naive_agreed": 4, "naive_compared": 5}}})


def test_a_fleet_without_nodes_of_eight_is_refused():
    with pytest.raises(errors.Permanent, match="no machine with 8 GPUs"):
        engine.snapshot_of("gb200-nvl72", 4)


def test_the_command_prints_one_line_of_json(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["bench", "engine", "--nodes", "20", "40", "--decisions", "20", "--naive", "4", "--json"])
    assert ended.value.code == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (said["name"], said["params"]["nodes"]) == ("engine", [20, 40])
