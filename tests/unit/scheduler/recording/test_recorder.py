"""Decision records on disk: within their limit, and always fit to be replayed."""

from __future__ import annotations

import shutil
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest
from tests.support.builders import small_fleet
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.apps.scheduler.recording.files import RecordFiles, files
from kgwe.apps.scheduler.recording.recorder import Recorder
from kgwe.model.network import domains
from kgwe.placement.fleet.node import Gpus, Request
from kgwe.placement.live.ledger import Ledger
from kgwe.placement.planning import planner
from kgwe.placement.planning.ask import Ask
from kgwe.placement.planning.plan import Plan
from kgwe.records import decisions
from kgwe.records.decisions import End
from kgwe.records.rows import FreeCopy, Mirror
from kgwe.sim import replay
from kgwe.sim.traces import recorded

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MIB = 1 << 20
ASK = Ask("w", Request(Gpus(count=1), cpu_milli=100), {"cpu": 100, "nvidia.com/gpu": 1, "pods": 1}, name="job")


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger()
    nodes = small_fleet.nodes(4)
    places = [domains.Place(node.name, (node.labels[small_fleet.LEAF],)) for node in nodes]
    ledger.fleet.set_nodes(nodes, domains.build_tree(places, ("leaf",)))
    return ledger


def everything(ledger: Ledger) -> decisions.PendingSnapshot:
    mirror = Mirror(FreeCopy.copy_from(ledger.fleet.snapshot))
    return decisions.PendingSnapshot(0.0, mirror.last, mirror.digest, ledger.fleet.tree)


def decide(recorder: Recorder, ledger: Ledger, number: int) -> None:
    ask = Ask(f"w{number}", ASK.request, ASK.amounts, name="job")
    answer = planner.make_plan(ledger.fleet, ask, explain=False)
    recorder.record_plan(ledger.fleet, ask, answer)
    if isinstance(answer, Plan):
        ledger.commit_plan(ask.owner, answer.amounts_by_seat, answer.grants, [seat.node for seat in answer.seats])


def differences(directory: Path) -> list[str]:
    return [outcome.difference for outcome in replay.replay(decisions.read_lines(files(directory)))]


def wait_for(true: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.01)


def is_longer(items: list[int], count: int) -> bool:
    return len(items) > count


def test_files_are_rotated_and_the_oldest_deleted(tmp_path: Path, ledger: Ledger) -> None:
    written: list[int] = []
    records = RecordFiles(tmp_path, 8, on_written=written.append)
    line = decisions.PendingDecision(
        0.0, "plan", Ask("w", ASK.request, name="x" * 100_000), planner.make_plan(ledger.fleet, ASK)
    )
    for number in range(200):
        if records.wants_snapshot:
            assert records.put(everything(ledger))
        assert records.put(line)
        # The scheduler is slower than this loop: let the thread notice that a file is full.
        wait_for(partial(is_longer, written, number))
    records.close()
    found = files(tmp_path)
    assert 4 <= len(found) <= 9
    # A file ends a few lines after it is full: the thread that writes tells the loop.
    assert sum(path.stat().st_size for path in found) <= 8 * MIB + 400_000
    assert all(path.read_bytes().startswith(b'{"kind":"snapshot"') for path in found)
    assert not found[0].name.endswith("-000001.jsonl")


def test_every_file_can_be_replayed_alone(tmp_path: Path, ledger: Ledger) -> None:
    recorder = Recorder(tmp_path, 8)
    for number in range(4):
        decide(recorder, ledger, number)
        if number == 1:
            recorder._files.wants_snapshot = True
    recorder.close()
    assert len(files(tmp_path)) == 2
    for path in files(tmp_path):
        assert [outcome.difference for outcome in replay.replay(decisions.read_lines([path]))] == ["", ""]


def test_a_disk_that_fails_costs_lines_and_nothing_else(tmp_path: Path, ledger: Ledger) -> None:
    directory = tmp_path / "records"
    dropped: list[int] = []
    recorder = Recorder(directory, 8)
    recorder._files = RecordFiles(directory, 8, on_dropped=dropped.append, pause_s=0.0)
    decide(recorder, ledger, 0)
    wait_for(lambda: bool(files(directory)))
    shutil.rmtree(directory)
    recorder._files.wants_snapshot = True
    decide(recorder, ledger, 1)
    wait_for(lambda: sum(dropped) >= 2)
    directory.mkdir()
    wait_for(lambda: recorder._files.wants_snapshot)
    decide(recorder, ledger, 2)
    decide(recorder, ledger, 3)
    recorder.close()
    assert differences(directory) == ["", ""]


def test_a_slow_disk_is_not_waited_for(tmp_path: Path, ledger: Ledger) -> None:
    disk = threading.Event()
    dropped: list[int] = []
    recorder = Recorder(tmp_path, 8)

    def written(_: int) -> None:
        disk.wait(20)

    recorder._files = RecordFiles(tmp_path, 8, on_written=written, on_dropped=dropped.append)
    decide(recorder, ledger, 0)
    plan = planner.make_plan(ledger.fleet, ASK)
    for number in range(6000):
        recorder.record_plan(ledger.fleet, ASK, plan, draws=(number,))
    assert sum(dropped) > 1000
    disk.set()
    wait_for(recorder._files._items.empty)
    decide(recorder, ledger, 1)
    recorder.close()
    assert len(files(tmp_path)) == 2
    assert set(differences(tmp_path)) == {""}


def test_a_pod_refused_again_is_written_once(tmp_path: Path, ledger: Ledger) -> None:
    recorder = Recorder(tmp_path, 8)
    large = Ask("p", Request(Gpus(count=64)))
    for _ in range(5):
        recorder.record_pod(ledger.fleet, large, ledger.fleet.engine.decide(large.request))
    recorder.close()
    assert len(differences(tmp_path)) <= 2


def test_ends_are_written_when_nothing_is_held_any_more(tmp_path: Path, ledger: Ledger) -> None:
    recorder = Recorder(tmp_path, 8)
    decide(recorder, ledger, 0)
    wait_for(lambda: not recorder._files.wants_snapshot)
    recorder.record_ends(ledger)
    ledger.release_seats("w0")
    recorder.record_ends(ledger)
    recorder.close()
    lines = [line for _, line in decisions.read_lines(files(tmp_path))]
    assert [line.job for line in lines if isinstance(line, End)] == ["w0"]
    jobs = recorded.read_workload("again", decisions.read_lines(files(tmp_path))).jobs
    assert [(job.name, job.pods, job.request) for job in jobs] == [("w0", 1, ASK.request)]


def test_a_place_that_cannot_be_written_to_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(errors.Permanent, match="recordDirectory"):
        RecordFiles(tmp_path / "file" / "records", 8)
    with pytest.raises(errors.Permanent, match="at least 8 MB"):
        RecordFiles(tmp_path, 1)


def test_a_line_that_was_cut_off_ends_the_file(tmp_path: Path, ledger: Ledger) -> None:
    recorder = Recorder(tmp_path, 8)
    decide(recorder, ledger, 0)
    decide(recorder, ledger, 1)
    recorder.close()
    (path,) = files(tmp_path)
    path.write_bytes(path.read_bytes()[:-20])
    assert differences(tmp_path) == [""]


def test_a_file_without_its_beginning_is_refused(tmp_path: Path, ledger: Ledger) -> None:
    recorder = Recorder(tmp_path, 8)
    decide(recorder, ledger, 0)
    recorder.close()
    (path,) = files(tmp_path)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))
    with pytest.raises(errors.Permanent, match="snapshot"):
        differences(tmp_path)
