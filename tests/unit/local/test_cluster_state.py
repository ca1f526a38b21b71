"""State on disk, ports, names, locks, and what stopping does with the processes of a cluster that never really ran."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import threading
from pathlib import Path

import msgspec
import pytest

from kgwe.errors import NotFound, Permanent, Transient
from kgwe.local.cluster import cluster_record as state
from kgwe.local.cluster.cluster import ClusterOptions, LocalCluster
from kgwe.local.cluster.cluster_record import ClusterRecord
from kgwe.local.cluster.startup import PortTaken
from kgwe.local.cluster.status import Health, examine
from kgwe.local.host import paths, ports, processes
from kgwe.local.host.lock import Lock
from kgwe.local.toolchain.binaries import TOOLS, Binaries, Found, Source

SLEEP = shutil.which("sleep") or ""


def make_state(name: str = "one", **changes: object) -> ClusterRecord:
    fresh = ClusterRecord(name, 0.0, {"kube-apiserver": 20001, "etcd": 20002}, {"etcd": "v3.6.6"})
    return msgspec.structs.replace(fresh, **changes)


@pytest.fixture
def shell(tmp_path: Path) -> LocalCluster:
    """A cluster with a directory and nothing in it."""
    cluster = LocalCluster("one", state_root=tmp_path)
    cluster.directory.mkdir(parents=True)
    return cluster


def test_state_reads_back_as_it_was_written(shell: LocalCluster):
    written = make_state(ready=True)
    state.save_record(shell.directory, written)

    assert state.load_record(shell.directory) == written
    assert [path.name for path in shell.directory.iterdir()] == ["state.json"]


def test_no_state_is_none(shell: LocalCluster):
    assert state.load_record(shell.directory) is None
    with pytest.raises(NotFound, match="kgwe local up --name one"):
        shell.state()


@pytest.mark.parametrize(
    "content", [pytest.param("{", id="cut off"), pytest.param('{"name": 5}', id="of another shape")]
)
def test_unreadable_state_names_the_way_out_and_the_way_out_works(shell: LocalCluster, content: str):
    (shell.directory / "state.json").write_text(content)

    with pytest.raises(Permanent, match="kgwe local down --name one"):
        state.load_record(shell.directory)
    assert "kgwe local down" in (examine(shell).problem or "")

    shell.stop()
    assert not shell.directory.exists()


def test_state_of_another_version_is_not_guessed_at(shell: LocalCluster):
    state.save_record(shell.directory, make_state(format=99))

    with pytest.raises(Permanent, match="another version"):
        state.load_record(shell.directory)


def test_stopping_leaves_alone_a_foreign_process_that_got_a_recorded_pid(shell: LocalCluster):
    with subprocess.Popen([SLEEP, "60"]) as foreigner:
        record = processes.ProcessRecord(
            "etcd", foreigner.pid, 1, processes.boot_id(), ("etcd",), "", processes.mark_of(shell.directory, "etcd")
        )
        state.save_record(shell.directory, make_state(processes={"etcd": record}))
        assert not shell.is_running()

        shell.stop()

        assert foreigner.poll() is None
        foreigner.kill()
    assert not shell.directory.exists()


def test_stopping_finds_a_process_that_was_never_written_down(shell: LocalCluster):
    orphan = processes.spawn("etcd", [SLEEP, "60"], log=shell.layout.log("etcd"), owner=shell.directory)

    shell.stop()

    assert not processes.is_alive(orphan)


def test_stopping_can_keep_the_data(shell: LocalCluster):
    record = processes.spawn("etcd", [SLEEP, "60"], log=shell.layout.log("etcd"), owner=shell.directory)
    state.save_record(shell.directory, make_state(ready=True, resumable=True, processes={"etcd": record}))
    shell.layout.data.mkdir()

    shell.stop(remove=False)

    assert not processes.is_alive(record)
    assert shell.layout.data.exists()
    assert state.load_record(shell.directory) == make_state(resumable=True)
    assert {each.health for each in examine(shell).components} == {Health.STOPPED}


def test_stopping_what_is_not_there_is_no_error(tmp_path: Path):
    LocalCluster("nobody", state_root=tmp_path).stop()

    assert list(tmp_path.iterdir()) == []


def test_a_dead_component_is_shown_as_dead(shell: LocalCluster):
    record = processes.spawn("etcd", [SLEEP, "60"], log=shell.layout.log("etcd"), owner=shell.directory)
    state.save_record(shell.directory, make_state(processes={"etcd": record}))
    shell.kill("etcd")

    assert shell.find_dead() == record
    assert {each.name: each.health for each in examine(shell).components}["etcd"] is Health.DEAD


def test_a_sidecar_lives_with_the_cluster_and_is_replaced_by_name(shell: LocalCluster):
    state.save_record(shell.directory, make_state())
    first = shell.start_sidecar("exporter", [SLEEP, "60"], env={"A": "b"})
    second = shell.start_sidecar("exporter", [SLEEP, "61"])

    assert not processes.is_alive(first)
    assert shell.state().sidecars == {"exporter": second}
    with pytest.raises(Permanent, match="another name"):
        shell.start_sidecar("kwok", [SLEEP, "60"])
    with pytest.raises(NotFound, match="it has: exporter"):
        shell.kill("kwok")

    shell.stop()
    assert not processes.is_alive(second)


@pytest.mark.parametrize("name", ["", "Upper", "a/b", "..", "-a", "a-", "a" * 41, "a b"])
def test_names_that_could_lead_astray_are_refused(name: str):
    with pytest.raises(Permanent, match="is not a valid cluster name"):
        paths.cluster_directory(name)


def test_directories_follow_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("KGWE_STATE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert paths.cache_root() == Path("/home/someone/.cache/kgwe")
    assert paths.cluster_directory("kgwe") == Path("/home/someone/.local/state/kgwe/local/kgwe")

    monkeypatch.setenv("XDG_STATE_HOME", "/var/state")
    assert paths.cluster_directory("kgwe") == Path("/var/state/kgwe/local/kgwe")

    monkeypatch.setenv("KGWE_STATE_DIR", "/elsewhere")
    assert paths.cluster_directory("kgwe") == Path("/elsewhere/local/kgwe")


def test_ports_are_free_distinct_and_not_those_of_other_clusters(tmp_path: Path):
    other = LocalCluster("other", state_root=tmp_path)
    other.directory.mkdir(parents=True)
    chosen = ports.allocate(["a", "b"], seed=1)
    state.save_record(other.directory, make_state("other", ports=chosen))

    taken = state.ports_of_others("one", tmp_path)
    again = ports.allocate(["a", "b"], avoid=taken, seed=1)

    assert taken == set(chosen.values())
    assert len({*chosen.values(), *again.values()}) == 4
    assert state.ports_of_others("other", tmp_path) == set()


def test_a_cluster_named_ports_does_not_wait_for_its_own_lock(tmp_path: Path):
    cluster = LocalCluster("ports", state_root=tmp_path)
    cluster.directory.mkdir(parents=True)
    found = Binaries({name: Found(Path("/nowhere"), "v1", Source.PATH) for name in TOOLS})
    with cluster._lock.hold(timeout_s=1):
        cluster._allocate_ports(None, found)
    assert cluster.state().ports


def test_a_preferred_port_is_kept_while_it_is_free():
    port = ports.allocate(["a"])["a"]
    assert ports.allocate(["a"], preferred={"a": port}) == {"a": port}

    with socket.create_server((ports.LOOPBACK, port)):
        assert ports.allocate(["a"], preferred={"a": port})["a"] != port


def test_a_port_that_was_chosen_is_not_chosen_again_before_a_server_listens_on_it():
    port = ports.allocate(["a"])["a"]

    with pytest.raises(Permanent, match=f"no free port on 127.0.0.1 between {port} and {port} for b"):
        ports.allocate(["b"], among=range(port, port + 1))

    with socket.create_server((ports.LOOPBACK, port)) as server:
        socket.create_connection(server.getsockname()).close()


def test_only_the_newest_chosen_ports_are_held(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ports, "_HELD_MAX", 1)
    port = ports.allocate(["old"])["old"]
    ports.allocate(["new"])
    assert ports.allocate(["again"], among=range(port, port + 1)) == {"again": port}


def test_control_planes_have_ports_of_their_own(shell: LocalCluster):
    shell._allocate_ports(None, install_stub(shell.directory, "true"))
    assert all(port in ports.CONTROL_PLANES for port in shell.state().ports.values())
    assert not set(ports.CONTROL_PLANES) & set(ports.PROCESSES)


def install_stub(directory: Path, script: str) -> Binaries:
    """Install one shell script as each binary of the control plane."""
    path = directory / "stub"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return Binaries({name: Found(path, "v1", Source.PATH) for name in TOOLS})


def test_a_start_whose_ports_are_taken_tries_others_and_gives_up_after_the_third(tmp_path: Path):
    calls = tmp_path / "calls"
    refuse = 'echo "listen tcp 127.0.0.1:26380: bind: address already in use"; exit 1'
    stub = install_stub(tmp_path, f'echo "$@" >> "{calls}"; {refuse}')

    with pytest.raises(PortTaken, match="etcd exited while starting"):
        LocalCluster.start(ClusterOptions("one", state_root=tmp_path), binaries=stub)

    listened = [set(re.findall(r"127\.0\.0\.1:(\d+)", line)) for line in calls.read_text().splitlines()]
    assert [len(each) for each in listened] == [2, 2, 2]  # for clients and for peers
    assert len(set.union(*listened)) == 6


def test_a_start_that_fails_for_another_reason_is_not_repeated(tmp_path: Path):
    calls = tmp_path / "calls"
    stub = install_stub(tmp_path, f'echo "$@" >> "{calls}"; echo "no space left on device"; exit 1')

    with pytest.raises(Permanent, match="no space left on device"):
        LocalCluster.start(ClusterOptions("one", state_root=tmp_path), binaries=stub)

    assert len(calls.read_text().splitlines()) == 1


def test_a_lock_is_held_by_one_and_names_its_holder(tmp_path: Path):
    lock = Lock(tmp_path / "lock", purpose="counting")
    message = r"timed out waiting for process \d+, counting"

    with lock.hold(timeout_s=1.0), pytest.raises(Transient, match=message), lock.hold(timeout_s=0.0):
        pytest.fail("two hold the lock")

    with lock.hold(timeout_s=0.0):
        pass


def test_a_lock_whose_file_is_removed_still_excludes(tmp_path: Path):
    lock = Lock(tmp_path / "lock", purpose="counting")
    inside = threading.Semaphore(1)
    rounds = 25

    def work() -> None:
        for _ in range(rounds):
            with lock.hold(timeout_s=30.0):
                assert inside.acquire(blocking=False)
                inside.release()
                lock.remove()  # the last thing done under the lock: another thread may lock a new file from here on
            done.append(1)

    done: list[int] = []
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 2 * rounds
