"""Clusters of benchmarks: private, fresh, and gone afterwards."""

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

# Their names carry the pid of who started them; whatever a killed benchmark left behind is recognised by it.
_PREFIX = "bench"


def name_of(purpose: str, *, keep: bool = False) -> str:
    """One to be kept is named so that no sweep takes it."""
    return f"{_PREFIX}-{'kept-' if keep else ''}{os.getpid()}-{purpose}"


@contextmanager
def private(
    name: str, found: Binaries, progress: Progress, *, scheduler_config: str | None = None, keep: bool = False
) -> Iterator[LocalCluster]:
    """A fresh cluster that is gone afterwards, whatever happens."""
    cluster = LocalCluster(name)
    try:
        yield LocalCluster.start(ClusterOptions(name, scheduler_config), binaries=found, progress=progress)
    finally:
        if not keep:
            cluster.stop(grace_s=5.0)
    if keep:
        progress.note(f"Cluster {name!r} is kept. `kgwe local down --name {name}` removes it.")


def sweep() -> None:
    """Remove what a benchmark left behind that was killed before it could clean up."""
    for name in paths.cluster_names():
        prefix, pid, *_ = (*name.split("-"), "")
        if prefix == _PREFIX and pid.isdigit() and not Path("/proc", pid).exists():
            LocalCluster(name).stop()


def version(found: Binaries) -> str:
    """Of Kubernetes."""
    return found.found["kube-apiserver"].version
