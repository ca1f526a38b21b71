"""Clouds from settings: a section makes a provider; a wrong one is refused with its key."""

from __future__ import annotations

import pytest
from tests.support.fakes.memory_api import MemoryApi

from kgwe import errors
from kgwe.apps.autoscaler import settings
from kgwe.apps.autoscaler.providers import make_providers
from kgwe.cloud.provider import GangSupport
from kgwe.kube.client.client import KubeClient


def load(tmp_path, text):
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    return settings.load(path)


async def test_without_sections_there_is_only_the_simulated_cloud(tmp_path):
    assert set(make_providers(KubeClient(MemoryApi()), load(tmp_path, "cluster: c"))) == {"kwok"}


async def test_each_section_makes_its_provider(tmp_path):
    text = """
cluster: prod
aws: {region: us-east-1, subnets: {us-east-1a: subnet-1}, endpointUrl: "http://127.0.0.1:9"}
azure:
  subscription: s
  resourceGroup: g
  endpoint: http://127.0.0.1:9
  scaleSets: {h100: {name: gpu, capacityType: spot}}
karpenter: {}
"""
    found = make_providers(KubeClient(MemoryApi()), load(tmp_path, text))
    gangs = {name: provider.traits.gangs for name, provider in found.items() if name != "kwok"}
    assert gangs == {
        "aws": GangSupport.ATOMIC,
        "azure": GangSupport.BEST_EFFORT,
        "custom": GangSupport.BEST_EFFORT,
    }
    for provider in found.values():
        await provider.close()


@pytest.mark.parametrize(
    "text", ["aws: {}", "aws: {region: r, regoin: x}", "gcp: {project: p, groups: {a: {}}}", "azure: {subscription: s}"]
)
def test_a_wrong_section_is_refused(tmp_path, text):
    with pytest.raises(errors.Permanent, match="settings"):
        load(tmp_path, text)
