"""Followed recommendations: noticed, metered before and after, and reported once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.builders import optimizer_pods
from tests.support.fakes.memory_api import MemoryApi

from kgwe.apps.optimizer.history.writer import StoreThread
from kgwe.apps.optimizer.waste.allocations import Allocation
from kgwe.apps.optimizer.waste.detector import Assessed, Assessment
from kgwe.apps.optimizer.waste.savings import Form, SavingsLedger, name_model, sum_realized
from kgwe.apps.optimizer.waste.verifier import SavingsVerifier, VerifyRules
from kgwe.forecast.waste.alternatives import Action, Alternative
from kgwe.forecast.waste.findings import Finding, Kind
from kgwe.forecast.waste.recommend import Prices, Recommendation
from kgwe.forecast.waste.states import Reason, State
from kgwe.forecast.waste.verdicts import Verdict
from kgwe.forecast.waste.verify import Result
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient
from kgwe.store.history import HistoryStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from kgwe.apps.optimizer.history.gpu_pods import PodFacts
    from kgwe.apps.optimizer.waste.savings import Entry
    from kgwe.kube.client.events import Event
    from kgwe.model.usage.window import PodKey

A100 = "NVIDIA A100-SXM4-80GB"
MIG = Alternative(Action.MIG_PROFILE, 1, A100, mig_profile="1g.10gb", fraction=1 / 7)
LARGER = Alternative(Action.MIG_PROFILE, 1, A100, mig_profile="3g.40gb", fraction=0.5)
SUSPEND = Alternative(Action.SUSPEND, 0, A100, fraction=0.0)
WHOLE = {"nvidia.com/gpu": "1"}
SLICE = {"nvidia.com/mig-1g.10gb": "1"}
ROUND_S = 30.0
RULES = VerifyRules(ROUND_S, after_s=120.0)


class Bed:
    """A verifier with one owner, Job `train`, whose A100 costs 7 dollars per hour and a seventh of it 1."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.api = MemoryApi()
        self.events: list[Event] = []
        self.now_s = 1_800_000_000.0
        self.pods: dict[PodKey, PodFacts] = {}
        self.verdicts: dict[PodKey, Verdict] = {}
        self.allocations: dict[str, Allocation] = {}
        self.store = StoreThread(lambda: HistoryStore.open(str(path)))
        self.verifier = self.start()

    def start(self) -> SavingsVerifier:
        """Start a new process with the same store."""
        self.verifier = SavingsVerifier(
            KubeClient(self.api),
            SavingsLedger(self.store),
            RULES,
            prices=Prices({"A100-SXM4-80GB": 7.0}, {}),
            list_pods=lambda: self.pods,
            find_allocation=self.allocations.get,
            record=self.events.append,
        )
        return self.verifier

    def run(self, limits: dict[str, str], gpus: float = 1.0, *, model: str = A100, p95: float = 0.1) -> PodFacts:
        """Let the owner have one new pod, which holds so many GPUs."""
        pod = optimizer_pods.read("train-0", limits=limits, namespace="team")
        pod = replace(pod, uid=f"{pod.uid}-{self.now_s}", started_s=self.now_s)
        self.pods = {pod.key: pod}
        self.verdicts = {pod.key: Verdict(pod.key, State.BUSY, Reason.MEASURED, devices=1, model=model, p95=p95)}
        self.allocate(gpus, mig_profile=pod.fingerprint.shape.mig_profile, model=model)
        return pod

    def allocate(self, gpus: float, *, mig_profile: str = "", model: str = A100) -> None:
        (pod,) = self.pods.values()
        self.allocations.clear()
        self.allocations[pod.uid] = Allocation(Form(1000, mig_profile, name_model(model)), gpus)

    def stop(self) -> None:
        self.pods, self.verdicts = {}, {}

    async def round(self, alternative: Alternative | None = None, count: int = 1, *, saving: float = 6.0) -> None:
        """Judge so many times. With an alternative, the pod gets this recommendation."""
        for _ in range(count):
            self.now_s += ROUND_S
            findings = tuple(advise(pod, alternative, saving) for pod in self.pods.values() if alternative)
            await self.verifier.verify(Assessment(self.now_s, findings, self.verdicts))

    def entry(self) -> Entry:
        (found,) = self.verifier.entries
        return found

    def outcome(self) -> tuple[Result, Any]:
        return self.entry().result, self.entry().realized_per_hour

    def reasons(self) -> list[str]:
        return [event.reason for event in self.events]


