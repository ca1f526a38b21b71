"""MPS daemons: started, found again, never twice, never left behind. The daemon is a stand-in, a process of its own."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.hardware.linux import marked_processes
from kgwe.hardware.mps import control as mps_control
from kgwe.hardware.mps.daemons import MpsDaemons, State
from kgwe.hardware.mps.desired import DesiredDaemon
from kgwe.local.fleet import mps_control as fake

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

AGENT = Path(__file__).parents[3] / "support" / "machines" / "mps_agent.py"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Bed:
    """A root directory and a binary, and what runs there."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "mps"
        self.binary = fake.install(directory / "bin")
        self.clock = Clock()
        self.modes: list[tuple[str, bool]] = []

    def daemons(self, deadline_s: float = 60.0) -> MpsDaemons:
        return MpsDaemons(
            self.root,
            binary=str(self.binary),
            deadline_s=deadline_s,
            ask_every_s=0.0,
            set_exclusive=self._set_exclusive,
            clock=self.clock,
        )

    async def _set_exclusive(self, uuid: str, on: bool) -> None:  # noqa: FBT001 - the signature of the hook
        self.modes.append((uuid, on))

    def running(self) -> list[marked_processes.MarkedProcess]:
        return marked_processes.find_processes(mps_control.MARK, mps_control.mark_of(self.root))

    def controls(self) -> dict[str, list[int]]:
        """unit -> pids of its daemons, servers aside."""
        processes = self.running()
        pids = {each.pid for each in processes}
        found: dict[str, list[int]] = {}
        for each in processes:
            if each.parent not in pids:
                found.setdefault(each.mark.partition("#")[2], []).append(each.pid)
        return found


@pytest_asyncio.fixture
async def bed(tmp_path_factory) -> AsyncIterator[Bed]:
    # The path of a socket is short: not the long names of tests.
    made = Bed(tmp_path_factory.mktemp("m"))
    yield made
    marked_processes.terminate(made.running(), mps_control.MARK, grace_s=5)
    assert made.running() == []


def kill(pid: int | None) -> None:
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE_S
    while marked_processes.read_process(pid, mps_control.MARK) is not None and time.monotonic() < deadline:
        time.sleep(0.01)


