"""Statuses: one patch per change, nothing when nothing changed."""

from dataclasses import replace

import msgspec
import pytest
from tests.support.builders import racks

from kgwe.apps.scheduler.workloads import workload_status as phases
from kgwe.cluster.suspension import marks
from kgwe.cluster.workload import metadata_keys
from kgwe.cluster.workload.runs import Run
from kgwe.cluster.workload.workload import Details, Status, from_kgwe, from_warp, status_patch
from kgwe.kube.api import resources
from kgwe.kube.api.kgwe.gpu_requirements import GPURequirements, MIGRequest
from kgwe.kube.api.kgwe.gpuworkload import GPUWorkload, GPUWorkloadSpec
from kgwe.kube.api.kgwe.warp import WarpGPUWorkload, WarpGPUWorkloadSpec
from kgwe.kube.api.meta import Condition, ObjectMeta
from kgwe.kube.translate.nodes import Cards
from kgwe.model.units import amounts
from kgwe.placement.fleet.node import Gpus, Request
from kgwe.placement.gang.request import GangRequest
from kgwe.placement.planning.plan import Seat
from kgwe.placement.refusal import Reason, Refusal


def workload(**status):
    meta = ObjectMeta(name="w", namespace="ns", uid="u", generation=2)
    made = from_warp(WarpGPUWorkload(metadata=meta, spec=WarpGPUWorkloadSpec(modelName="m", gpuCount=1)))
    return replace(made, status=Status(**status))


def test_an_equal_status_is_not_written():
    made = workload(phase="Running", node="n1")
    assert status_patch(made, made.status) is None


def test_only_what_changed_is_written_and_under_the_kinds_own_name():
    made = workload(phase="Pending", message="waits", observed_generation=1)
    patch = status_patch(made, replace(made.status, phase="Scheduled", node="n1", message=""))
    assert patch == {"status": {"phase": "Scheduled", "assignedNode": "n1", "message": None}}


def test_a_counter_that_falls_to_zero_is_taken_away():
    made = workload(retry_count=2)
    assert status_patch(made, replace(made.status, retry_count=0)) == {"status": {"retryCount": None}}


def conditions(status):
    return {c.type: (c.status, c.reason, c.lastTransitionTime) for c in status.conditions}


def test_a_condition_keeps_its_time_until_its_status_changes():
    first = phases.pending_status(workload(), "A", "", "t1")
    second = phases.pending_status(replace(workload(), status=first), "B", "", "t2")
    third = phases.scheduled_status(replace(workload(), status=second), PLACED, "t3")
    assert conditions(first) == {"Scheduled": ("False", "A", "t1")}
    assert conditions(second) == {"Scheduled": ("False", "B", "t1")}
    assert conditions(third) == {"Scheduled": ("True", "Placed", "t3")}


def test_a_place_at_which_no_pod_starts_is_reserved():
    made = phases.scheduled_status(workload(), PLACED, "t1", "kube-scheduler rejected node n1: Too many pods")
    assert conditions(made) == {"Scheduled": ("True", "Reserved", "t1")}
    assert made.message == "kube-scheduler rejected node n1: Too many pods"


CARDS = Cards({0: "GPU-a", 1: "GPU-b"}, {(3, 0): ("GPU-d", "MIG-x", "1g.10gb")})


def run(*seats, details=None):
    meta = ObjectMeta(name="w-job-1", annotations={metadata_keys.GENERATION_ANNOTATION: "2"})
    return Run(resources.JOB, meta, pods=len(seats), seats=seats, wanted={}, details=details)


def placement(made, of):
    return phases.Placement(made, of, lambda _node: CARDS)


