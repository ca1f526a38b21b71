"""Every doubt keeps the request; harm takes a smaller one back, and an error budget stops all of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kgwe.forecast.memory import MemoryNeed
from kgwe.forecast.rightsizing import decide, faults, ledger
from kgwe.forecast.rightsizing.decide import Offer, Quota, Rules, Subject
from kgwe.forecast.rightsizing.faults import Outcome
from kgwe.forecast.rightsizing.ledger import Decided
from kgwe.forecast.rightsizing.policy import DIGITS, LETTERS, Mode, RightsizingPolicy, read_policy
from kgwe.model.devices.preferences import read_preferences

POLICY = RightsizingPolicy(mode=Mode.ENFORCE)
RULES = Rules()
OFFER = Offer({"nvidia.com/mig-3g.40gb": 2, "nvidia.com/mig-1g.10gb": 7, "nvidia.com/mig-2g.20gb": 0})
NEED = MemoryNeed(is_known=True, recommended_mib=6000.0, confidence=0.9)
SUBJECT = Subject("Deployment/chat i 1", 1, NEED, activity_p95=0.05, hours=48, gpu_memory_mib=81559.0)
GPU_QUOTA = Quota("team", {"requests.nvidia.com/gpu": 8}, {"requests.nvidia.com/gpu": 4})
SLICE_QUOTA = Quota("team", {"requests.nvidia.com/gpu": 8, "requests.nvidia.com/mig-1g.10gb": 2}, {})


def choose(subject: Subject, offer: Offer = OFFER, quotas: tuple[Quota, ...] = (), **policy: Any) -> str:
    """The smallest choice, or why there is none."""
    choices = decide.list_choices(offer, subject.gpu_memory_mib)
    found = decide.choose(subject, replace(POLICY, **policy), choices, quotas, RULES)
    return found if isinstance(found, str) else found[0].describe()


def test_the_smallest_slice_that_is_large_enough_is_chosen() -> None:
    assert choose(SUBJECT) == "1×1g.10gb"
    assert choose(replace(SUBJECT, memory=replace(NEED, recommended_mib=15000.0))) == "1×3g.40gb"
    assert choose(replace(SUBJECT, activity_p95=0.25)) == "1×3g.40gb"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"is_ambiguous": True}, "different commands"),
        ({"gpus": 2}, "several GPUs"),
        ({"is_managed": True}, "Kueue or Volcano"),
        ({"is_preallocator": True}, "in advance"),
        ({"hours": 5}, "5 of 24 hours"),
        ({"activity_p95": None}, "activity is not measured"),
        ({"activity_p95": 0.9}, "no slice that nodes offer"),
        ({"memory": MemoryNeed(is_known=False, reasons=("unknown need",))}, "unknown need"),
        ({"memory": replace(NEED, confidence=0.1)}, "confidence"),
        ({"memory": replace(NEED, recommended_mib=60000.0)}, "no slice that nodes offer"),
        ({"allowed": read_preferences({"kgwe.nvidia.io/optimize": "false"})}, "optimize"),
        ({"allowed": read_preferences({"kgwe.nvidia.io/mig-profile": "7g.80gb"})}, "mig-profile"),
    ],
)
def test_a_doubt_keeps_the_request(change: dict[str, Any], why: str) -> None:
    assert why in choose(replace(SUBJECT, **change))


def test_managed_workloads_need_the_opt_in_of_their_namespace() -> None:
    assert choose(replace(SUBJECT, is_managed=True), include_managed=True) == "1×1g.10gb"


def test_shares_are_only_for_owners_who_ask_for_them() -> None:
    offer = Offer({"nvidia.com/gpu.shared": 8}, shares=(4,))
    assert "no slice" in choose(SUBJECT, offer)
    assert choose(replace(SUBJECT, allowed=read_preferences({"kgwe.nvidia.io/sharing-mode": "mps"})), offer) == "0.25"


def test_a_quota_holds_afterwards() -> None:
    assert "counts nvidia.com/gpu and not nvidia.com/mig-1g.10gb" in choose(SUBJECT, quotas=(GPU_QUOTA,))
    assert choose(SUBJECT, quotas=(SLICE_QUOTA,)) == "1×1g.10gb"
    assert "room for 2 more" in choose(replace(SUBJECT, pods=3), quotas=(SLICE_QUOTA,))


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (Outcome("p"), ""),
        (Outcome("p", ran_out_of_memory=True), faults.OUT_OF_MEMORY),
        (Outcome("p", restarts=3), faults.RESTART_LOOP),
        (Outcome("p", lasted_s=119.0), ""),
        (Outcome("p", lasted_s=121.0), faults.SLOW_DOWN),
        (Outcome("p", rate=8.1), ""),
        (Outcome("p", rate=7.9), faults.RATE_FELL),
    ],
)
def test_harm_is_found(outcome: Outcome, reason: str) -> None:
    found = faults.find_fault([Outcome("other"), outcome], run_p95_s=100.0, rate=10.0)
    assert (found.reason if found else "") == reason


def test_rates_and_percentiles_that_say_nothing_are_unknown() -> None:
    assert [faults.read_rate(text) for text in ("3.5", "nan", "-1", "x", None, "")] == [
        3.5,
        None,
        None,
        None,
        None,
        None,
    ]
    assert faults.find_p95([1.0, 2.0]) is None
    assert faults.find_p95([float(number) for number in range(1, 101)]) == 95.0


def decided() -> Decided:
    (found, *_) = decide.list_choices(OFFER, None)
    return Decided(found, "f")


def advance(before: ledger.Ledger, found: dict[str, Any], *hurt: str, **policy: Any) -> ledger.Ledger:
    harm = dict.fromkeys(hurt, faults.Fault(faults.OUT_OF_MEMORY, "pod p ran out of memory"))
    return ledger.advance(before, replace(POLICY, **policy), found, harm, 1000.0)


def test_a_key_that_did_harm_keeps_its_request_for_good() -> None:
    first = advance(ledger.EMPTY, {"a": decided(), "b": "too little history"})
    assert (list(first.decided), first.refused) == (["a"], {"b": "too little history"})
    second = advance(first, {"a": decided()}, "a")
    third = advance(second, {"a": decided()})
    assert not third.decided
    assert third.reverted["a"].reason == faults.OUT_OF_MEMORY
    assert [each.what for each in third.events] == ["Decided", "Mode", "Reverted"]


def test_an_unchanged_decision_is_no_event_and_no_write() -> None:
    first = advance(ledger.EMPTY, {"a": decided()})
    later = replace(decided(), choice=replace(decided().choice, reason="an hour later"))
    assert advance(first, {"a": later}) == first


def test_the_error_budget_stops_the_namespace() -> None:
    before = advance(ledger.EMPTY, {key: decided() for key in "abc"}, error_budget=2)
    once = advance(before, {}, "a", error_budget=2)
    assert (list(once.decided), once.problem) == (["b", "c"], "")
    twice = advance(once, {}, "b", error_budget=2)
    assert not twice.decided
    assert "used up the error budget of 2" in twice.problem


def test_off_removes_all_decisions_and_keeps_what_did_harm() -> None:
    first = advance(advance(ledger.EMPTY, {"a": decided(), "b": decided()}), {}, "a")
    stopped = advance(first, {}, mode=Mode.OFF)
    assert not stopped.decided
    assert list(stopped.reverted) == ["a"]


def test_a_namespace_opts_in_by_annotation_or_label() -> None:
    policy, problems = read_policy(
        {"kgwe.nvidia.io/rightsizing": "enforce"},
        {"kgwe.nvidia.io/rightsizing": "canary", "kgwe.nvidia.io/rightsizing-canary": "10"},
    )
    assert (policy.mode, policy.choose_characters(LETTERS), policy.choose_characters(DIGITS)) == (
        Mode.CANARY, "bcd", "01",
    )  # fmt: skip
    assert not problems
    assert read_policy({}, {})[0].mode is Mode.OFF


@pytest.mark.parametrize(
    "said",
    [
        {"kgwe.nvidia.io/rightsizing": "force"},
        {"kgwe.nvidia.io/rightsizing": "enforce", "kgwe.nvidia.io/rightsizing-canary": "101"},
        {"kgwe.nvidia.io/rightsizing": "enforce", "kgwe.nvidia.io/rightsizing-managed": "perhaps"},
        {"kgwe.nvidia.io/rightsizing": "enforce", "kgwe.nvidia.io/rightsizing-error-budget": "-1"},
    ],
)
def test_a_value_that_cannot_be_read_switches_it_off(said: dict[str, str]) -> None:
    policy, problems = read_policy({}, said)
    assert policy.mode is Mode.OFF
    assert len(problems) == 1