def advise(pod: PodFacts, alternative: Alternative, saving: float) -> Assessed:
    finding = Finding(Kind.UNDERUSED, (pod.key,), "unused", State.BUSY, 90.0)
    return Assessed(pod, finding, Recommendation(pod.key, alternative.action, alternative, 7.0, saving, confidence=0.9))


@pytest.fixture
async def bed(tmp_path: Path) -> AsyncIterator[Bed]:
    made = Bed(tmp_path / "optimizer.db")
    yield made
    await made.store.close()


async def test_the_realised_saving_is_the_metered_difference(bed: Bed):
    bed.run(WHOLE)
    await bed.round(MIG, 4)
    assert not bed.entry().is_followed
    bed.run(SLICE, 1 / 7)
    await bed.round(count=6)
    assert bed.outcome() == (Result.REALIZED, pytest.approx(6.0))
    assert bed.entry().realized == pytest.approx(6.0 * 5 * ROUND_S / 3600)
    assert sum_realized(bed.verifier.entries) == {"team": pytest.approx(6.0)}


async def test_the_result_is_told_once(bed: Bed):
    bed.run(WHOLE)
    await bed.round(MIG, 2)
    bed.run(SLICE, 1 / 7)
    await bed.round(count=3)
    assert bed.events == []
    await bed.round(count=10)
    assert bed.reasons() == ["SavingRealized"]
    assert bed.events[0].note == (
        "Recommendation followed: MIG profile 1g.10gb. Result: Realized, $6.00 per hour saved by metered use,"
        " $6.00 promised."
    )
    assert bed.verifier.describe("team", "train") == [bed.events[0].note]


async def test_a_smaller_saving_than_promised_is_partly_realised(bed: Bed):
    bed.run(WHOLE)
    await bed.round(MIG, 2, saving=6.9)
    bed.run(SLICE, 1 / 7)
    await bed.round(count=6)
    assert bed.outcome() == (Result.PARTLY, pytest.approx(6.0))


async def test_a_pod_is_metered_by_what_it_holds_not_by_what_was_promised(bed: Bed):
    bed.run(WHOLE)
    await bed.round(MIG, 2)
    bed.run(SLICE, 2 / 7)
    await bed.round(count=6)
    assert bed.outcome() == (Result.PARTLY, pytest.approx(5.0))


async def test_earlier_advice_can_still_be_followed_after_the_advice_has_changed(bed: Bed):
    bed.run(WHOLE)
    await bed.round(MIG, 2)
    await bed.round(LARGER, 2, saving=3.5)
    bed.run(SLICE, 1 / 7)
    await bed.round(count=6)
    assert bed.outcome() == (Result.REALIZED, pytest.approx(6.0))
    assert bed.entry().latest.target == "MIG profile 1g.10gb"


async def test_advice_for_the_new_devices_does_not_hide_that_advice_was_followed(bed: Bed):
    bed.run(WHOLE)
    await bed.round(LARGER, 2, saving=3.5)
    bed.run({"nvidia.com/mig-3g.40gb": "1"}, 0.5)
    await bed.round(MIG)
    assert bed.entry().is_followed
    assert bed.entry().latest.target == "MIG profile 3g.40gb"


async def test_a_pod_whose_devices_are_not_known_yet_has_not_followed(bed: Bed):
    bed.run(WHOLE)
    await bed.round(MIG, 2)
    bed.run(SLICE, 1 / 7)
    bed.allocations.clear()
    await bed.round(count=2)
    assert not bed.entry().is_followed
    bed.allocate(1 / 7, mig_profile="1g.10gb")
    await bed.round()
    assert bed.entry().is_followed


async def test_other_devices_than_recommended_are_not_the_recommendation(bed: Bed):
    bed.run(WHOLE)
    await bed.round(MIG, 2)
    bed.run({"nvidia.com/mig-2g.20gb": "1"}, 0.5)
    await bed.round(count=6)
    assert not bed.entry().is_followed


async def test_a_workload_with_its_old_devices_again_is_a_reversal(bed: Bed):
    bed.run(WHOLE)
    await bed.round(MIG, 2)
    bed.run(SLICE, 1 / 7)
    await bed.round(count=6)
    bed.run(WHOLE)
    await bed.round()
    entry = bed.entry()
    assert (entry.result, entry.is_followed) == (Result.REVERSED, False)
    assert entry.realized == pytest.approx(6.0 * 5 * ROUND_S / 3600)
    assert sum_realized(bed.verifier.entries) == {}
    assert bed.reasons() == ["SavingRealized", "SavingReversed"]


