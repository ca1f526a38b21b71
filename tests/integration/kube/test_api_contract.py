"""A real API server keeps the contract that the one in memory keeps (tests/unit/kube/test_memory_api.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.clusters import clients
from tests.support.contracts.api import CONTRACT

if TYPE_CHECKING:
    from kgwe.local.cluster.cluster import LocalCluster


@pytest.mark.parametrize("clause", CONTRACT, ids=lambda clause: clause.__name__)
async def test_the_real_api(clause, cluster: LocalCluster, namespace: str):
    async with clients.connect(cluster.kubeconfig) as client:
        await clause(client, namespace)
