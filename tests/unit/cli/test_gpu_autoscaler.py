"""`gpu-autoscaler` runs the commands of `kgwe` under their first names."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path

import pytest

from kgwe.cli.main import COMMANDS
from kgwe.cli.scaling import gpu_autoscaler


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("cost --last 7d", "cost --last 7d"),
        ("cost --format detailed -n ml", "cost --by pod -n ml"),
        ("cost --format=json --roi", "cost -o json --roi"),
        ("report --format csv", "report -o csv"),
        ("report --format text", "report"),
        ("status -o json", "scale status -o json"),
        ("optimize -n ml --lookback=10 --min-waste-score=50", "optimize -n ml --lookback=10 --min-waste-score=50"),
        ("version", "--version"),
    ],
)
def test_arguments_are_those_of_kgwe(given, expected):
    assert gpu_autoscaler.translate(given.split()) == expected.split()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["buy"], "there is no command 'buy'; the commands are cost, report"),
        (["cost", "--format", "csv"], "--format 'csv': expected summary, detailed, json"),
        (["report", "--format"], "--format '': expected text, json, csv"),
    ],
)
def test_what_is_not_known_is_named(given, problem, capsys):
    with pytest.raises(SystemExit):
        gpu_autoscaler.main(given)
    assert problem in capsys.readouterr().err


def test_every_command_exists_and_is_in_the_help(capsys):
    gpu_autoscaler.main([])
    told = capsys.readouterr().out
    for name, (first, *_) in gpu_autoscaler.COMMANDS.items():
        assert f"  {name} " in told
        assert first == "--version" or first in {command.name for command in COMMANDS}


def test_commands_run_kgwe(capsys):
    gpu_autoscaler.main(["version"])
    assert capsys.readouterr().out.startswith("kgwe ")
    for name in ("cost", "report", "status", "optimize"):
        with pytest.raises(SystemExit) as ended:
            gpu_autoscaler.main([name, "--help"])
        assert not ended.value.code
        assert "Usage: kgwe" in capsys.readouterr().out


def test_the_project_installs_both_commands():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    for name, target in project["scripts"].items():
        module, function = target.split(":")
        assert callable(getattr(importlib.import_module(module), function)), name
    assert set(project["scripts"]) == {"kgwe", "gpu-autoscaler"}
