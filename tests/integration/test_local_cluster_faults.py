"""The local cluster when things go wrong: crashes, races, interrupted starts, several clusters at once.

Starting a cluster is the expensive part, so most tests share one and leave it running.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from kgwe.errors import NotFound
from kgwe.local.cluster import cluster_record as state
from kgwe.local.cluster import components
from kgwe.local.cluster.cluster import ClusterOptions, LocalCluster, service_account_kubeconfig
from kgwe.local.host import ports, processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.cluster

TIMEOUT_S = 240.0
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture(scope="module")
def twins(cluster_root: Path) -> Iterator[list[LocalCluster]]:
    """One cluster, started by two at the same moment."""
    options = ClusterOptions(f"test-{os.getpid()}-twins", state_root=cluster_root)
    try:
        with ThreadPoolExecutor(2) as pool:
            starts = [pool.submit(LocalCluster.start, options) for _ in range(2)]
        yield [start.result() for start in starts]
    finally:
        LocalCluster(options.name, state_root=cluster_root).stop(grace_s=2.0)


@pytest.fixture
def victim(twins: list[LocalCluster], cluster_root: Path) -> LocalCluster:
    """The shared cluster, repaired if the test before broke it."""
    return LocalCluster.start(ClusterOptions(twins[0].name, state_root=cluster_root))


def wait_until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not done():
        if time.monotonic() > deadline:
            pytest.fail(f"{what} did not happen")
        time.sleep(0.05)


def remember(cluster: LocalCluster, name: str) -> str:
    """Store something in the cluster; returns where it is."""
    with cluster.api() as api:
        api.request("POST", CONFIG_MAPS, {"metadata": {"name": name}})
    return f"{CONFIG_MAPS}/{name}"


def remembers(cluster: LocalCluster, path: str) -> bool:
    with cluster.api() as api:
        return api.exists(path)


def test_two_starts_at_once_make_one_cluster(twins: list[LocalCluster]):
    assert sorted(each.reused for each in twins) == [False, True]
    assert twins[0].api_url == twins[1].api_url


@pytest.mark.slow
def test_clusters_run_side_by_side_and_do_not_see_each_other(victim: LocalCluster, cluster: LocalCluster):
    path = remember(victim, "mine")

    assert set(victim.state().ports.values()).isdisjoint(cluster.state().ports.values())
    assert remembers(victim, path)
    assert not remembers(cluster, path)


def test_a_killed_api_server_comes_back_on_its_port_with_its_data(victim: LocalCluster):
    path = remember(victim, "survives-kill")
    url, before = victim.api_url, victim.state().processes

    victim.kill(components.APISERVER)
    assert not victim.is_running()
    with pytest.raises(NotFound):
        LocalCluster.attach(victim.name, state_root=victim.directory.parent.parent)
    victim.restart(components.APISERVER)

    assert victim.is_running()
    assert victim.api_url == url
    assert remembers(victim, path)
    after = victim.state().processes
    assert {name for name in components.NAMES if before[name] != after[name]} == {components.APISERVER}
    assert before[components.APISERVER].argv == after[components.APISERVER].argv


@pytest.mark.slow
def test_starting_a_half_dead_cluster_sweeps_the_rest_and_keeps_the_data(victim: LocalCluster, cluster_root: Path):
    path = remember(victim, "survives-crash")
    before = victim.state().processes
    victim.kill(components.ETCD)
    victim.kill(components.KWOK)

    again = LocalCluster.start(ClusterOptions(victim.name, state_root=cluster_root))

    assert not again.reused
    assert remembers(again, path)
    assert not any(processes.is_alive(record) for record in before.values())


def test_a_stopped_cluster_continues_with_its_data_and_tokens(victim: LocalCluster, cluster_root: Path, tmp_path: Path):
    path = remember(victim, "survives-stop")
    token = service_account_kubeconfig(victim, "default", "default", tmp_path / "before.yaml").read_text()
    key = victim.layout.certificates.service_account_key.read_bytes()
    before = victim.state().ports

    victim.stop(remove=False)
    assert processes.find_marked(victim.directory) == []
    again = LocalCluster.start(ClusterOptions(victim.name, state_root=cluster_root))

    assert remembers(again, path)
    assert again.state().ports == before
    assert again.layout.certificates.service_account_key.read_bytes() == key
    assert again.api_url in token


@pytest.mark.slow
@pytest.mark.parametrize("component", components.NAMES)
def test_a_start_goes_on_with_other_ports_if_one_was_taken_after_it_was_chosen(
    victim: LocalCluster, component: str, cluster_root: Path, monkeypatch: pytest.MonkeyPatch
):
    path = remember(victim, f"survives-{component}")
    before = victim.state().ports
    victim.stop(remove=False)
    allocate = ports.allocate
    answers = iter([before])
    monkeypatch.setattr(ports, "allocate", lambda *args, **more: next(answers, None) or allocate(*args, **more))

    with socket.create_server((ports.LOOPBACK, before[component])):
        again = LocalCluster.start(ClusterOptions(victim.name, state_root=cluster_root))

    assert not set(again.state().ports.values()) & set(before.values())
    assert remembers(again, path)


def test_the_scheduler_takes_another_configuration(victim: LocalCluster):
    before = victim.state().processes
    configuration = "profiles: [{schedulerName: default-scheduler}, {schedulerName: second-scheduler}]"

    victim.configure_scheduler(configuration)
    after = victim.state().processes
    victim.configure_scheduler(configuration)

    assert {name for name in components.NAMES if before[name] != after[name]} == {components.SCHEDULER}
    assert victim.state().processes == after  # the same again restarts nothing
    assert "second-scheduler" in victim.layout.setting("scheduler.yaml").read_text()


def test_what_a_killed_start_left_behind_is_swept_by_the_next(cluster_root: Path):
    name = f"test-{os.getpid()}-swept"
    directory = LocalCluster(name, state_root=cluster_root).directory
    environment = {**os.environ, "KGWE_STATE_DIR": str(cluster_root)}
    command = [sys.executable, "-m", "kgwe.cli", "local", "up", "--name", name]
    try:
        with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as starter:
            wait_until(lambda: etcd_of(directory) is not None, "the start of etcd")
            starter.kill()
        orphan = etcd_of(directory)
        assert orphan is not None
        assert processes.is_alive(orphan)

        cluster = LocalCluster.start(ClusterOptions(name, state_root=cluster_root))

        assert not cluster.reused
        assert not processes.is_alive(orphan)
        marked = {record.pid for record in processes.find_marked(directory)}
        assert marked == {record.pid for record in cluster.state().processes.values()}
    finally:
        LocalCluster(name, state_root=cluster_root).stop(grace_s=2.0)


def etcd_of(directory: Path) -> processes.ProcessRecord | None:
    known = state.load_record(directory)
    return known.processes.get(components.ETCD) if known else None


@pytest.mark.slow
def test_in_the_foreground_a_death_is_reported_and_ctrl_c_stops_everything(cluster_root: Path):
    cluster = LocalCluster(f"test-{os.getpid()}-front", state_root=cluster_root)
    try:
        with foreground(cluster) as first:
            cluster.kill(components.KWOK)
            _, errors = first.communicate(timeout=TIMEOUT_S)
        assert first.returncode == 1
        assert "kwok (pid" in errors
        assert "exited" in errors
        assert processes.find_marked(cluster.directory) == []
        assert cluster.layout.data.exists()

        with foreground(cluster) as second:
            # To the whole group, as a terminal does; the components must not hear it, or they would stop in disorder.
            os.killpg(second.pid, signal.SIGINT)
            second.communicate(timeout=TIMEOUT_S)
        assert second.returncode == 0
        assert processes.find_marked(cluster.directory) == []
        assert not cluster.directory.exists()
    finally:
        cluster.stop(grace_s=2.0)


def foreground(cluster: LocalCluster) -> subprocess.Popen[str]:
    """`kgwe local up --foreground`, once it says that it is up."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kgwe.cli", "local", "up", "--foreground", "--name", cluster.name],
        env={**os.environ, "KGWE_STATE_DIR": str(cluster.directory.parent.parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    for line in process.stdout or ():
        if "Ctrl-C" in line:
            return process
    process.wait()
    pytest.fail(f"did not start: {process.communicate()[1]}")
