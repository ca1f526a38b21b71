"""`kgwe bench`: what can be said before anything is started."""

from __future__ import annotations

import pytest

from kgwe.cli.main import main


def test_work_that_cannot_fit_is_refused_at_once(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["bench", "cluster", "--nodes", "2", "--pods", "17", "--warm-up", "0"])
    assert ended.value.code == 1
    assert "2 nodes hold 16" in capsys.readouterr().err


def test_help_shows_the_parameters_and_examples(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["bench", "cluster", "--help"])
    said = capsys.readouterr().out
    for word in ("--scenario", "--nodes", "--pods", "--gangs", "--json", "--repeat", "Examples:"):
        assert word in said