def environment_of(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


async def test_a_daemon_is_started_with_its_limits_and_told_of(bed):
    daemons = bed.daemons()
    await daemons.open()
    status = await daemons.start_daemon(DesiredDaemon("GPU-a", thread_percentage=30, memory_mib=4096))
    assert (status.state, status.problem, status.clients) == (State.RUNNING, "", ())
    assert bed.controls() == {"GPU-a": [status.pid]}
    control = mps_control.MpsControl(mps_control.MpsDirectories(bed.root, "GPU-a"), str(bed.binary))
    assert await control.thread_percentage() == 30
    assert await control.send_command("get_default_device_pinned_mem_limit 0") == "4096M\n"
    environment = environment_of(status.pid)
    assert b"CUDA_VISIBLE_DEVICES=GPU-a" in environment
    assert f"CUDA_MPS_PIPE_DIRECTORY={status.pipe_directory}".encode() in environment
    changed = await daemons.start_daemon(DesiredDaemon("GPU-a", thread_percentage=50, memory_mib=4096))
    assert changed.pid == status.pid
    assert await control.thread_percentage() == 50
    await daemons.close()


async def test_exactly_what_is_wanted_runs(bed):
    daemons = bed.daemons()
    await daemons.open()
    await daemons.apply([DesiredDaemon("GPU-a"), DesiredDaemon("MIG-b")])
    assert set(bed.controls()) == {"GPU-a", "MIG-b"}
    await daemons.apply([DesiredDaemon("MIG-b"), DesiredDaemon("GPU-c")])
    assert set(bed.controls()) == {"MIG-b", "GPU-c"}
    assert not (bed.root / "GPU-a").exists()
    await daemons.apply([])
    assert (bed.running(), await daemons.read_status()) == ([], ())
    await daemons.close()


async def test_clients_are_counted_and_waited_for(bed):
    daemons = bed.daemons()
    await daemons.open()
    status = await daemons.start_daemon(DesiredDaemon("GPU-a", max_clients=1))
    pipe = Path(status.pipe_directory)
    one, other = fake.connect(pipe, 41), fake.connect(pipe, 42)
    status = await daemons.status_of("GPU-a")
    assert (sorted(status.clients), status.is_crowded) == ([41, 42], True)
    assert daemons.map_servers() == {status.servers[0]: status.clients}
    one.close()
    draining = await daemons.stop_daemon("GPU-a")
    assert draining is not None
    assert (draining.state, draining.clients) == (State.DRAINING, (42,))
    assert bed.controls() == {"GPU-a": [status.pid]}
    other.close()
    await daemons.check_daemons()
    assert (bed.running(), await daemons.read_status()) == ([], ())
    await daemons.close()


async def test_what_drains_can_be_forced_or_wanted_again(bed):
    daemons = bed.daemons()
    await daemons.open()
    first = await daemons.start_daemon(DesiredDaemon("GPU-a"))
    with fake.connect(Path(first.pipe_directory), 41):
        assert await daemons.stop_daemon("GPU-a") is not None
        again = await daemons.start_daemon(DesiredDaemon("GPU-a"))
        assert (again.state, again.pid, again.clients) == (State.RUNNING, first.pid, (41,))
        assert await daemons.stop_daemon("GPU-a", force=True) is None
    assert bed.running() == []
    await daemons.close()


async def test_a_daemon_that_crashes_is_started_again_after_a_while_that_grows(bed):
    daemons = bed.daemons()
    await daemons.open()
    first = await daemons.start_daemon(DesiredDaemon("GPU-a"))
    kill(first.pid)
    await daemons.check_daemons()
    status = await daemons.status_of("GPU-a")
    assert (status.state, status.problem) == (State.FAILED, "the MPS daemon exited unexpectedly")
    assert (Path(status.pipe_directory) / "control").exists(), "what a killed daemon leaves"
    bed.clock.now += 2
    await daemons.check_daemons()
    second = await daemons.status_of("GPU-a")
    assert (second.state, second.restarts, second.problem) == (State.RUNNING, 1, "")
    kill(second.pid)
    await daemons.check_daemons()
    bed.clock.now += 1.5
    await daemons.check_daemons()
    assert (await daemons.status_of("GPU-a")).state is State.FAILED
    bed.clock.now += 1
    await daemons.check_daemons()
    assert (await daemons.status_of("GPU-a")).state is State.RUNNING
    await daemons.close()


async def test_a_daemon_that_cannot_start_says_why_and_is_not_tried_all_the_time(bed):
    fake.inject_fault(bed.binary, "start")
    daemons = bed.daemons()
    await daemons.open()
    status = await daemons.start_daemon(DesiredDaemon("GPU-a"))
    assert status.state is State.FAILED
    assert "Cannot access the device" in status.problem
    fake.inject_fault(bed.binary, "")
    await daemons.check_daemons()
    assert (await daemons.status_of("GPU-a")).state is State.FAILED
    bed.clock.now += 2
    await daemons.check_daemons()
    assert (await daemons.status_of("GPU-a")).state is State.RUNNING
    await daemons.close()


async def test_a_machine_without_mps_says_so(bed):
    daemons = MpsDaemons(bed.root, binary=str(bed.root / "nowhere"))
    await daemons.open()
    status = await daemons.start_daemon(DesiredDaemon("GPU-a"))
    assert status.state is State.FAILED
    assert ": No such file" in status.problem
    await daemons.close()


async def test_a_daemon_that_falls_silent_is_replaced(bed):
    fake.inject_fault(bed.binary, "mute")
    daemons = bed.daemons(deadline_s=0.5)
    await daemons.open()
    assert (await daemons.start_daemon(DesiredDaemon("GPU-a"))).state is State.FAILED
    assert bed.running() == []
    fake.inject_fault(bed.binary, "")
    bed.clock.now += 5
    await daemons.close()
    patient = bed.daemons()
    await patient.open()
    first = await patient.status_of("GPU-a")
    assert first.state is State.RUNNING
    os.kill(first.pid or 0, signal.SIGSTOP)
    patient._units["GPU-a"].control._deadline_s = 0.2
    for _ in range(3):
        await patient.check_daemons()
    assert (await patient.status_of("GPU-a")).problem == "the MPS daemon did not respond and was stopped"
    assert bed.running() == []
    patient._units["GPU-a"].control._deadline_s = 60.0
    bed.clock.now += 5
    await patient.check_daemons()
    assert (await patient.status_of("GPU-a")).pid != first.pid
    await patient.close()


async def test_the_compute_mode_is_taken_back_even_by_another_agent(bed):
    daemons = bed.daemons()
    await daemons.open()
    await daemons.apply(
        [DesiredDaemon("GPU-a", is_exclusive=True), DesiredDaemon("GPU-b"), DesiredDaemon("MIG-c", is_exclusive=True)]
    )
    assert bed.modes == [("GPU-a", True)]
    await daemons.close()
    other = bed.daemons()
    await other.open()
    await other.apply([])
    assert bed.modes == [("GPU-a", True), ("GPU-a", False)]
    await other.close()


async def test_two_agents_do_not_share_a_root(bed):
    daemons = bed.daemons()
    await daemons.open()
    with pytest.raises(errors.Conflict, match="another agent"):
        await bed.daemons().open()
    await daemons.close()
    again = bed.daemons()
    await again.open()
    await again.close()
    with pytest.raises(errors.Permanent, match="not open"):
        await again.apply([])


@pytest.mark.parametrize("uuid", ["", "0", "GPU-", "GPU-a/../b", "../GPU-a", "GPU-" + "a" * 120, "GPU-a b"])
async def test_what_is_not_a_unit_is_refused(bed, uuid):
    daemons = bed.daemons()
    await daemons.open()
    with pytest.raises(errors.Permanent):
        await daemons.start_daemon(DesiredDaemon(uuid))
    assert daemons.wanted == ()
    await daemons.close()


async def test_an_unreadable_memory_ends_no_daemon(bed):
    daemons = bed.daemons()
    await daemons.open()
    await daemons.start_daemon(DesiredDaemon("GPU-a"))
    await daemons.close()
    (bed.root / "wanted.json").write_text("[{")
    with pytest.raises(errors.Permanent, match="cannot read"):
        await bed.daemons().open()
    assert set(bed.controls()) == {"GPU-a"}


# --- killed agents --------------------------------------------------------------------------------------


def agent(bed: Bed, *uuids: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(AGENT), str(bed.root), str(bed.binary), *uuids]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def test_daemons_survive_the_agent_and_are_adopted(bed):
    process = agent(bed, "GPU-a", "MIG-b")
    with process:
        assert process.stdout is not None
        while "applied" not in process.stdout.readline():
            assert process.poll() is None
        before = bed.controls()
        process.kill()
    assert set(before) == {"GPU-a", "MIG-b"}
    daemons = bed.daemons()
    await daemons.open()
    assert bed.controls() == before
    assert {status.uuid: [status.pid] for status in await daemons.read_status()} == before
    assert all(status.restarts == 0 for status in await daemons.read_status())
    await daemons.close()


async def something_is_wanted(bed: Bed, process: subprocess.Popen[str]) -> None:
    """Until the agent begins to act: it writes down what is wanted first."""
    path = bed.root / "wanted.json"
    before = path.stat().st_mtime_ns if path.exists() else 0
    deadline = time.monotonic() + PATIENCE_S
    while not (path.exists() and path.stat().st_mtime_ns > before) and time.monotonic() < deadline:
        assert process.poll() is None
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(("fault", "rounds"), [("", 1), pytest.param("slow", 12, marks=pytest.mark.slow)])
async def test_an_agent_killed_at_any_moment_leaves_nothing_twice_and_nothing_behind(bed, fault, rounds):
    fake.inject_fault(bed.binary, fault)
    dice = random.Random(7)
    units = ["GPU-a", "GPU-b", "MIG-c", "MIG-d"]
    for _ in range(rounds):
        process = agent(bed, *dice.sample(units, 2))
        with process:
            await something_is_wanted(bed, process)
            await asyncio.sleep(dice.uniform(0.0, 0.8))
            process.kill()
    fake.inject_fault(bed.binary, "")
    daemons = bed.daemons()
    await daemons.open()
    await daemons.apply([DesiredDaemon("GPU-a"), DesiredDaemon("MIG-c")])
    controls = bed.controls()
    assert {uuid: len(pids) for uuid, pids in controls.items()} == {"GPU-a": 1, "MIG-c": 1}
    assert all(status.state is State.RUNNING for status in await daemons.read_status())
    await daemons.apply([])
    assert bed.running() == []
    assert sorted(entry.name for entry in bed.root.iterdir()) == ["lock", "wanted.json"]
    await daemons.close()
