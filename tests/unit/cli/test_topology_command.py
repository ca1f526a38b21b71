"""`kgwe topology` from the outside."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import yaml

from kgwe.cli import main
from kgwe.local.fleet import models

TEXT = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV4\t0-3\t0\nGPU1\tNV4\t X \t4-7\t1\n"


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main.main(["topology", *arguments])
    return int(stop.value.code or 0)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "box.txt"
    path.write_text(TEXT)
    return path


def test_a_machine_is_drawn(capsys, file, tmp_path):
    picture = tmp_path / "box.svg"
    assert run(str(file), "--gpu", "A100-SXM4-80GB", "--svg", str(picture)) == 0
    out = capsys.readouterr().out
    assert "GPU0 ═4═ GPU1" in out
    assert picture.read_text().startswith("<svg")


def test_the_output_can_be_read_by_programs(capsys, file):
    assert run(str(file), "-o", "json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["matrix"] == [["X", "NV4"], ["NV4", "X"]]
    assert run(str(file), "-o", "yaml") == 0
    assert yaml.safe_load(capsys.readouterr().out) == told


def test_the_suggested_fleet_model_can_be_used(capsys, file, tmp_path):
    assert run(str(file), "--fleet", "--gpu", "A100-SXM4-80GB") == 0
    model = tmp_path / "mine.yaml"
    model.write_text(capsys.readouterr().out)
    fleet = models.load(str(model))
    assert (fleet.name, fleet.pools[0].machine.wiring.nvlinks(0, 1)) == ("box", 4)


def test_standard_input_is_read(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(TEXT))
    assert run("-") == 0
    assert "NUMA node 1, CPUs 4-7" in capsys.readouterr().out


def test_errors_name_the_file_or_the_line(capsys, file, tmp_path):
    file.write_text(TEXT.replace("GPU1\tNV4", "GPU1\tNV3"))
    assert run(str(file)) == 1
    assert "line 2" in capsys.readouterr().err
    assert run(str(tmp_path / "none")) == 1
    assert "No such file" in capsys.readouterr().err
    file.write_bytes(b"\xff\xfe\x00")
    assert run(str(file)) == 1
    assert "is not text" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [("topology", "/dev/zero"), ("sharing", "check", "/dev/zero")])
def test_input_without_an_end_is_refused(capsys, arguments):
    with pytest.raises(SystemExit) as stop:
        main.main(list(arguments))
    assert stop.value.code == 1
    assert capsys.readouterr().err == "kgwe: /dev/zero is too large: at most 16 MiB are read\n"


def test_standard_input_without_an_end_is_refused(capsys, monkeypatch):
    with Path("/dev/zero").open(encoding="utf-8") as endless:
        monkeypatch.setattr("sys.stdin", endless)
        assert run("-") == 1
    assert "standard input is too large" in capsys.readouterr().err


def test_a_machine_of_too_many_devices_is_refused(capsys, file):
    file.write_text("\t" + "\t".join(f"GPU{number}" for number in range(577)) + "\n")
    assert run(str(file)) == 1
    assert "577 GPUs and NICs in one machine; at most 576 are allowed" in capsys.readouterr().err