PLACED = placement(run(Seat("n1")), workload())
COMPLETE = Condition("Complete", "True", "CompletionsReached", "", "t9")
FAILED = Condition("Failed", "True", "BackoffLimitExceeded", "pod failed", "t9")
JOB = run(Seat("n1"))
BUILDERS = {
    "pending": lambda w: phases.pending_status(w, "TooLarge", "needs more", "t1"),
    "retrying": lambda w: phases.retrying_status(w, 1, "refused", "t1"),
    "gave_up": lambda w: phases.failed_status(w, "MaxRetriesExceeded", "refused", "t1"),
    "scheduled": lambda w: phases.scheduled_status(w, PLACED, "t1"),
    "running": lambda w: phases.running_status(w, PLACED, "t1"),
    "succeeded": lambda w: phases.finished_status(w, PLACED, JOB, COMPLETE, "t1"),
    "failed": lambda w: phases.finished_status(w, PLACED, JOB, FAILED, "t1"),
}


@pytest.mark.parametrize("before", BUILDERS)
@pytest.mark.parametrize("after", BUILDERS)
def test_every_phase_states_all_its_conditions_whatever_was_there_before(before, after):
    fresh = BUILDERS[after](workload())
    later = BUILDERS[after](replace(workload(), status=BUILDERS[before](workload())))

    assert {t: v[:2] for t, v in conditions(later).items()} == {t: v[:2] for t, v in conditions(fresh).items()}
    assert (later.phase, later.message, later.node) == (fresh.phase, fresh.message, fresh.node)
    assert bool(later.completion_time) == (after in ("gave_up", "succeeded", "failed"))


def test_an_edit_starts_the_count_of_errors_afresh():
    made = workload(retry_count=2, observed_generation=1)
    assert phases.pending_status(made, "TooLarge", "", "t1").retry_count == 0
    assert phases.pending_status(workload(retry_count=2, observed_generation=2), "TooLarge", "", "t1").retry_count == 2


@pytest.mark.parametrize("possible", [True, False])
def test_a_start_is_estimated_only_where_waiting_helps(possible):
    held = Refusal(Reason.TOO_LARGE, "too large", possible=possible)
    status = phases.waiting_status(workload(), held, "t1", ("t2", "t3"))
    assert status.estimate == (("t2", "t3") if possible else None)


def test_messages_are_cut_to_what_the_api_server_takes():
    status = phases.pending_status(workload(), "TooLarge", "x" * 100_000, "t1")
    assert len(status.message) == len(status.conditions[0].message) == 1024


