"""Decisions on smaller requests as rows, and which keys a name means."""

from __future__ import annotations

import pytest
from tests.support.fakes.memory_api import MemoryApi

from kgwe import errors
from kgwe.cli import rightsize
from kgwe.kube.api.kgwe.rightsizingdecision import Reverted, RightsizingDecision, RightsizingDecisionSpec, Smaller
from kgwe.kube.api.meta import ObjectMeta
from kgwe.kube.client.client import KubeClient

KEY = "Deployment/chat registry.example/chat:1 1"


def test_a_name_means_the_owner_of_a_key() -> None:
    assert rightsize.is_meant(KEY, "chat")
    assert rightsize.is_meant(KEY, "deployment/chat")
    assert not rightsize.is_meant(KEY, "Job/chat")
    assert not rightsize.is_meant(KEY, "cha")


def test_each_key_has_one_row_with_its_reason() -> None:
    spec = RightsizingDecisionSpec(
        mode="enforce",
        decisions={KEY: Smaller(resource="nvidia.com/mig-1g.10gb", profile="1g.10gb", reason="needs 3289 MiB")},
        reverted={"Job/train i 1": Reverted("OutOfMemory", "pod train-0 ran out of memory")},
        refused={"Job/train i 1": "5 of 24 hours", "Job/new i 1": "5 of 24 hours"},
    )
    rows = rightsize.list_rows(RightsizingDecision(metadata=ObjectMeta(name="default", namespace="team"), spec=spec))
    assert [(row.key, row.state, row.request, row.reason) for row in rows] == [
        (KEY, "smaller", "1×1g.10gb", "needs 3289 MiB"),
        ("Job/new i 1", "kept", "as asked", "5 of 24 hours"),
        ("Job/train i 1", "reverted", "as asked", "OutOfMemory: pod train-0 ran out of memory"),
    ]


async def test_a_namespace_that_did_not_opt_in_has_nothing_to_revert() -> None:
    with pytest.raises(errors.NotFound, match=r"^nothing is right-sized in namespace team-b, .*opts in"):
        await rightsize.get_decision(KubeClient(MemoryApi()), "team-b")
