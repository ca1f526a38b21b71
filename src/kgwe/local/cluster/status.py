"""The status of a cluster and its components, for `kgwe local status`."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec

from kgwe.errors import KgweError
from kgwe.local.cluster import cluster_record as state
from kgwe.local.cluster import components
from kgwe.local.host import processes

if TYPE_CHECKING:
    from kgwe.local.cluster.cluster import LocalCluster
    from kgwe.local.cluster.cluster_record import ClusterRecord


class Health(enum.StrEnum):
    READY = "Ready"
    NOT_READY = "NotReady"  # runs, but its health check fails
    RUNNING = "Running"  # runs, and has no health check
    DEAD = "Dead"  # was started, does not run any more
    STOPPED = "Stopped"


class ComponentStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    health: Health
    pid: int | None = None
    url: str | None = None
    version: str | None = None
    rss_mib: float | None = None
    cpu_s: float | None = None
    age_s: float | None = None


class ClusterStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    running: bool
    directory: str
    kubeconfig: str | None = None
    api_url: str | None = None
    components: list[ComponentStatus] = []
    problem: str | None = None


def examine(cluster: LocalCluster) -> ClusterStatus:
    """Check each process and its health; never raise for a broken cluster."""
    directory = str(cluster.directory)
    try:
        known = state.load_record(cluster.directory)
    except KgweError as exc:
        return ClusterStatus(cluster.name, running=False, directory=directory, problem=str(exc))
    if known is None:
        return ClusterStatus(cluster.name, running=False, directory=directory)
    rows = [_examine_component(cluster, known, name) for name in (*components.NAMES, *known.sidecars)]
    return ClusterStatus(
        cluster.name,
        running=all(row.health in {Health.READY, Health.RUNNING} for row in rows),
        directory=directory,
        kubeconfig=str(cluster.kubeconfig),
        api_url=cluster.api_url,
        components=rows,
    )


def _examine_component(cluster: LocalCluster, known: ClusterRecord, name: str) -> ComponentStatus:
    record = known.everyone.get(name)
    version = known.versions.get(name)
    if record is None:
        return ComponentStatus(name, Health.STOPPED, version=version)
    usage = processes.read_usage(record)
    if usage is None:
        return ComponentStatus(name, Health.DEAD, pid=record.pid, version=version)
    health, url = Health.RUNNING, None
    if name in components.NAMES:
        url = components.health_url(name, known.ports)
        with cluster.api() as api:
            health = Health.READY if api.is_healthy(url) else Health.NOT_READY
    return ComponentStatus(
        name,
        health,
        pid=record.pid,
        url=url,
        version=version,
        rss_mib=round(usage.rss_mib, 1),
        cpu_s=round(usage.cpu_s, 2),
        age_s=round(usage.age_s, 1),
    )
