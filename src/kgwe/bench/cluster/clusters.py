"""Private clusters of benchmarks, created for one run and deleted afterwards."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kgwe.local.cluster.cluster import ClusterOptions, LocalCluster
from kgwe.local.host import paths

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kgwe.local.host.progress import Progress
    from kgwe.local.toolchain.binaries import Binaries

# Names contain the pid of the benchmark, so that clusters of a killed benchmark are recognized.
_PREFIX = "bench"


def name_of(purpose: str, *, keep: bool = False) -> str:
    """Return the name of a cluster. A cluster to keep has another prefix, which `sweep` ignores."""
    return f"{_PREFIX}-{'kept-' if keep else ''}{os.getpid()}-{purpose}"


@contextmanager
def private_cluster(
    name: str, found: Binaries, progress: Progress, *, scheduler_config: str | None = None, keep: bool = False
) -> Iterator[LocalCluster]:
    """Yield a new cluster and delete it afterwards, also after an error."""
    cluster = LocalCluster(name)
    try:
        yield LocalCluster.start(ClusterOptions(name, scheduler_config), binaries=found, progress=progress)
    finally:
        if not keep:
            cluster.stop(grace_s=5.0)
    if keep:
        progress.note(f"Cluster {name!r} keeps running. To delete it: `kgwe local down --name {name}`.")


def sweep() -> None:
    """Delete clusters that a killed benchmark left behind."""
    for name in paths.cluster_names():
        prefix, pid, *_ = (*name.split("-"), "")
        if prefix == _PREFIX and pid.isdigit() and not Path("/proc", pid).exists():
            LocalCluster(name).stop()


def read_version(found: Binaries) -> str:
    """Return the Kubernetes version of the cluster."""
    return found.found["kube-apiserver"].version
