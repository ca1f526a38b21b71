"""The command line before any command runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kgwe.cli import main
from kgwe.cli.main import COMMANDS
from kgwe.local.cluster import cluster_record


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"], ["help"]])
def test_the_overview_names_every_command(capsys: pytest.CaptureFixture[str], arguments: list[str]):
    main.main(arguments)

    text = capsys.readouterr().out
    for command in COMMANDS:
        assert f"  {command.name} " in text
        assert command.summary in text


def test_the_overview_imports_no_command_and_no_parser():
    code = (
        "import sys; from kgwe.cli.main import main; main(['--help']);"
        "heavy = {'cyclopts', 'rich', 'httpx2', 'cryptography', 'msgspec', 'asyncio', 'kgwe.local'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stderr


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]):
    main.main(["--version"])

    assert capsys.readouterr().out.startswith("kgwe 0.")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_can_be_loaded_and_explains_itself(capsys: pytest.CaptureFixture[str], command: main.Command):
    with pytest.raises(SystemExit) as stop:
        main.main([command.name, "--help"])

    assert stop.value.code in {0, None}
    assert f"kgwe {command.name}" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["up", "down", "status", "kubeconfig", "logs", "kubectl", "metrics"])
def test_every_local_command_shows_examples(capsys: pytest.CaptureFixture[str], command: str):
    with pytest.raises(SystemExit):
        main.main(["local", command, "--help"])

    text = capsys.readouterr().out
    assert f"kgwe local {command}" in text.partition("Examples:")[2]


def test_the_help_of_a_command_shows_its_whole_text(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["explain", "--help"])
    assert "Only reads the API" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "example"),
    [
        (["defrag"], "kgwe defrag plan"),
        (["explain"], "kgwe explain gw/small"),
        (["explain"], "kgwe explain gpuw/small"),
        (["explain"], "kgwe explain research/llm-training"),
        (["mig", "gpus"], "kgwe mig gpus a100-0000"),
        (["mig", "cards"], "kgwe mig gpus a100-0000"),
    ],
)
def test_the_help_of_a_command_shows_examples(capsys: pytest.CaptureFixture[str], arguments: list[str], example: str):
    with pytest.raises(SystemExit):
        main.main([*arguments, "--help"])

    assert example in capsys.readouterr().out.partition("Examples:")[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["kubeconfig"], "no local cluster named 'kgwe'", id="no cluster"),
        pytest.param(["kubectl", "get", "pods"], "kgwe local up --name kgwe", id="the next step is named"),
        pytest.param(["up", "--name", "Not A Name"], "is not a valid cluster name", id="bad name"),
        pytest.param(["up", "--scheduler-config", "/nowhere.yaml"], "file not found", id="no such file"),
    ],
)
def test_errors_are_one_plain_message_and_exit_code_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
):
    monkeypatch.setenv("KGWE_STATE_DIR", str(tmp_path))

    with pytest.raises(SystemExit) as stop:
        main.main(["local", *arguments])

    captured = capsys.readouterr()
    assert stop.value.code == 1
    assert captured.err.startswith("kgwe: ")
    assert message in captured.err
    assert "Traceback" not in captured.err


NEXT_STEP = "check the kubeconfig (--kubeconfig, KUBECONFIG), or start a local cluster with kgwe local up"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            "contexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n"
            "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\nusers: [{name: u, user: {token: t}}]",
            f"cannot reach the cluster at http://127.0.0.1:1 (connection refused): {NEXT_STEP}",
            id="nothing listens",
        ),
        pytest.param("hello", "is not a kubeconfig: expected a YAML mapping", id="plain text"),
        pytest.param(None, "KUBECONFIG is empty or names no file", id="empty variable"),
    ],
)
@pytest.mark.parametrize("arguments", [["explain", "ml-team/finetune"], ["mig", "gpus"]], ids=" ".join)
def test_a_cluster_that_cannot_be_used_is_explained_with_the_next_step(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    text: str | None,
    message: str,
):
    config = tmp_path / "config"
    config.write_text(text or "")
    monkeypatch.setenv("KUBECONFIG", str(config) if text else "")
    monkeypatch.setenv("NO_PROXY", "*")

    with pytest.raises(SystemExit) as stop:
        main.main(arguments)

    error = capsys.readouterr().err
    assert stop.value.code == 1
    assert message in error
    assert len(error.splitlines()) == 1
    assert "Error(" not in error


def test_status_and_down_of_nothing_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("KGWE_STATE_DIR", str(tmp_path))

    for arguments, code in ((["status"], 1), (["status", "--all"], 1), (["down"], 0), (["down", "--all"], 0)):
        with pytest.raises(SystemExit) as stop:
            main.main(["local", *arguments])
        assert stop.value.code == code
        assert capsys.readouterr().out.startswith(("There ", "No local cluster"))


def test_a_reader_that_goes_away_is_no_reason_for_a_traceback(tmp_path: Path):
    logs = tmp_path / "local" / "kgwe" / "logs"
    logs.mkdir(parents=True)
    cluster_record.save_record(logs.parent, cluster_record.ClusterRecord("kgwe", 0.0, {}, {}))
    (logs / "etcd.log").write_text("a line\n" * 100_000)
    command = [sys.executable, "-m", "kgwe.cli", "local", "logs", "etcd", "--tail", "100000"]

    with subprocess.Popen(
        command, env={**os.environ, "KGWE_STATE_DIR": str(tmp_path)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"a line\n"
        process.stdout.close()
        assert process.stderr.read() == b""


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["topology", "--help"], ["topology", "FILE"]])
def test_output_that_cannot_be_written_is_one_plain_message(tmp_path: Path, arguments: list[str]):
    file = tmp_path / "ok.txt"
    file.write_text("\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n")
    command = [sys.executable, "-m", "kgwe.cli", *(str(file) if each == "FILE" else each for each in arguments)]

    with Path("/dev/full").open("w") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    assert result.returncode == 1
    assert result.stderr.endswith("kgwe: cannot write the output: No space left on device\n")
    assert "Traceback" not in result.stderr
    assert "Exception ignored" not in result.stderr


def test_a_reader_that_is_gone_before_the_overview_is_written_gets_no_message():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "kgwe.cli", "--help"]

    result = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)

    os.close(writer)
    assert (result.returncode, result.stderr) == (1, b"")


def test_standard_output_that_is_closed_is_no_error():
    command = ["sh", "-c", 'exec "$0" -m kgwe.cli --help >&-', sys.executable]

    result = subprocess.run(command, stderr=subprocess.PIPE, check=False)

    assert (result.returncode, result.stderr) == (0, b"")
