"""Which decisions are believed: those that were signed for that pod, place and namespace, and no others."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.builders.objects import (
    NAME,
    ONE,
    TWO,
    UID,
    added,
    changed,
    deployment,
    free,
    job,
    make,
    node,
    pod,
    pod_spec,
    replica,
    workload,
)

from kgwe.apps.scheduler.pods import pinner
from kgwe.cluster.gangs.leader_actions import LeaderActions
from kgwe.cluster.state.cluster_state import ClusterState
from kgwe.cluster.workload import metadata_keys, placement_annotations, plan_details, runs
from kgwe.cluster.workload.signatures import Signer
from kgwe.kube.api import resources
from kgwe.placement.live.holding import Holding
from kgwe.placement.planning.plan import Seat

OWNER = "gang:team/kgwe.nvidia.io/g"
HERE = Holding("n1", {}, 0b1111)


@pytest.fixture
def signer() -> Signer:
    return Signer(b"k" * 32)


@pytest.fixture
def state(signer: Signer) -> Any:
    made = ClusterState(signer)
    for name in ("n1", "n2"):
        made.on_node(added(node(name)))
    return made


def member(
    name: str = "p",
    *,
    at: str = "",
    pin: str = "",
    created: str = "2026-01-01T00:00:00Z",
    namespace: str = "team",
    gated: bool = False,
    size: int = 2,
    **notes: Any,
) -> Any:
    said = {"kgwe.nvidia.io/gang": "g", "kgwe.nvidia.io/gang-size": str(size)} | notes
    meta = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "annotations": said}
    spec = pod_spec(4, at, pin=pin, gated=gated)
    return make(resources.POD.type, {"metadata": meta | {"creationTimestamp": created}, "spec": spec})


def decided(signer: Signer, made: Any, number: int = 0, place: Holding = HERE) -> dict[str, Any]:
    """What the seater writes on the pod."""
    patch = pinner.pin_patch(made, OWNER, number, place, signer.sign_seat(made, OWNER, number, place))
    return {key: text for key, text in patch["metadata"]["annotations"].items() if text is not None}


def is_believed(signer: Signer, pod: Any) -> bool:
    found = signer.strip_unsigned(pod)
    assert found is pod or not found.metadata.annotations.keys() & {
        placement_annotations.SEAT_ANNOTATION,
        placement_annotations.CARDS_ANNOTATION,
    }
    return found is pod


# --- seats ------------------------------------------------------------------------------------------------


def test_a_seat_that_was_signed_is_believed_while_the_pod_is_pinned_and_when_it_is_bound(signer: Signer) -> None:
    notes = decided(signer, member())
    assert is_believed(signer, member(pin="n1", **notes))
    assert is_believed(signer, member(pin="n1", at="n1", **notes))
    assert is_believed(signer, member(**notes)), "a pod that had no gate is not pinned"


@pytest.mark.parametrize(
    "changed",
    [
        {"namespace": "other"},
        {"created": "2026-01-01T00:00:01Z"},
        {"pin": "n2"},
        {"at": "n2"},
        {"gated": True},
        {placement_annotations.SEAT_ANNOTATION: f"{OWNER}/1"},
        {placement_annotations.SEAT_ANNOTATION: f"{OWNER}x/0"},
        {placement_annotations.SEAT_ANNOTATION: ""},
        {placement_annotations.CARDS_ANNOTATION: "ff"},
        {placement_annotations.SLICES_ANNOTATION: "0@0"},
        {placement_annotations.SIGNATURE_ANNOTATION: ""},
        {placement_annotations.SIGNATURE_ANNOTATION: "x.y.n1"},
        {placement_annotations.SIGNATURE_ANNOTATION: "ü..n1"},
    ],
    ids=str,
)
def test_a_seat_of_which_one_fact_is_another_is_not_believed(signer: Signer, changed: dict[str, Any]) -> None:
    notes = decided(signer, member())
    assert not is_believed(signer, member(**{"pin": "n1", **notes, **changed}))


def test_the_node_in_a_signature_is_signed_too(signer: Signer) -> None:
    notes = decided(signer, member())
    notes[placement_annotations.SIGNATURE_ANNOTATION] = notes[placement_annotations.SIGNATURE_ANNOTATION].replace(
        ".n1", ".n2"
    )
    assert not is_believed(signer, member(pin="n2", **notes))


def test_signatures_of_the_key_before_are_accepted_and_older_ones_are_not() -> None:
    old, new = b"a" * 32, b"b" * 32
    notes = decided(Signer(old), member())
    assert is_believed(Signer(new, old), member(pin="n1", **notes))
    assert not is_believed(Signer(new), member(pin="n1", **notes))
    assert decided(Signer(new, old), member()) == decided(Signer(new), member())


def test_a_pod_without_decisions_is_the_same_object(signer: Signer) -> None:
    made = member()
    assert signer.strip_unsigned(made) is made


# --- restoring --------------------------------------------------------------------------------------------


def test_a_signed_seat_is_restored_after_a_restart(state: Any, signer: Signer) -> None:
    state.on_pod(added(member(pin="n1", **decided(signer, member()))))
    assert state.ledger.reserved_seat(OWNER, 0) == Holding("n1", state.ledger.reserved_seat(OWNER, 0).amounts, 0b1111)
    assert free(state) == {"n1": 4, "n2": 8}


def test_four_gated_pods_with_forged_seats_hold_nothing(state: Any) -> None:
    for number in range(4):
        notes: dict[str, Any] = {
            placement_annotations.SEAT_ANNOTATION: f"{OWNER}/{number}",
            placement_annotations.CARDS_ANNOTATION: "ff",
        }
        state.on_pod(added(member(f"p{number}", pin=f"n{number % 2 + 1}", gated=True, size=1000, **notes)))
    assert free(state) == {"n1": 8, "n2": 8}
    assert not state.ledger.has_seats(OWNER)


def test_forged_seats_without_a_gate_hold_nothing_either(state: Any) -> None:
    for number in range(4):
        notes: dict[str, Any] = {
            placement_annotations.SEAT_ANNOTATION: f"{OWNER}/{number}",
            placement_annotations.CARDS_ANNOTATION: "ff",
        }
        state.on_pod(added(member(f"p{number}", pin=f"n{number % 2 + 1}", size=1000, **notes)))
    assert free(state) == {"n1": 8, "n2": 8}


def test_a_copy_of_a_signed_seat_on_a_later_pod_holds_nothing(state: Any, signer: Signer) -> None:
    notes = decided(signer, member())
    state.on_pod(added(member("copy", pin="n1", created="2026-01-01T00:05:00Z", **notes)))
    assert free(state) == {"n1": 8, "n2": 8}


def test_the_first_pod_in_a_seat_has_it_and_a_second_has_nothing(state: Any, signer: Signer) -> None:
    """Made in the same second, so that the signature fits both."""
    notes = decided(signer, member())
    for name in ("p", "copy"):
        state.on_pod(added(member(name, pin="n1", **notes)))
    assert state.gangs.seat("uid-p") == (OWNER, 0)
    assert state.gangs.seat("uid-copy") is None
    assert free(state) == {"n1": 4, "n2": 8}


def test_a_seat_that_does_not_fit_reserves_nothing(state: Any, signer: Signer) -> None:
    assert free(state) == {"n1": 8, "n2": 8}
    plain = make(
        resources.POD.type, {"metadata": {"name": "x", "uid": "x", "namespace": "a"}, "spec": pod_spec(6, "n1")}
    )
    state.on_pod(added(plain))
    state.on_pod(added(member(pin="n1", **decided(signer, member()))))
    assert free(state) == {"n1": 2, "n2": 8}, "not the two that are free"
    assert state.gangs.seat("uid-p") is None


def test_a_seat_that_was_read_before_its_node_is_checked_when_the_term_begins(state: Any, signer: Signer) -> None:
    state.on_pod(added(member(pin="n1", **decided(signer, member()))))
    plain = make(
        resources.POD.type, {"metadata": {"name": "x", "uid": "x", "namespace": "a"}, "spec": pod_spec(6, "n1")}
    )
    state.on_pod(added(plain))
    nothing: Any = lambda *_: None  # noqa: E731
    state.gangs.start_leading(
        LeaderActions(
            request_plan=nothing, withdraw_request=nothing, assign_seat=nothing, remove_gate=nothing, call_soon=nothing
        )
    )
    assert free(state) == {"n1": 2, "n2": 8}
    assert state.gangs.seat("uid-p") is None


# --- runs -------------------------------------------------------------------------------------------------


def signed(signer: Signer, run: Any, **changed: str) -> Any:
    meta = run.metadata
    notes = signer.sign_new_plan(msgspec.structs.replace(meta, annotations={}), meta.annotations)
    return msgspec.structs.replace(run, metadata=msgspec.structs.replace(meta, annotations=notes | changed))


@pytest.mark.parametrize("run", [job(seats=TWO), job(seats=ONE), deployment()], ids=["gang", "single", "deployment"])
def test_the_plan_of_a_run_counts_if_it_is_signed(state: Any, signer: Signer, run: Any) -> None:
    listen = state.on_deployment if isinstance(run, resources.DEPLOYMENT.type) else state.on_job
    state.on_kgwe(added(workload(count=8)))
    listen(added(run))
    assert free(state) == {"n1": 8, "n2": 8}, "somebody else wrote it"
    listen(added(signed(signer, run)))
    assert sum(free(state).values()) < 16


@pytest.mark.parametrize(
    "changed",
    [
        {placement_annotations.PLAN_ANNOTATION: "n2=ff"},
        {metadata_keys.GENERATION_ANNOTATION: "9"},
        {metadata_keys.ROUND_ANNOTATION: "7"},
        {placement_annotations.SIGNATURE_ANNOTATION: ""},
    ],
    ids=str,
)
def test_a_plan_that_was_edited_reserves_nothing(state: Any, signer: Signer, changed: dict[str, str]) -> None:
    state.on_kgwe(added(workload(count=8)))
    state.on_job(added(signed(signer, job(seats=TWO), **changed)))
    assert free(state) == {"n1": 8, "n2": 8}
    assert state.runs[UID].seats == ()


def test_a_plan_of_another_workload_reserves_nothing(state: Any, signer: Signer) -> None:
    other = "22222222-aaaa-bbbb-cccc-000000000000"
    state.on_kgwe(added(workload(count=8)))
    copied = signed(signer, job(seats=TWO)).metadata.annotations
    state.on_kgwe(added(msgspec.structs.replace(workload(other, count=8), metadata=workload(other).metadata)))
    meta = job(seats=TWO, owner=other).metadata
    labels = {**meta.labels, metadata_keys.UID_LABEL: other}
    name = NAME.replace("11111111", "22222222")
    forged = msgspec.structs.replace(meta, name=name, uid="job-2", labels=labels, annotations=copied)
    state.on_job(added(msgspec.structs.replace(job(seats=TWO), metadata=forged)))
    assert free(state) == {"n1": 8, "n2": 8}


def test_a_job_that_a_user_made_in_place_of_ours_reserves_nothing(state: Any) -> None:
    """Its name can be guessed; it pins its pod to a node that the user chose."""
    state.on_kgwe(added(workload(count=4)))
    state.on_job(added(job(seats=ONE)))
    assert free(state) == {"n1": 8, "n2": 8}


@pytest.mark.parametrize("nodes_first", [True, False])
def test_a_plan_that_does_not_fit_reserves_nothing(state: Any, signer: Signer, *, nodes_first: bool) -> None:
    if nodes_first:
        assert free(state) == {"n1": 8, "n2": 8}
    plain = make(
        resources.POD.type, {"metadata": {"name": "x", "uid": "x", "namespace": "a"}, "spec": pod_spec(6, "n1")}
    )
    state.on_pod(added(plain))
    state.on_kgwe(added(workload(count=8)))
    state.on_job(added(signed(signer, job(seats=TWO))))
    if not nodes_first:
        state.run_registry.drop_unfit_seats()  # as every term does when it begins
    assert free(state) == {"n1": 2, "n2": 4}


def test_a_template_that_was_edited_to_want_more_than_its_plan_reserves_nothing(signer: Signer) -> None:
    run = runs.drop_unsigned_plan(runs.read_deployment(signed(signer, deployment(gpus=8))), signer)
    assert run.seats == ()


def cpu_left(state: Any) -> dict[str, int]:
    snapshot = state.fleet.snapshot
    return {each.name: int(snapshot.cpu_milli[i]) for i, each in enumerate(snapshot.nodes)}


PLANNED = {metadata_keys.AMOUNTS_ANNOTATION: '{"cpu":2000,"nvidia.com/gpu":4,"pods":1}'}


def with_notes(run: Any, notes: dict[str, str]) -> Any:
    meta = msgspec.structs.replace(run.metadata, annotations=run.metadata.annotations | notes)
    return msgspec.structs.replace(run, metadata=meta)


@pytest.mark.parametrize("seats", [ONE, TWO], ids=["single", "two"])
def test_a_template_that_was_edited_to_want_more_cpu_reserves_what_was_planned(
    state: Any, signer: Signer, seats: tuple[Seat, ...]
) -> None:
    state.on_kgwe(added(workload(count=8)))
    plain, edited = (signed(signer, with_notes(deployment(seats=seats, cpu=cpu), PLANNED)) for cpu in ("2", "100000"))
    state.on_deployment(added(plain))
    assert cpu_left(state)["n1"] == 62000
    state.on_deployment(changed(plain, edited))
    assert cpu_left(state)["n1"] == 62000
    assert sum(free(state).values()) == 16 - 4 * len(seats)


def test_a_seat_beside_a_running_pod_reserves_what_was_planned(state: Any, signer: Signer) -> None:
    state.on_kgwe(added(workload(count=8)))
    bound = replica("p", at="n1")
    place = Holding("n1", {}, 0b11110000)
    notes = pinner.pin_patch(bound, UID, 0, place, signer.sign_seat(bound, UID, 0, place))["metadata"]["annotations"]
    notes = {key: text for key, text in notes.items() if text is not None}
    state.on_pod(added(with_notes(bound, notes)))
    state.on_deployment(added(signed(signer, with_notes(deployment(cpu="100000"), PLANNED))))
    assert cpu_left(state)["n2"] == 62000


def test_amounts_that_were_edited_or_removed_from_a_plan_are_not_believed(state: Any, signer: Signer) -> None:
    state.on_kgwe(added(workload(count=8)))
    for text in ("", '{"cpu":100000000,"nvidia.com/gpu":4,"pods":1}'):
        run = signed(signer, with_notes(deployment(cpu="100000"), PLANNED), **{metadata_keys.AMOUNTS_ANNOTATION: text})
        state.on_deployment(added(run))
        assert cpu_left(state) == {"n1": 64000, "n2": 64000}
        again = signer.sign_new_plan(
            run.metadata, {placement_annotations.PLAN_ANNOTATION: placement_annotations.encode(TWO)}
        )
        state.on_deployment(added(with_notes(run, again)))
        assert cpu_left(state) == {"n1": 64000, "n2": 64000}, "a new plan does not sign what others wrote"


@pytest.mark.parametrize(("generation", "left"), [(1, 61000), (2, 64000)], ids=["as planned", "edited since"])
def test_a_plan_without_amounts_reserves_what_the_spec_says_if_it_was_planned(
    state: Any, signer: Signer, generation: int, left: int
) -> None:
    asks = {"requests": {"cpu": "3"}}
    plain = workload(count=8, generation=generation)
    template = {"spec": {"containers": [{"name": "c", "image": "i", "resources": asks}]}}
    state.on_kgwe(added(msgspec.structs.replace(plain, spec=msgspec.structs.replace(plain.spec, podTemplate=template))))
    state.on_deployment(added(signed(signer, deployment(cpu="100000"))))
    assert cpu_left(state) == {"n1": left, "n2": left}
    assert sum(free(state).values()) == 8


def test_the_amounts_that_were_planned_are_stored_with_the_plan() -> None:
    assert plan_details.planned_amounts(PLANNED) == {"cpu": 2000, "nvidia.com/gpu": 4, "pods": 1}
    for text in ("", "[", "7", '{"cpu":"x"}'):
        assert plan_details.planned_amounts({metadata_keys.AMOUNTS_ANNOTATION: text}) is None


def test_the_gpus_of_a_single_pod_are_signed_in_its_template(signer: Signer) -> None:
    body: dict[str, Any] = {
        "metadata": {"namespace": "team", "annotations": {}},
        "spec": {"template": {"metadata": {"annotations": {placement_annotations.CARDS_ANNOTATION: "f"}}}},
    }
    signer.sign_run(body, UID, (Seat("n1", 0b1111),))
    notes = body["spec"]["template"]["metadata"]["annotations"]
    meta = {
        "name": "p",
        "namespace": "team",
        "uid": "u",
        "labels": {metadata_keys.UID_LABEL: UID},
        "annotations": notes,
    }
    made = make(resources.POD.type, {"metadata": meta, "spec": pod_spec(4, pin="n1")})
    assert is_believed(signer, made)
    changes: list[dict[str, Any]] = [{"namespace": "other"}, {"labels": {metadata_keys.UID_LABEL: "x"}}, {"labels": {}}]
    for each in changes:
        copy = make(resources.POD.type, {"metadata": meta | each, "spec": pod_spec(4, pin="n1")})
        assert not is_believed(signer, copy)


def indexed(signer: Signer, number: int = 1, **changed: Any) -> Any:
    """The pod of a gang as the policy kgwe-seats leaves it; `changed`: facts that a user changes."""
    body: dict[str, Any] = {"metadata": {"namespace": "team", "annotations": {}}, "spec": {"template": {}}}
    signer.sign_run(body, UID, TWO, seats_in_template=True)
    lines = body["spec"]["template"]["metadata"]["annotations"][placement_annotations.SEATS_ANNOTATION].split("\n")
    signature, cards, slices = lines[number].split(" ")
    assert slices == ""
    notes = {
        placement_annotations.INDEX_ANNOTATION: str(number),
        placement_annotations.SEAT_ANNOTATION: f"{UID}/{number}",
        placement_annotations.CARDS_ANNOTATION: cards,
        placement_annotations.SIGNATURE_ANNOTATION: signature,
    }
    notes |= {key: text for key, text in changed.items() if "/" in key}
    meta = {
        "name": "p",
        "namespace": changed.get("namespace", "team"),
        "uid": "u",
        "labels": {metadata_keys.UID_LABEL: changed.get("owner", UID)},
        "annotations": notes,
    }
    spec = pod_spec(4, changed.get("at", ""), pin=changed.get("pin", "n2"), gated=changed.get("gated", False))
    return make(resources.POD.type, {"metadata": meta, "spec": spec})


def test_a_seat_given_at_creation_is_believed_and_counts_as_the_seat_of_the_index(signer: Signer) -> None:
    made = indexed(signer)
    assert is_believed(signer, made)
    assert is_believed(signer, indexed(signer, at="n2"))
    assert signer.has_signed_seat(made, UID, 1, is_single=False)
    assert not signer.has_signed_seat(made, UID, 0, is_single=False)


@pytest.mark.parametrize(
    "changed",
    [
        {"namespace": "other"},
        {"owner": "another-workload"},
        {"pin": "n1"},
        {"pin": ""},
        {"at": "n1"},
        {"gated": True},
        {placement_annotations.INDEX_ANNOTATION: "0"},
        {placement_annotations.SEAT_ANNOTATION: f"{UID}/0"},
        {placement_annotations.SEAT_ANNOTATION: f"{OWNER}/1"},
        {placement_annotations.CARDS_ANNOTATION: "ff"},
        {placement_annotations.SLICES_ANNOTATION: "0@0"},
    ],
    ids=str,
)
def test_a_seat_given_at_creation_of_which_one_fact_is_another_is_not_believed(
    signer: Signer, changed: dict[str, Any]
) -> None:
    assert not is_believed(signer, indexed(signer, **changed))


def test_the_line_of_another_index_is_not_believed(signer: Signer) -> None:
    other = indexed(signer, 0).metadata.annotations[placement_annotations.SIGNATURE_ANNOTATION]
    assert not is_believed(signer, indexed(signer, **{placement_annotations.SIGNATURE_ANNOTATION: other}))


def test_seats_that_do_not_fit_the_template_are_left_out(signer: Signer) -> None:
    for pods, fits in ((1000, True), (2000, False)):
        body: dict[str, Any] = {"metadata": {"namespace": "team", "annotations": {}}, "spec": {"template": {}}}
        seats = tuple(Seat(f"dgx-h100-{number:05}", 0xFF) for number in range(pods))
        signer.sign_run(body, UID, seats, seats_in_template=True)
        assert (placement_annotations.SEATS_ANNOTATION in body["metadata"]["annotations"]) is fits
        assert bool(body["spec"]["template"]["metadata"].get("annotations")) is fits


def test_the_gpus_of_a_binding_are_signed_for_that_pod(signer: Signer) -> None:
    notes = {
        placement_annotations.CARDS_ANNOTATION: "f",
        placement_annotations.SIGNATURE_ANNOTATION: signer.sign_binding("team", "u", HERE),
    }
    for uid, believed in (("u", True), ("v", False)):
        meta = {"name": "p", "namespace": "team", "uid": uid, "annotations": notes}
        made = make(resources.POD.type, {"metadata": meta, "spec": pod_spec(4, "n1")})
        assert is_believed(signer, made) is believed


def test_an_object_with_a_forged_decision_is_counted_once_however_often_it_is_read() -> None:
    counted: list[str] = []
    signer = Signer(b"k" * 32, on_forged=counted.append)
    notes: dict[str, Any] = {placement_annotations.SEAT_ANNOTATION: f"{OWNER}/0"}
    forged = member(**notes)
    for _ in range(3):
        assert placement_annotations.SEAT_ANNOTATION not in signer.strip_unsigned(forged).metadata.annotations
        runs.drop_unsigned_plan(runs.read_job(job(seats=TWO)), signer)
    runs.drop_unsigned_plan(runs.read_job(job("job-2", seats=TWO)), signer)
    assert sorted(counted) == ["Job", "Job", "Pod"]


def test_the_memory_for_forged_objects_is_bounded(signer: Signer) -> None:
    for number in range(30_000):
        signer.report_forged("Pod", f"uid-{number}")
    assert len(signer._reported) <= 10_000


# --- pods that a user made --------------------------------------------------------------------------------


def pinned(signer: Signer, bare: Any, number: int, place: Holding) -> Any:
    """The pod as the pinner leaves it."""
    notes = pinner.pin_patch(bare, UID, number, place, signer.sign_seat(bare, UID, number, place))
    return with_notes(bare, {key: text for key, text in notes["metadata"]["annotations"].items() if text is not None})


def templated(signer: Signer, bare: Any) -> Any:
    """The pod with the annotations of the signed template of its Job."""
    body: dict[str, Any] = {
        "metadata": {"namespace": "team", "annotations": {}},
        "spec": {"template": {"metadata": {"annotations": {placement_annotations.CARDS_ANNOTATION: "f"}}}},
    }
    signer.sign_run(body, UID, ONE)
    return with_notes(bare, body["spec"]["template"]["metadata"]["annotations"])


def having(state: Any, number: int = 0) -> str:
    return str(state.ledger.pod_in(UID, number))


@pytest.mark.parametrize("gpus", [0, 4])
def test_a_pod_that_names_our_job_as_its_owner_takes_no_seat_of_a_gang(state: Any, signer: Signer, gpus: int) -> None:
    """It sets spec.nodeName itself, and the index of a seat whose pod is not there yet."""
    state.on_kgwe(added(workload(count=8)))
    state.on_job(added(signed(signer, job(seats=TWO))))
    state.on_pod(added(pod("thief", index=0, gpus=gpus)))
    assert having(state) == ""
    assert free(state) == {"n1": 4 - gpus, "n2": 4}, "it counts for itself, and the seat stays reserved"
    state.on_pod(added(pinned(signer, pod("p0", index=0), 0, Holding("n1", {}, 0b11110000))))
    assert having(state) == "uid-p0"
    assert free(state) == {"n1": 4 - gpus, "n2": 4}


@pytest.mark.parametrize("order", ["pod first", "job first"])
def test_a_pod_that_names_our_job_as_its_owner_takes_no_seat_of_a_single_pod(
    state: Any, signer: Signer, order: str
) -> None:
    state.on_kgwe(added(workload(count=4)))
    feeds = [
        lambda: state.on_pod(added(pod("thief", gpus=1))),
        lambda: state.on_job(added(signed(signer, job(seats=ONE)))),
    ]
    for feed in feeds if order == "pod first" else feeds[::-1]:
        feed()
    assert (having(state), free(state)["n1"]) == ("", 3)
    state.on_pod(added(templated(signer, pod("p", index=0))))
    assert (having(state), free(state)["n1"]) == ("uid-p", 3)


def test_a_signature_for_something_else_gives_no_seat(state: Any, signer: Signer) -> None:
    """The signature of a binding, and that of a seat with another number."""
    state.on_kgwe(added(workload(count=8)))
    state.on_job(added(signed(signer, job(seats=TWO))))
    binding = {placement_annotations.CARDS_ANNOTATION: "f"}
    binding[placement_annotations.SIGNATURE_ANNOTATION] = signer.sign_binding("team", "uid-bound", HERE)
    state.on_pod(added(pod("bound", index=0, notes=binding)))
    assert having(state) == ""
    elsewhere = pinned(signer, pod("other", index=1, at="n2"), 1, Holding("n2", {}, 0b1111))
    state.on_pod(added(with_notes(elsewhere, {placement_annotations.INDEX_ANNOTATION: "0"})))
    assert having(state) == ""


def test_the_signature_of_a_binding_gives_no_seat_of_a_single_pod(state: Any, signer: Signer) -> None:
    state.on_kgwe(added(workload(count=4)))
    state.on_job(added(signed(signer, job(seats=ONE))))
    binding = {placement_annotations.CARDS_ANNOTATION: "f"}
    binding[placement_annotations.SIGNATURE_ANNOTATION] = signer.sign_binding("team", "uid-bound", HERE)
    state.on_pod(added(pod("bound", notes=binding)))
    assert having(state) == ""


def test_a_running_pod_keeps_its_seat_when_its_annotations_are_edited(state: Any, signer: Signer) -> None:
    """Otherwise its GPUs would be reserved a second time."""
    state.on_kgwe(added(workload(count=8)))
    state.on_job(added(signed(signer, job(seats=TWO))))
    own = pinned(signer, pod("p0", index=0), 0, Holding("n1", {}, 0b11110000))
    state.on_pod(added(own))
    bare = pod("p0", index=1)
    state.on_pod(changed(own, bare))
    assert having(state) == "uid-p0"
    assert free(state) == {"n1": 4, "n2": 4}


def test_a_pod_that_a_user_made_does_not_spare_the_seats_of_its_job_the_check(state: Any, signer: Signer) -> None:
    state.on_pod(added(make(resources.POD.type, {"metadata": {"name": "x", "uid": "x"}, "spec": pod_spec(6, "n1")})))
    state.on_kgwe(added(workload(count=8)))
    state.on_pod(added(pod("thief", index=1, at="n2", gpus=0)))
    state.on_job(added(signed(signer, job(seats=TWO))))
    state.run_registry.drop_unfit_seats()
    assert list(state.ledger.reserved_seats(UID)) == [1]
