"""`kgwe replay` on files that were recorded and on files that were not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.support.builders import small_fleet

from kgwe.apps.scheduler.recording.files import files
from kgwe.apps.scheduler.recording.recorder import Recorder
from kgwe.cli.main import main
from kgwe.model.network import domains
from kgwe.placement.fleet.node import Gpus, Request
from kgwe.placement.live.ledger import Ledger
from kgwe.placement.planning import planner
from kgwe.placement.planning.ask import Ask
from kgwe.placement.planning.plan import Plan
from kgwe.placement.planning.planner import pod_amounts
from kgwe.records import decisions

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Pods for one GPU each, and gangs of two, until there is no more room."""
    ledger = Ledger()
    nodes = small_fleet.nodes(4)
    places = [domains.Place(node.name, (node.labels[small_fleet.LEAF],), gb_per_s=50.0) for node in nodes]
    ledger.fleet.set_nodes(nodes, domains.build_tree(places, ("leaf",)))
    recorder = Recorder(tmp_path / "records", 8, clock=lambda: 1000.0)
    for number in range(8):
        request = Request(Gpus(count=1 + number % 2))
        ask = Ask(
            f"w{number}", request, pod_amounts(request), pods=1 + number % 2, name=f"job-{number}", namespace="ns"
        )
        answer = planner.make_plan(ledger.fleet, ask, explain=False)
        recorder.record_plan(ledger.fleet, ask, answer)
        if isinstance(answer, Plan):
            ledger.commit_plan(ask.owner, answer.amounts_by_seat, answer.grants, [seat.node for seat in answer.seats])
    recorder.close()
    return tmp_path / "records"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["replay", *arguments])
    out, err = capsys.readouterr()
    code = ended.value.code
    return code if isinstance(code, int) else 0, out, err


def test_what_was_recorded_comes_out_the_same(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, str(records))
    assert code == 0
    assert out.startswith("8 decisions (8 plans, 0 single-pod placements; 1 refused)")
    assert out.rstrip().endswith("all identical.")


def test_the_first_difference_is_shown_and_fails(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = files(records)
    lines = path.read_bytes().splitlines()
    third = msgspec.json.decode(lines[3])
    third["seats"][0]["node"] = "n9"
    lines[3] = msgspec.json.encode(third)
    path.write_bytes(b"\n".join([*lines, b""]))
    code, out, _ = run(capsys, str(path))
    assert code == 1
    assert f"The first is ns/job-2 at {path}:4:" in out
    assert "was on n9" in out
    code, out, _ = run(capsys, str(path), "--json")
    told = msgspec.json.decode(out)
    assert (code, told["different"], told["first"]["work"]) == (1, 1, "ns/job-2")


def test_another_policy_is_compared(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, str(records), "--policy", "spread", "--json")
    told = msgspec.json.decode(out)
    assert code == 0
    assert told["same"] + told["moved"] + told["still_refused"] == told["decisions"] == 8
    assert told["moved"] == len(told["changed"]) > 0
    recorded, spread = told["leaves_per_gang"]
    assert recorded < spread
    assert told["rings"]["slower"] > 0
    code, out, _ = run(capsys, str(records), "--policy", "spread", "--show", "1")
    assert "leaves per gang" in out
    assert "more (use --show)" in out


def test_times_before_are_left_out(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, str(records), "--since", "1970-01-01T00:16:39Z")[1].startswith("8 decisions")


def test_records_without_decisions_are_an_error(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "/dev/null")
    assert (code, out) == (1, "")
    assert "no decisions in /dev/null" in err
    assert run(capsys, "/dev/null", "--policy", "spread")[0] == 1
    code, _, err = run(capsys, str(records), "--since", "2026-01-01")
    assert code == 1
    assert "no decisions since 2026-01-01 in" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "no records given"),
        (("--policy", "best", "."), "no decisions-"),
        (("nowhere.jsonl",), "cannot read decision records"),
    ],
)
def test_mistakes_are_answered(arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, *arguments)
    assert code == 1
    assert words in err


def test_a_line_without_an_end_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "_MAX_LINE_BYTES", 1000)
    code, _, err = run(capsys, "/dev/zero")
    assert code == 1
    assert "/dev/zero:1 is not a decision record: the line is too long" in err