class TestLargePlans:
    def status(self, nodes, per_node):
        names = Cards({card: f"GPU-{card}" for card in range(8)}, {})
        masks = [(1 << 8 // per_node) - 1 << start for start in range(0, 8, 8 // per_node)]
        seats = [Seat(f"n{number}", mask) for number in range(nodes) for mask in masks]
        made = replace(run(*seats), wanted={amounts.GPU: 8 // per_node})
        kgwe = from_kgwe(GPUWorkload(ObjectMeta(name="w", uid="u"), GPUWorkloadSpec(GPURequirements(count=nodes * 8))))
        return status_patch(kgwe, phases.running_status(kgwe, phases.Placement(made, kgwe, lambda _node: names), "t1"))

    @pytest.mark.parametrize(("nodes", "per_node"), [(2_048, 1), (2_048, 8), (12_500, 8)])
    def test_lists_end_at_512_and_counts_tell_the_whole(self, nodes, per_node):
        status = self.status(nodes, per_node)["status"]
        assert len(status["placements"]) == len(status["allocatedGPUs"]) == 512
        assert sum(len(each.get("gpus", ())) for each in status["placements"]) == 512
        assert (status["nodeCount"], status["allocatedGPUCount"]) == (nodes, nodes * 8)
        assert status["message"] == f"running on {nodes} nodes"
        assert len(msgspec.json.encode(status)) < 100_000

    def test_a_plan_of_an_nvl72_rack_is_listed_in_full(self):
        status = self.status(9, 1)["status"]
        assert (len(status["allocatedGPUs"]), status["allocatedGPUCount"], status["nodeCount"]) == (72, 72, 9)


def test_failed_work_counts_as_finished_until_its_spec_is_edited():
    assert workload(phase="Failed", observed_generation=2).finished
    assert not workload(phase="Failed", observed_generation=1).finished
    assert workload(phase="Succeeded", observed_generation=1).finished
    assert not workload(phase="Running", observed_generation=2).finished


def written(made, status):
    """What the status patch says."""
    patch = status_patch(made, status)
    assert patch is not None
    return patch["status"]


def kgwe_workload():
    meta = ObjectMeta(name="w", namespace="ns", uid="u", generation=2)
    return from_kgwe(GPUWorkload(metadata=meta, spec=GPUWorkloadSpec(gpuRequirements=GPURequirements(count=4))))


def test_a_plan_is_told_in_full():
    made = kgwe_workload()
    why = Details(72, (("topology", 50.0),), 450.0, "leaf/a", "because")
    gang = run(Seat("n1", 0b01), Seat("n1", 0b10), Seat("n2", 0b11), details=why)
    told = written(made, phases.running_status(made, placement(gang, made), "t1"))
    assert told["scheduledNode"] == "n1"
    assert told["message"] == "running on 2 nodes"
    assert told["placements"] == [
        {"node": "n1", "pods": 2, "gpus": ["GPU-a", "GPU-b"]},
        {"node": "n2", "pods": 1, "gpus": ["GPU-a", "GPU-b"]},
    ]
    assert told["allocatedGPUs"] == ["GPU-a", "GPU-b", "GPU-a", "GPU-b"]
    assert (told["schedulingScore"], told["estimatedBandwidth"]) == (72, 450.0)
    assert told["scoreParts"] == [{"name": "topology", "points": 50.0}]
    assert (told["domain"], told["reasons"]) == ("leaf/a", "because")


def test_reasons_that_somebody_took_off_the_run_are_still_told():
    made = kgwe_workload()
    placed = phases.running_status(made, placement(run(Seat("n1", 1), details=Details(72)), made), "t1")
    again = replace(made, status=placed)
    assert status_patch(again, phases.running_status(again, placement(run(Seat("n1", 1)), again), "t2")) is None
    elsewhere = written(again, phases.running_status(again, placement(run(Seat("n2", 1)), again), "t2"))
    assert elsewhere["schedulingScore"] is None, "but not of another place"


def test_slices_are_told_by_their_uuids():
    made = kgwe_workload()
    told = written(made, phases.running_status(made, placement(run(Seat("n1", 0, ((3, 0),))), made), "t1"))
    assert told["migInstances"] == [{"parentGPU": "GPU-d", "instanceUUID": "MIG-x", "profile": "1g.10gb"}]


def test_nothing_of_a_plan_is_left_when_work_waits_again():
    made = kgwe_workload()
    placed = phases.running_status(made, placement(run(Seat("n1", 1), details=Details(72)), made), "t1")
    again = replace(made, status=placed)
    told = written(again, phases.pending_status(again, "NodeRefused", "no", "t2"))
    gone = ("placements", "allocatedGPUs", "schedulingScore", "scheduledNode", "jobName", "startTime")
    assert all(told[field] is None for field in gone)


def test_a_reader_gets_back_what_was_written():
    made = kgwe_workload()
    placed = phases.running_status(
        made, placement(run(Seat("n1", 1), details=Details(72, (("a", 1.0),), 9.0, "x", "y")), made), "t1"
    )
    body = written(made, placed)
    stored = msgspec.convert(
        {"metadata": {"name": "w", "generation": 2}, "spec": {"gpuRequirements": {"count": 4}}, "status": body},
        GPUWorkload,
    )
    assert status_patch(from_kgwe(stored), placed) is None


def test_what_would_start_waiting_work_is_told_beside_why_it_waits():
    made = kgwe_workload()
    diagnosis = racks.racks({"s": {"a": [8], "b": [8]}}).refuse(
        GangRequest.uniform(Request(Gpus(count=8)), 2, required="leaf")
    )
    refusal = Refusal(Reason.TOPOLOGY_NOT_MET, "needs a leaf", detail=diagnosis)
    told = written(made, phases.waiting_status(made, refusal, "t1", ("t5", "t9")))
    assert told["message"] == "needs a leaf. May start by t5 (50 % likely), t9 (90 % likely)."
    assert "require spine instead of leaf" in told["reasons"]
    assert told["estimatedStart"] == {"p50": "t5", "p90": "t9"}


def asking(**requirements):
    meta = ObjectMeta(name="w", namespace="ns", uid="u", generation=2)
    spec = GPUWorkloadSpec(gpuRequirements=GPURequirements(**requirements))
    return from_kgwe(GPUWorkload(metadata=meta, spec=spec))


@pytest.mark.parametrize(
    ("requirements", "shown"),
    [
        ({"count": 8}, "8"),
        ({"mig": MIGRequest("1g.10gb", 2)}, "2×1g.10gb"),
        ({"mig": MIGRequest("1g.10gb+me", 1)}, "1×1g.10gb+me"),
        ({"share": 0.5}, "0.5"),
        ({"share": 1 / 3}, "0.33"),
    ],
)
def test_the_gpus_that_a_workload_asks_for_are_shown_as_people_write_them(requirements, shown):
    made = asking(**requirements)
    assert written(made, phases.pending_status(made, "TooLarge", "", "t1"))["requestedGPUs"] == shown


def test_the_gpus_of_all_pods_are_shown_as_one_number():
    meta = ObjectMeta(name="w", namespace="ns", uid="u", generation=2)
    spec = GPUWorkloadSpec(gpuRequirements=GPURequirements(count=32), gpusPerPod=8)
    assert from_kgwe(GPUWorkload(metadata=meta, spec=spec)).gpus == "32"


@pytest.mark.parametrize(
    ("nodes", "shown"), [(["a"], "a"), (["a", "a"], "a"), (["a", "b"], "a +1"), (["a", "b", "c", "a", "d"], "a +3")]
)
def test_the_first_node_is_shown_with_the_number_of_others(nodes, shown):
    made = kgwe_workload()
    of = run(*(Seat(node, 1) for node in nodes))
    assert written(made, phases.running_status(made, placement(of, made), "t1"))["nodeSummary"] == shown


def test_ended_work_has_the_conditions_of_a_job():
    done = BUILDERS["succeeded"](workload())
    failed = BUILDERS["failed"](workload())
    never = BUILDERS["gave_up"](workload())
    assert conditions(done)["Complete"][:2] == ("True", "CompletionsReached")
    assert "Failed" not in conditions(done)
    for status in (failed, never):
        assert conditions(status)["Failed"][0] == "True"
        assert "Complete" not in conditions(status)


def test_work_that_lost_a_gpu_is_degraded_until_it_is_whole_again():
    lost = phases.running_status(workload(), PLACED, "t1", ("NoCapacity", "GPU 3 of node n1 failed"))
    assert conditions(lost)["Degraded"] == ("True", "NoCapacity", "t1")
    assert lost.message == "running on n1; GPU 3 of node n1 failed"
    whole = phases.running_status(replace(workload(), status=lost), PLACED, "t2")
    assert "Degraded" not in conditions(whole)
    assert whole.message == "running on n1"


def test_an_announced_suspension_is_in_the_status_until_the_notice_is_withdrawn():
    notes = marks.write_notice(marks.Notice(1_700_000_000, 1_700_003_600, 2.5))
    made = workload()
    idle = replace(made, meta=msgspec.structs.replace(made.meta, annotations=notes))
    told = phases.running_status(idle, PLACED, "t1")
    words = (
        "its GPUs have been idle since 2023-11-14T22:13:20Z, and it will be suspended at 2023-11-14T23:13:20Z."
        " Keep it with: kgwe idle keep w -n ns --for 8h"
    )
    assert told.message == f"running on n1; {words}"
    assert conditions(told)["Idle"] == ("True", "IdleGPUs", "t1")
    assert "Idle" not in conditions(phases.running_status(made, PLACED, "t1"))


def test_a_priority_above_the_limit_is_a_condition():
    made = replace(workload(), asked_priority=20_000, priority=10_000)
    for status in (phases.pending_status(made, "A", "", "t1"), phases.running_status(made, PLACED, "t1")):
        limited = status.conditions[-1]
        assert (limited.type, limited.reason) == ("PriorityLimited", "AboveLimit")
        assert limited.message.startswith("spec.priority 20000 counts as 10000")
