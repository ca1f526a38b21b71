"""Signals reach exactly the processes of one pod that handle them, with real processes."""

from __future__ import annotations

import pytest
from tests.support.machines.ranks import Ranks
from tests.support.patience import until

from kgwe.hardware.linux.pod_processes import PodProcesses

POD = "0a000000-0000-0000-0000-000000000001"
OTHER = "0a000000-0000-0000-0000-000000000002"


@pytest.fixture
def ranks(tmp_path):
    made = Ranks(tmp_path)
    yield made
    made.stop()


async def test_only_the_topmost_process_of_the_pod_that_handles_the_signal_gets_it(ranks):
    pid = ranks.start(POD, loader=True)
    ranks.start(OTHER)
    processes = PodProcesses(ranks.proc)
    assert len(processes.list_of(POD)) == 2
    assert processes.send(POD, "SIGUSR1") == [pid]
    await until(lambda: ranks.read_calls(POD))
    assert len(ranks.read_calls(POD)) == 1
    assert ranks.read_calls(OTHER) == []


def test_a_process_without_a_handler_is_not_ended_by_the_signal(ranks):
    ranks.start(POD, handles=False)
    assert PodProcesses(ranks.proc).send(POD, "SIGUSR1") == []
    assert ranks.is_running(POD)


def test_the_file_of_a_pod_is_found_and_no_link_is_followed(ranks, tmp_path):
    pid = ranks.start(POD)
    processes = PodProcesses(ranks.proc)
    root = ranks.proc / str(pid) / "root"
    assert processes.find_mtime(pid, "/tmp/kgwe-checkpoint") is None
    (root / "tmp/kgwe-checkpoint").write_text("x")
    assert processes.find_mtime(pid, "/tmp/kgwe-checkpoint") == (root / "tmp/kgwe-checkpoint").stat().st_mtime
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "file").write_text("x")
    (root / "out").symlink_to(tmp_path / "secret")
    assert processes.find_mtime(pid, "/out/file") is None
    assert processes.find_mtime(999_999_999, "/tmp/x") is None
