"""The screen of `kgwe demo` keeps all its panels, whatever the number of workloads."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from kgwe.local.demo import screen
from kgwe.local.demo.demo import Endpoints, Seen


def shown(workloads: int, height: int, message: str = "waits " * 60, width: int = 120) -> list[str]:
    seen = {
        ("gw", f"w{number:02}"): Seen(
            f"w{number:02}", "kgwe.nvidia.io", "8", "Succeeded" if number < 5 else "Pending", "", message, 0.0
        )
        for number in range(workloads)
    }
    nothing = SimpleNamespace(store={})
    view: Any = SimpleNamespace(seen=seen, nodes=nothing, pods=nothing, findings=[], budgets=None, costs=None)
    endpoints = Endpoints(metrics="http://127.0.0.1:1", optimizer=screen.DEFAULT_OPTIMIZER)
    text = io.StringIO()
    console = Console(file=text, width=width, height=height)
    console.print(screen.render(view, name="kgwe", endpoints=endpoints, started=0.0, height=height))
    return text.getvalue().splitlines()


@pytest.mark.parametrize("workloads", [21, 60])
def test_many_workloads_leave_room_for_the_other_panels(workloads: int) -> None:
    lines = shown(workloads, 40)
    assert len(lines) <= 40
    text = "\n".join(lines)
    assert "Fleet" in text
    assert "Wasted GPUs" in text
    assert "w05" in text
    if workloads > 40:
        assert " more " in text
        assert "w00" not in text, "workloads that have ended give way"


def test_few_workloads_are_all_shown() -> None:
    text = "\n".join(shown(3, 40))
    assert "more" not in text
    assert all(name in text for name in ("w00", "w01", "w02"))


def test_phases_and_kinds_are_whole_in_80_columns() -> None:
    text = "\n".join(shown(8, 50, width=80))
    assert "Succeeded" in text
    assert " gw " in text
    assert "submit your own workload\n" in text
    assert "predict a workload before it runs\n" in text


@pytest.mark.parametrize(
    "message", ["closes [/x] what is not open", "a [link=http://evil]link[/link]", "[red]alarm[/]"]
)
def test_messages_are_shown_as_written(message: str) -> None:
    assert message in "\n".join(shown(1, 40, message))


def test_messages_do_not_control_the_terminal() -> None:
    text = "".join(shown(1, 40, "\x1b[2J\x07\u202e"))
    assert text.isprintable()
    assert r"\u001b[2J\u0007\u202e" in text
