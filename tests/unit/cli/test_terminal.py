"""No text of a user controls the terminal on which a command runs."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from kgwe import cli, errors, terminal
from kgwe.cli import main

ATTACK = "\x1b[2J\x1b]0;title\x07\u202e"
COMMANDS = Path(cli.__file__).parent


def test_all_output_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.write(f"{ATTACK}\n")
    terminal.write_error(f"{ATTACK}\n")
    said = capsys.readouterr()
    shown = r"\u001b[2J\u001b]0;title\u0007\u202e" + "\n"
    assert (said.out, said.err) == (shown, shown)


def test_error_messages_are_escaped(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: list[str]) -> None:
        raise errors.NotFound(f"no workload {ATTACK}")

    monkeypatch.setattr(main, "build_app", lambda: fail)
    with pytest.raises(SystemExit):
        main.main(["explain", ATTACK])
    assert capsys.readouterr().err.rstrip("\n").isprintable()


@pytest.mark.parametrize("file", sorted(COMMANDS.rglob("*.py")), ids=lambda file: str(file.relative_to(COMMANDS)))
def test_a_command_writes_only_through_the_escaping_functions(file: Path) -> None:
    calls = [node.func for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    direct = {ast.unparse(call) for call in calls} & {"print", "sys.stdout.write", "sys.stderr.write"}
    assert not direct, f"{file.name}: use kgwe.terminal"
