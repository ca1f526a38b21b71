"""A cluster with a few nodes of the mixed fleet, and machines whose agents are real processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.clusters import clients
from tests.support.clusters.agents import MIXED, NODES, AgentBed

from kgwe.local.fleet import agents, apply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from kgwe.local.cluster.cluster import LocalCluster


@pytest.fixture
async def bed(cluster: LocalCluster, tmp_path: Path) -> AsyncIterator[AgentBed]:
    async with clients.connect(cluster.kubeconfig) as client:
        await agents.install(client)
        await apply.apply_fleet(client, MIXED, NODES)
        made = AgentBed(cluster, client, agents.write_kubeconfig(cluster), tmp_path)
        try:
            yield made
        finally:
            for machine in made.machines:
                machine.__exit__()
