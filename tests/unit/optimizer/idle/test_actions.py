"""Idle workloads are notified, kept, suspended and restored, each on its own, and unknown never acts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.support.builders.assessments import assessment
from tests.support.fakes.idle_bed import JOB, START_S, IdleBed

from kgwe import errors
from kgwe.cluster.suspension import idle_rows, marks
from kgwe.cluster.suspension.suspender import Result, Suspender
from kgwe.forecast.waste.states import State
from kgwe.kube.api import resources, timestamp
from kgwe.kube.api.meta import ObjectMeta

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

# Rounds of 30 s. The first one has no round before it, so it counts nothing.
TO_NOTICE = 3
GRACE = 2


@pytest.fixture
async def bed(tmp_path: Path) -> AsyncIterator[IdleBed]:
    made = IdleBed(tmp_path / "optimizer.db")
    yield made
    await made.close()


async def restore(bed: IdleBed, name: str = "notebook") -> None:
    """What `kgwe idle restore` does."""
    outcome = await Suspender(bed.client, "kgwe-idle").restore(JOB, "team", name)
    assert outcome.result is Result.RESTORED


async def test_an_idle_workload_is_notified_once_with_what_will_happen(bed: IdleBed):
    bed.add()
    await bed.round(count=TO_NOTICE - 1)
    assert bed.counts == []
    await bed.round()
    assert (bed.phase(), bed.counts) == ("grace", ["notify"])
    (event,), (note,) = bed.events, bed.notified
    assert event.reason == "IdleGPU"
    assert "will be suspended in 1m" in event.note
    assert "kgwe idle keep notebook -n team" in note.text
    notice = marks.read_notice(bed.notes())
    assert notice == marks.Notice(bed.now_s - 60, bed.now_s + 60, 3.0)


async def test_notified_kept_notified_again_suspended_and_restored(bed: IdleBed):
    bed.add()
    await bed.round(count=TO_NOTICE)
    await Suspender(bed.client, "kgwe-idle").keep(JOB, "team", "notebook", bed.now_s + 100)
    await bed.round(count=3)
    assert (bed.phase(), bed.is_suspended()) == ("snoozed", False)
    await bed.round()  # the wish has ended: idle time counts from here
    assert (bed.phase(), bed.counts) == ("watching", ["notify"])
    await bed.round(count=2)
    assert (bed.phase(), bed.counts) == ("grace", ["notify", "notify"])
    await bed.round(count=GRACE)
    assert bed.is_suspended()
    assert (bed.entry().owner_kind, bed.entry().suspended_s) == ("Job", bed.now_s)
    bed.end_pods()
    await bed.round(count=2)
    assert bed.phase() == "suspended"
    bed.now_s += 3600 - 90
    await restore(bed)
    bed.add_pod("notebook", bed.entry().owner_uid)
    await bed.round(State.UNKNOWN)
    assert (bed.phase(), bed.counts[-1]) == ("restored", "restore")
    assert (bed.entry().saved_dollars, bed.entry().suspensions) == (3.0, 1)
    assert bed.entry().record.reversals == 1


async def test_a_restored_workload_is_left_alone_for_twice_as_long(bed: IdleBed):
    bed.add()
    await bed.round(count=TO_NOTICE + GRACE)
    bed.end_pods()
    await bed.round()
    await restore(bed)
    bed.add_pod("notebook", bed.entry().owner_uid)
    await bed.round(count=4)
    assert bed.counts == ["notify", "suspend", "restore"]
    await bed.round(count=2)
    assert bed.counts[-1] == "notify"


async def test_a_workload_that_is_restored_at_once_is_not_suspended_again(bed: IdleBed):
    bed.add()
    await bed.round(count=TO_NOTICE + GRACE)
    assert bed.is_suspended()
    await restore(bed)  # before the next round
    await bed.round(count=4)
    assert (bed.is_suspended(), bed.counts) == (False, ["notify", "suspend", "restore"])


async def test_a_restored_workload_that_waits_for_its_pods_is_not_forgotten(bed: IdleBed):
    bed.add()
    await bed.round(count=TO_NOTICE + GRACE)
    bed.end_pods()
    await bed.round()
    await restore(bed)
    await bed.round(count=5)
    bed.add_pod("notebook", bed.entry().owner_uid)
    await bed.round(State.BUSY)
    assert (bed.entry().suspensions, bed.entry().record.reversals) == (1, 1)
    assert bed.counts.count("restore") == 1


async def test_unknown_never_acts(bed: IdleBed):
    bed.add()
    await bed.round(State.UNKNOWN, count=20)
    assert (bed.counts, bed.is_suspended()) == ([], False)
    await bed.round(count=TO_NOTICE)
    await bed.round(State.UNKNOWN, count=20)
    assert (bed.phase(), bed.counts, bed.is_suspended()) == ("grace", ["notify"], False)


async def test_a_workload_that_works_again_loses_its_notice(bed: IdleBed):
    bed.add()
    await bed.round(count=TO_NOTICE)
    await bed.round(State.BUSY)
    assert (bed.phase(), marks.read_notice(bed.notes())) == ("watching", None)


async def test_a_wish_that_ended_leaves_no_old_notice(bed: IdleBed):
    bed.add()
    await bed.round(count=TO_NOTICE)
    await Suspender(bed.client, "kgwe-idle").keep(JOB, "team", "notebook", bed.now_s + 40)
    await bed.round(count=2)
    assert (bed.phase(), marks.read_notice(bed.notes())) == ("watching", None)
    rows, _ = await idle_rows.read_rows(bed.client, "team", bed.now_s)
    assert rows == []


async def test_a_namespace_that_has_not_opted_in_is_left_alone(bed: IdleBed):
    bed.namespaces.clear()
    bed.add()
    await bed.round(count=20)
    assert (bed.counts, bed.events, bed.api.requests) == ([], [], [])


async def test_a_namespace_with_a_bad_value_is_left_alone(bed: IdleBed):
    annotations = {"kgwe.nvidia.io/idle-action": "suspend", "kgwe.nvidia.io/idle-grace": "soon"}
    bed.namespaces["team"] = ObjectMeta(name="team", annotations=annotations)
    bed.add()
    await bed.round(count=20)
    assert bed.counts == []


async def test_a_namespace_that_wants_notices_only_gets_one(bed: IdleBed):
    bed.namespaces["team"] = ObjectMeta(name="team", annotations={"kgwe.nvidia.io/idle-action": "notify"})
    bed.add()
    await bed.round(count=20)
    assert (bed.counts, bed.is_suspended()) == (["notify"], False)
    assert "will be suspended" not in bed.events[0].note


async def test_an_owner_that_refuses_optimization_is_left_alone(bed: IdleBed):
    bed.add()
    await bed.client.patch(
        JOB.resource, "notebook", {"metadata": {"annotations": {"kgwe.nvidia.io/optimize": "false"}}}, "team"
    )
    await bed.round(count=20)
    assert (bed.counts, bed.is_suspended()) == ([], False)


async def test_an_owner_that_was_kept_before_any_notice_gets_none(bed: IdleBed):
    bed.add()
    until = timestamp.format_time(START_S + 3600)
    await bed.client.patch(JOB.resource, "notebook", {"metadata": {"annotations": {marks.KEEP_UNTIL: until}}}, "team")
    await bed.round(count=20)
    assert (bed.counts, bed.phase()) == ([], "snoozed")


async def test_a_jump_of_the_clock_shortens_no_grace(bed: IdleBed):
    bed.add()
    await bed.round(count=TO_NOTICE)
    await bed.round(elapsed_s=86400.0)
    assert (bed.phase(), bed.is_suspended()) == ("grace", False)


# --- faults --------------------------------------------------------------------------------------------------


async def test_without_the_right_to_suspend_the_workload_runs_on(bed: IdleBed):
    bed.add()
    await bed.round(count=TO_NOTICE + GRACE - 1)
    bed.api.refuse_next("PATCH", JOB.resource, 403, "may not patch jobs", "Forbidden")
    await bed.round()
    assert (bed.phase(), bed.is_suspended(), bed.entry().suspended_s) == ("watching", False, None)
    assert bed.counts == ["notify"]
    assert marks.read_notice(bed.notes()) is None


async def test_without_the_right_to_write_the_notice_the_owner_is_still_notified(bed: IdleBed):
    bed.add()
    await bed.round(count=TO_NOTICE - 1)
    bed.api.refuse_next("PATCH", JOB.resource, 403, "may not patch jobs", "Forbidden")
    await bed.round()
    assert (bed.counts, len(bed.notified), bed.phase()) == (["notify"], 1, "grace")


async def test_a_server_that_does_not_answer_delays_the_suspension(bed: IdleBed):
    bed.add()
    await bed.round(count=TO_NOTICE + GRACE - 1)
    bed.api.refuse_next("PATCH", JOB.resource, 503, "try again")
    await bed.round()
    assert not bed.is_suspended()
    await bed.round()
    assert bed.is_suspended()
    assert bed.counts == ["notify", "suspend"]


async def test_an_owner_that_is_gone_is_forgotten(bed: IdleBed):
    bed.add()
    await bed.round(count=TO_NOTICE + GRACE)
    bed.end_pods()
    bed.api.call("DELETE", JOB.resource.path(namespace="team", name="notebook"))
    await bed.round()
    assert bed.ledger.entries == {}
    await bed.restart()
    await bed.round()
    assert bed.ledger.entries == {}


async def test_workloads_of_a_namespace_that_no_longer_takes_part_are_forgotten_with_their_pods(bed: IdleBed):
    bed.add()
    await bed.round(count=2)
    bed.namespaces.clear()
    bed.end_pods()
    await bed.round()
    assert bed.ledger.entries == {}


async def test_a_pod_without_an_owner_is_not_threatened(bed: IdleBed):
    bed.add_pod("bare", "")
    await bed.round(count=20)
    assert bed.counts.count("suspend") == 0
    assert all("will be suspended" not in event.note for event in bed.events)


async def test_one_broken_workload_does_not_stop_the_other(bed: IdleBed):
    broken = bed.add("a")
    bed.add("b")
    bed.api.call("DELETE", resources.POD.path(namespace="team", name=broken.key.name))
    bed.api.call("DELETE", JOB.resource.path(namespace="team", name="a"))
    await bed.round(count=TO_NOTICE + GRACE + 5)
    assert bed.is_suspended("b")


async def test_an_exception_with_one_workload_does_not_stop_the_other(bed: IdleBed, monkeypatch: pytest.MonkeyPatch):
    bed.add("a")
    bed.add("b")
    act = bed.actions._act_on

    async def crash(case) -> None:
        if case.entry.name == "a":
            raise ZeroDivisionError
        await act(case)

    monkeypatch.setattr(bed.actions, "_act_on", crash)
    await bed.round(count=TO_NOTICE + GRACE)
    assert bed.is_suspended("b")


# --- the store -----------------------------------------------------------------------------------------------


async def test_without_its_memory_the_process_does_not_act(bed: IdleBed):
    bed.add()
    bed.is_store_down = True
    for _ in range(20):
        with pytest.raises(errors.Transient):
            await bed.round()
    assert bed.counts == []
    bed.is_store_down = False
    await bed.round(count=TO_NOTICE)
    assert bed.counts == ["notify"]


async def test_a_store_that_fails_later_loses_nothing(bed: IdleBed):
    bed.add()
    await bed.round(count=TO_NOTICE)
    await bed.break_store()
    for _ in range(GRACE):
        with pytest.raises(errors.Transient):
            await bed.round()
    assert bed.is_suspended()
    bed.is_store_down = False
    await bed.round()
    await bed.restart()
    await bed.round()
    assert (bed.phase(), bed.entry().suspensions) == ("suspended", 1)
    assert bed.counts == ["notify", "suspend"]


async def test_a_restart_goes_on_where_it_was(bed: IdleBed):
    bed.add()
    for _ in range(TO_NOTICE + GRACE + 4):
        await bed.round()
        await bed.restart()
    # The first round after a restart counts no time.
    assert bed.counts == []
    await bed.round(count=TO_NOTICE)
    await bed.restart()
    await bed.round(count=1 + GRACE)
    assert bed.counts == ["notify", "suspend"]


async def test_a_suspension_that_was_not_written_down_is_known_after_a_restart(bed: IdleBed):
    bed.add()
    await bed.round(count=TO_NOTICE)
    await bed.break_store()
    for _ in range(GRACE):
        with pytest.raises(errors.Transient):
            await bed.round()
    suspended_s = bed.now_s
    bed.end_pods()
    bed.is_store_down = False
    await bed.restart()
    await bed.round()
    assert (bed.phase(), bed.entry().suspensions, bed.entry().suspended_s) == ("suspended", 1, suspended_s)
    await restore(bed)
    bed.add_pod("notebook", bed.entry().owner_uid)
    await bed.round(State.UNKNOWN)
    assert bed.entry().record.reversals == 1


@pytest.mark.parametrize("rounds", [0, 1, GRACE])
async def test_a_workload_that_its_user_suspends_is_no_suspension_of_ours(bed: IdleBed, rounds: int):
    bed.add()
    await bed.round(count=TO_NOTICE)
    await bed.client.patch(JOB.resource, "notebook", {"spec": {"suspend": True}}, "team")
    await bed.round(count=rounds)  # its pods take a while to end
    bed.end_pods()
    await bed.round(count=2)
    assert "suspend" not in bed.counts
    assert all(entry.suspended_s is None for entry in bed.ledger.entries.values())


async def test_a_pod_that_claims_an_owner_does_not_get_its_busy_pods_suspended(bed: IdleBed):
    """The forged pod is in a group of its own by its label; its owner references lead to a busy Job."""
    busy = bed.add("train")
    uid = bed.job("train")["metadata"]["uid"]
    forged = replace(bed.add_pod("train-9", uid), owner_kind="GPUWorkload", owner_name="x", run_uid=busy.run_uid)
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": uid, "controller": True}
    patch = {"metadata": {"labels": {"job": "train"}, "ownerReferences": [reference]}}
    bed.api.call("PATCH", resources.POD.path(namespace="team", name="train-9-0"), patch)
    bed.pods[forged.key] = forged
    for _ in range(TO_NOTICE + GRACE + 2):
        bed.now_s += 30
        states = [(busy, State.BUSY), (forged, State.IDLE)]
        await bed.actions.act(assessment(states, bed.now_s), bed.now_s, bed.now_s - START_S)
    assert not bed.is_suspended("train")
    assert "suspend" not in bed.counts
