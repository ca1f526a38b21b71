"""A cluster of its own with a few nodes of the mixed fleet, and machines whose agents are real processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.clusters.agents import MIXED, NODES, AgentBed

from kgwe.kube.client.client import KubeClient
from kgwe.local.fleet import agents, apply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.clusters.pool import ClusterPool

    from kgwe.local.cluster.cluster import LocalCluster


@pytest.fixture(scope="module")
def agent_cluster(pool: ClusterPool, request: pytest.FixtureRequest) -> LocalCluster:
    """A cluster that the tests of a module may break."""
    return pool.get("agent", request.module.__name__).cluster


@pytest.fixture
async def bed(agent_cluster: LocalCluster, tmp_path: Path) -> AsyncIterator[AgentBed]:
    async with KubeClient.connect(agent_cluster.kubeconfig) as client:
        await agents.install(client)
        await apply.apply_fleet(client, MIXED, NODES)
        made = AgentBed(agent_cluster, client, agents.write_kubeconfig(agent_cluster), tmp_path)
        try:
            yield made
        finally:
            for machine in made.machines:
                machine.__exit__()
