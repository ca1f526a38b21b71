"""All checks of an installation, one after the other. A check that fails leaves the others alone."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.install.doctor import cluster_checks, findings, node_checks, permissions, process_checks
from kgwe.install.doctor.findings import Cluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from kgwe.install.doctor.findings import Finding
    from kgwe.kube.client.client import KubeClient
    from kgwe.kube.client.manifests import Document

NAMES: Final = (
    "kubernetes", "kinds", "namespace", "permissions", "policies", "certificates", "processes", "leader",
    "kube-scheduler", "store", "prices", "nodes", "agents", "dcgm",
)  # fmt: skip


class Doctor:
    """Checks one cluster, and changes nothing."""

    def __init__(
        self,
        client: KubeClient,
        rights: Sequence[Document],
        *,
        namespace: str = "kgwe-system",
        node_namespace: str = "kgwe-node",
        lease_namespace: str = "",
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
    ) -> None:
        """`rights`: roles and bindings that the processes of this release need."""
        self._cluster = Cluster(client, namespace, node_namespace)
        self._rights = rights
        self._lease_namespace = lease_namespace or namespace
        self._now = now

    async def examine(self, only: Collection[str] = ()) -> list[Finding]:
        """Run the checks, or those that are named."""
        if unknown := set(only) - set(NAMES):
            raise errors.Permanent(f"unknown check {min(unknown)!r}; checks: {', '.join(NAMES)}")
        found: list[Finding] = []
        for name, check in self._list_checks().items():
            if only and name not in only:
                continue
            try:
                found += await check()
            except errors.Unreachable:
                raise
            except errors.KgweError as exc:
                found.append(findings.describe_error(name, exc))
        return found

    def _list_checks(self) -> dict[str, Callable[[], Awaitable[list[Finding]]]]:
        cluster = self._cluster
        return {
            "kubernetes": lambda: cluster_checks.check_version(cluster),
            "kinds": lambda: cluster_checks.check_kinds(cluster),
            "namespace": lambda: cluster_checks.check_namespace(cluster),
            "permissions": lambda: permissions.check_permissions(cluster, self._rights),
            "policies": lambda: cluster_checks.check_policies(cluster),
            "certificates": lambda: cluster_checks.check_certificates(cluster, self._now()),
            "processes": lambda: process_checks.check_processes(cluster),
            "leader": lambda: process_checks.check_leader(cluster, self._now(), self._lease_namespace),
            "kube-scheduler": lambda: process_checks.check_calls(cluster),
            "store": lambda: process_checks.check_stores(cluster),
            "prices": lambda: process_checks.check_prices(cluster),
            "nodes": lambda: node_checks.check_nodes(cluster),
            "agents": lambda: node_checks.check_agents(cluster, self._now()),
            "dcgm": lambda: node_checks.check_exporters(cluster),
        }