async def test_savings_before_a_reversal_are_kept_when_advice_is_given_again(bed: Bed):
    bed.run(WHOLE)
    await bed.round(MIG, 2)
    bed.run(SLICE, 1 / 7)
    await bed.round(count=6)
    bed.run(WHOLE)
    await bed.round()
    await bed.round(MIG, 2)
    assert not bed.entry().is_followed
    assert bed.entry().earlier == pytest.approx(6.0 * 5 * ROUND_S / 3600)


async def test_a_workload_that_is_too_tight_now_is_reported_as_harm(bed: Bed):
    bed.run(WHOLE)
    await bed.round(MIG, 2)
    bed.run(SLICE, 1 / 7, p95=1.0)
    await bed.round(count=3)
    assert bed.entry().result is Result.HARMFUL
    assert [event.type for event in bed.events] == ["Warning"]


async def test_a_suspended_owner_saves_all_of_its_cost(bed: Bed):
    bed.run(WHOLE)
    await bed.round(SUSPEND, 2, saving=7.0)
    path = resources.JOB.path(namespace="team")
    bed.api.call("POST", path, {"metadata": {"name": "train"}, "spec": {"suspend": True}})
    bed.stop()
    await bed.round(count=6)
    assert bed.outcome() == (Result.REALIZED, pytest.approx(7.0))
    assert [event.resource.kind for event in bed.events] == ["Job"]


async def test_a_suspended_owner_is_not_read_in_every_round(bed: Bed):
    bed.run(WHOLE)
    await bed.round(SUSPEND, 2, saving=7.0)
    path = resources.JOB.path(namespace="team")
    bed.api.call("POST", path, {"metadata": {"name": "train"}, "spec": {"suspend": True}})
    bed.stop()
    await bed.round(count=9)
    assert sum(method == "GET" for method, _ in bed.api.requests) == 1


async def test_an_owner_that_is_gone_was_not_suspended(bed: Bed):
    bed.run(WHOLE)
    await bed.round(SUSPEND, 2, saving=7.0)
    bed.stop()
    await bed.round(count=6)
    assert not bed.entry().is_followed
    bed.now_s += 4000
    await bed.round()
    assert bed.verifier.entries == []


async def test_a_pod_that_ran_all_the_time_was_metered_in_a_gap(bed: Bed):
    bed.run(WHOLE)
    await bed.round(MIG, 2)
    bed.run(SLICE, 1 / 7)
    await bed.round(count=2)
    bed.now_s += 3000
    await bed.round()
    assert bed.outcome() == (Result.REALIZED, pytest.approx(6.0))


async def test_a_gap_in_which_pods_were_replaced_makes_the_saving_unknown(bed: Bed):
    bed.run(WHOLE)
    await bed.round(MIG, 2)
    bed.run(SLICE, 1 / 7)
    await bed.round(count=2)
    bed.now_s += 3000
    bed.run(SLICE, 1 / 7)
    await bed.round(count=2)
    assert bed.outcome() == (Result.UNKNOWN, None)
    assert bed.events == []


async def test_a_gpu_without_a_price_has_no_saving(bed: Bed):
    bed.run(WHOLE, model="NVIDIA L40S")
    await bed.round(replace(MIG, model="NVIDIA L40S"), 2)
    bed.run(SLICE, 1 / 7, model="NVIDIA L40S")
    await bed.round(count=6)
    assert bed.outcome() == (Result.UNKNOWN, None)


async def test_a_restart_goes_on_with_what_was_stored(bed: Bed):
    bed.run(WHOLE)
    await bed.round(MIG, 2)
    bed.run(SLICE, 1 / 7)
    await bed.round(count=3)
    bed.start()
    await bed.round(count=4)
    assert bed.outcome() == (Result.REALIZED, pytest.approx(6.0))


async def test_a_document_that_cannot_be_read_is_skipped(bed: Bed):
    await bed.store.call(lambda store: store.put_document("savings", "team/Job/old", {"name": 1}, bed.now_s))
    bed.run(WHOLE)
    await bed.round(MIG)
    assert bed.entry().name == "train"


async def test_advice_that_is_not_repeated_is_forgotten(bed: Bed):
    bed.run(WHOLE)
    await bed.round(MIG, 2)
    bed.now_s += 4000
    await bed.round()
    assert bed.verifier.entries == []
