"""Processes are recognised beyond doubt, or left alone. The processes here are `sleep`."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import msgspec
import pytest

from kgwe.local.host import processes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kgwe.local.host.processes import ProcessRecord

SLEEP = shutil.which("sleep") or ""
# Ignores the polite request; says so once it does.
STUBBORN = ("/bin/sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 60 & wait; done")


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[ProcessRecord]:
    record = processes.spawn("sleeper", [SLEEP, "60"], log=tmp_path / "sleeper.log", owner=tmp_path)
    yield record
    processes.kill(record)


@pytest.fixture
def foreigner() -> Iterator[subprocess.Popen[bytes]]:
    """A process that nobody here started through `spawn`."""
    with subprocess.Popen([SLEEP, "60"]) as process:
        yield process
        process.kill()


def test_a_started_process_runs_in_a_session_of_its_own(sleeper: ProcessRecord):
    assert processes.is_alive(sleeper)
    assert os.getsid(sleeper.pid) == sleeper.pid


def test_a_terminated_process_is_gone_and_leaves_no_zombie(sleeper: ProcessRecord):
    assert processes.terminate([sleeper], grace_s=10.0) == []

    assert not processes.is_alive(sleeper)
    with pytest.raises(ProcessLookupError):
        os.kill(sleeper.pid, 0)


def test_a_process_that_does_not_listen_is_killed(tmp_path: Path):
    log = tmp_path / "deaf.log"
    record = processes.spawn("deaf", STUBBORN, log=log, owner=tmp_path)
    while "deaf" not in log.read_text():
        assert processes.is_alive(record)

    assert processes.terminate([record], grace_s=0.2) == [record]

    assert not processes.is_alive(record)
    for child in processes.find_marked(tmp_path):
        processes.kill(child)


def test_output_goes_to_the_log(tmp_path: Path):
    log = tmp_path / "logs" / "echo.log"
    record = processes.spawn("echo", ["/bin/sh", "-c", "echo out; echo err >&2"], log=log, owner=tmp_path)

    processes.await_any_exit([record], 10.0)

    assert sorted(log.read_text().split()) == ["err", "out"]
    assert not processes.is_alive(record)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"start_ticks": 1}, id="it started at another time"),
        pytest.param({"boot": "another"}, id="the machine was booted since"),
        pytest.param({"mark": "/somewhere/else#sleeper"}, id="it belongs to another cluster"),
    ],
)
def test_a_process_that_only_has_the_pid_is_not_touched(sleeper: ProcessRecord, change: dict[str, object]):
    stale = msgspec.structs.replace(sleeper, **change)

    assert not processes.is_alive(stale)
    assert not processes.kill(stale)
    assert processes.terminate([stale], grace_s=0.1) == []

    assert processes.is_alive(sleeper)


def test_a_recycled_pid_of_a_foreign_process_is_not_touched(sleeper: ProcessRecord, foreigner: subprocess.Popen[bytes]):
    # Everything but the mark is right: what a forged or very unlucky record would look like.
    ticks = processes._start_ticks(foreigner.pid)
    recycled = msgspec.structs.replace(sleeper, pid=foreigner.pid, start_ticks=ticks)

    processes.terminate([recycled], grace_s=0.1)

    assert foreigner.poll() is None


def test_marked_processes_are_found_without_a_record(
    tmp_path: Path, sleeper: ProcessRecord, foreigner: subprocess.Popen[bytes]
):
    found = processes.find_marked(tmp_path)

    assert [(each.pid, each.name) for each in found] == [(sleeper.pid, "sleeper")]
    assert foreigner.pid not in {each.pid for each in found}
    assert processes.find_marked(tmp_path.parent) == []


def test_usage_tells_memory_and_age_of_a_live_process_and_nothing_of_a_dead_one(sleeper: ProcessRecord):
    usage = processes.read_usage(sleeper)
    assert usage is not None
    assert usage.rss_mib > 0
    assert usage.age_s >= 0

    processes.kill(sleeper)

    assert processes.read_usage(sleeper) is None


def test_a_record_survives_being_written_down(sleeper: ProcessRecord):
    assert msgspec.json.decode(msgspec.json.encode(sleeper), type=processes.ProcessRecord) == sleeper
