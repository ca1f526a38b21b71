"""`kgwe scale status` says why a policy has no status, and what to do."""

from __future__ import annotations

import pytest

from kgwe.cli.scaling import scale
from kgwe.kube.api import core
from kgwe.kube.api.kgwe.autoscalingpolicy import AutoscalingPolicy, AutoscalingPolicySpec, AutoscalingPolicyStatus
from kgwe.kube.api.meta import ObjectMeta

NOW_S = 1_800_000_000.0
NOW = "2027-01-15T08:00:00Z"
BEFORE = "2027-01-15T07:00:00Z"


def policy(status: AutoscalingPolicyStatus | None = None) -> AutoscalingPolicy:
    told = status or AutoscalingPolicyStatus()
    return AutoscalingPolicy(
        metadata=ObjectMeta(name="fleet"), spec=AutoscalingPolicySpec(provider="kwok"), status=told
    )


def lease(holder: str, renewed: str | None) -> core.Lease:
    return core.Lease(ObjectMeta(name="kgwe-autoscaler"), core.LeaseSpec(holder, 15, renewTime=renewed))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (None, "fleet: unknown, because no autoscaler runs. Start `kgwe autoscaler`"),
        (lease("", NOW), "fleet: unknown, because no autoscaler runs."),
        (lease("a-1", BEFORE), f"because autoscaler a-1 stopped at {BEFORE}. Read its log and start it again."),
        (lease("a-1", NOW), "because autoscaler a-1 runs but has not reported. If that lasts, a right may be missing:"),
    ],
)
def test_an_unknown_status_has_a_reason_and_a_next_step(found: core.Lease | None, words: str) -> None:
    assert words in scale.explain_silence(policy(), found, NOW_S)


def test_a_policy_with_a_status_is_not_explained() -> None:
    assert scale.is_unreported(policy())
    assert not scale.is_unreported(policy(AutoscalingPolicyStatus(observedGeneration=1)))
