"""Clusters for tests.

    cluster           shared by modules, one after the other; what a module creates is deleted after it
    pool              clusters of other kinds that modules share, one at a time
    private_cluster   a factory of clusters that a test may break; about 4 s each
    namespace         a fresh namespace in `cluster`

Clusters of test sessions live below one directory and carry the pid of their session in their name: whatever a killed
session left behind is removed by the next one. KGWE_TEST_CLUSTER=name runs the tests against a local cluster that is
already up, which saves its start while writing a test.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest
from tests.support.clusters.pool import ClusterPool
from tests.support.patience import PATIENCE_S

from kgwe.local.cluster import startup
from kgwe.local.cluster.cluster import ClusterOptions, LocalCluster
from kgwe.local.cluster.components import NO_FEATURES, Features
from kgwe.local.host import paths

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path(tempfile.gettempdir()) / f"kgwe-tests-{os.getuid()}"
_counter = itertools.count(1)


class ClusterFactory(Protocol):
    def __call__(self, *, scheduler_config: str | None = None, features: Features = NO_FEATURES) -> LocalCluster: ...


@pytest.fixture(scope="session")
def cluster_root() -> Path:
    """The state directory of test clusters, cleared of dead sessions."""
    for name in paths.cluster_names(_ROOT):
        _, pid, *_ = (*name.split("-"), "")
        if pid.isdigit() and not Path("/proc", pid).exists():
            LocalCluster(name, state_root=_ROOT).stop()
    return _ROOT


@pytest.fixture(scope="session")
def pool(cluster_root: Path) -> Iterator[ClusterPool]:
    made = ClusterPool(cluster_root)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def cluster(pool: ClusterPool, request: pytest.FixtureRequest) -> LocalCluster:
    """A cluster without anything of KGWE's."""
    if name := os.environ.get("KGWE_TEST_CLUSTER"):
        return LocalCluster.attach(name)
    return pool.get("plain", request.module.__name__).cluster


@pytest.fixture
def private_cluster(cluster_root: Path) -> Iterator[ClusterFactory]:
    """Starts clusters that are stopped when the test is over."""
    started: list[LocalCluster] = []

    def start(*, scheduler_config: str | None = None, features: Features = NO_FEATURES) -> LocalCluster:
        name = f"test-{os.getpid()}-{next(_counter)}"
        started.append(LocalCluster(name, state_root=cluster_root))
        return LocalCluster.start(ClusterOptions(name, scheduler_config, features, cluster_root))

    try:
        yield start
    finally:
        for each in started:
            each.stop(grace_s=2.0)


@pytest.fixture
def namespace(cluster: LocalCluster) -> Iterator[str]:
    """A namespace that no other test uses, ready for pods; what is in it goes away afterwards, in its own time."""
    name = f"test-{os.getpid()}-{next(_counter)}"
    with cluster.api() as api:
        api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        startup.await_service_account(api, time.monotonic() + PATIENCE_S, name)
        yield name
        api.request("DELETE", f"/api/v1/namespaces/{name}")
