"""`kgwe bench`: what can be said before anything is started."""

from __future__ import annotations

import pytest

from kgwe.cli.main import main


def test_work_that_cannot_fit_is_refused_at_once(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["bench", "cluster", "--nodes", "2", "--pods", "17", "--warm-up", "0"])
    assert ended.value.code == 1
    assert "2 nodes can hold 16" in capsys.readouterr().err


def test_help_shows_the_parameters_and_examples(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["bench", "cluster", "--help"])
    said = capsys.readouterr().out
    for word in ("--scenario", "--nodes", "--pods", "--gangs", "--json", "--repeat", "Examples:"):
        assert word in said


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--mixes", "foo"], "--mixes 'foo': known mixes are scenario, large, whole, small"),
        (["--mixes", "large,"], "--mixes '': known mixes are scenario, large, whole, small"),
        (["--loads", "abc"], "--loads 'abc': give whole percents from 0 to 95, joined by commas"),
        (["--loads", "45,145"], "--loads '145': give whole percents"),
        (["--seeds", "0"], "--seeds 0: give at least 1"),
        (["--jobs", "0"], "--jobs 0: give at least 1"),
    ],
)
def test_options_of_the_fragmented_benchmark_are_checked(
    capsys: pytest.CaptureFixture[str], options: list[str], says: str
):
    with pytest.raises(SystemExit) as ended:
        main(["bench", "fragmented", *options])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
