"""The API server in memory keeps the contract that a real one keeps (tests/integration/kube/test_api_contract.py)."""

from __future__ import annotations

import pytest
from tests.support.contracts.api import CONTRACT
from tests.support.fakes.memory_api import MemoryApi

from kgwe.kube.client.client import KubeClient


@pytest.mark.parametrize("clause", CONTRACT, ids=lambda clause: clause.__name__)
async def test_the_api_in_memory(clause):
    async with KubeClient(MemoryApi()) as client:
        await clause(client, "team")
