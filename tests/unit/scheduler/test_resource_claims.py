"""Who holds what claims were given, what pods claim, and which pods get a claim of their own."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.builders.claims import (
    TEMPLATE,
    _with_claim,
    claim,
    claiming_job,
    claiming_pod,
    mask,
    resource_slice,
    uuid,
)
from tests.support.builders.objects import (
    UID,
    added,
    changed,
    free,
    job,
    leaving,
    make,
    node,
    pod,
    removed,
    workload,
)
from tests.support.fakes.recording_client import RecordingClient

from kgwe import errors
from kgwe.apps.scheduler.pods.pinner import Pinner
from kgwe.cluster.state.cluster_state import ClusterState
from kgwe.cluster.workload.manifests import dra_claims, pod_template, run_manifest, workload_ask
from kgwe.cluster.workload.scheduler_policy import with_device_mode
from kgwe.cluster.workload.workload import from_kgwe
from kgwe.kube.api import resources
from kgwe.kube.translate.node_builder import CLAIMS_LABEL
from kgwe.model.units import amounts
from kgwe.placement.live.holding import Holding
from kgwe.placement.planning.plan import Plan, Seat

IMAGE = "example.com/image:1"


@pytest.fixture
def state() -> ClusterState:
    made = ClusterState()
    for name in ("n1", "n2"):
        made.on_node(added(node(name)))
        made.on_slice(added(resource_slice(name)))
    return made


# --- counting -------------------------------------------------------------------------------------------


def test_what_somebody_claims_is_not_free_until_it_is_deallocated(state):
    theirs = claim("theirs", (1, 5))
    state.on_claim(added(theirs))
    assert mask(state) == 0xFF & ~0b100010
    state.on_claim(changed(theirs, claim("theirs", ())))
    assert free(state) == {"n1": 8, "n2": 8}
    state.on_claim(changed(claim("theirs", ()), theirs))
    state.on_claim(removed(theirs))
    assert free(state) == {"n1": 8, "n2": 8}


def test_a_claim_of_a_pod_that_asks_for_no_gpus_otherwise_is_counted_itself(state):
    state.on_pod(added(pod("theirs", "", gpus=0)))
    state.on_claim(added(claim("theirs", (3,), of="uid-theirs")))
    assert mask(state) == 0xFF & ~0b1000


def test_looking_at_a_device_as_an_administrator_holds_nothing(state):
    state.on_claim(added(claim("monitor", (0, 1), adminAccess=True)))
    assert mask(state) == 0xFF


@pytest.mark.parametrize("order", ["claim first", "pod first"])
def test_a_resource_that_is_backed_by_a_claim_is_counted_once(state, order):
    theirs, given = pod("theirs", "", gpus=2), claim("theirs", (2, 6), of="uid-theirs")
    steps = [lambda: state.on_pod(added(theirs)), lambda: state.on_claim(added(given))]
    for step in steps if order == "pod first" else reversed(steps):
        step()
    assert mask(state) == 0xFF & ~0b1000100
    assert free(state)["n1"] == 6


def test_claims_are_counted_as_soon_as_slices_tell_which_cards_they_are():
    state = ClusterState()
    state.on_node(added(node("n1")))
    state.on_claim(added(claim("theirs", (1, 5))))
    assert mask(state) == 0xFF
    state.on_slice(added(resource_slice("n1")))
    assert mask(state) == 0xFF & ~0b100010


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1), (1, 3, 0, 2)])
def test_a_pod_of_ours_its_seat_and_its_claim_are_one_whatever_is_seen_first(state, order):
    plan = (Seat("n1", 0b1111),)
    steps = [
        lambda: state.on_kgwe(added(workload())),
        lambda: state.on_job(added(claiming_job(seats=plan))),
        lambda: state.on_pod(added(claiming_pod())),
        lambda: state.on_claim(added(claim("ours", (0, 1, 2, 3), of="uid-p"))),
    ]
    for number in order:
        steps[number]()
    assert free(state) == {"n1": 4, "n2": 8}
    assert mask(state) == 0xF0
    assert state.ledger.pod_in(UID, 0) == "uid-p"


def test_the_seat_of_a_pod_that_claims_is_reserved_before_and_after_the_pod(state):
    state.on_kgwe(added(workload()))
    state.on_job(added(claiming_job(seats=(Seat("n1", 0b1111),))))
    assert mask(state) == 0xF0, "the template does not say how many, the plan does"
    running, given = claiming_pod(), claim("ours", (0, 1, 2, 3), of="uid-p")
    state.on_pod(added(running))
    state.on_claim(added(given))
    state.on_pod(removed(leaving(running)))
    assert mask(state) == 0xF0, "kept for the next pod, not counted twice"
    assert not state.ledger.find_short_seats(UID)
    state.on_job(removed(claiming_job(seats=(Seat("n1", 0b1111),))))
    state.on_claim(removed(given))
    assert free(state) == {"n1": 8, "n2": 8}


# --- asking ---------------------------------------------------------------------------------------------


def asking(**spec: Any) -> Any:
    body = {"metadata": {"name": "w", "namespace": "team", "uid": UID, "generation": 1}}
    body["spec"] = {"gpuRequirements": {"count": 4}, "deviceMode": "DRA", **spec}
    return with_device_mode(from_kgwe(make(resources.GPU_WORKLOAD.type, body)), None)


def plan(*seats: Seat) -> Any:
    return SimpleNamespace(
        seats=seats, gpus_per_pod=seats[0].gpus.bit_count(), score=1.0, parts={}, gb_per_s=None, level="", domain="",
        message="",
    )  # fmt: skip


def test_work_that_claims_goes_to_nodes_whose_cards_can_be_claimed():
    mine = asking()
    constraints = workload_ask.build_ask(
        mine, pod_template.build_pod_template(mine, IMAGE), frozenset()
    ).request.constraints
    assert (CLAIMS_LABEL, "true") in constraints.selector
    assert any(each.key == CLAIMS_LABEL for each in constraints.tolerations)


@pytest.mark.parametrize(
    ("own", "cluster", "claims"),
    [("", "DRA", True), ("", "DevicePlugin", False), ("DevicePlugin", "DRA", False), ("DRA", "DevicePlugin", True)],
)
def test_a_workload_says_how_it_gets_gpus_else_the_cluster_does_whatever_is_known_first(own, cluster, claims):
    config = make(resources.SCHEDULER_CONFIG.type, {"metadata": {"name": "default"}, "spec": {"deviceMode": cluster}})
    mine = make(
        resources.GPU_WORKLOAD.type,
        {"metadata": {"name": "w", "uid": UID}, "spec": {"gpuRequirements": {"count": 1}, "deviceMode": own}},
    )
    for steps in ("config first", "workload first"):
        state = ClusterState()
        if steps == "config first":
            state.on_config(added(config))
        state.on_kgwe(added(mine))
        if steps == "workload first":
            state.on_config(added(config))
        known = state.find_workload(UID)
        assert known is not None
        assert known.claims is claims


def built(state: ClusterState, mine: Any, *seats: Seat) -> tuple[dict[str, Any], dict[str, Any]]:
    """(pod spec, ResourceClaimTemplate) of a workload."""
    made: Plan = plan(*seats)
    names = state.reader.cards
    body = run_manifest.build_run(mine, pod_template.build_pod_template(mine, IMAGE), made, "run1", names)
    (template,) = [
        each for kind, each in run_manifest.build_companions(mine, made, names) if kind.kind == "ResourceClaimTemplate"
    ]
    return body["spec"]["template"]["spec"], template


def test_a_pod_asks_for_a_claim_on_the_planned_cards_and_for_no_resource(state):
    spec, template = built(state, asking(), Seat("n1", 0b10101100))
    (container,) = spec["containers"]
    assert not any(amounts.is_gpu(name) for part in ("requests", "limits") for name in container["resources"][part])
    assert container["resources"]["claims"] == [{"name": dra_claims.CLAIM}]
    (mine,) = spec["resourceClaims"]
    assert mine == {"name": dra_claims.CLAIM, "resourceClaimTemplateName": template["metadata"]["name"]}
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["count"] == 4
    expression = request["exactly"]["selectors"][0]["cel"]["expression"]
    assert [card for card in range(8) if f"'{uuid('n1', card)}'" in expression] == [2, 3, 5, 7]
    assert template["metadata"]["ownerReferences"][0]["uid"] == UID


def test_another_plan_has_another_template(state):
    one, two = (built(state, asking(), Seat("n1", cards))[1]["metadata"]["name"] for cards in (0xF, 0xF0))
    assert one != two


def test_gpus_in_several_containers_are_refused_in_words(state):
    container = {"name": "a", "image": "i", "resources": {"limits": {amounts.GPU: "2"}}}
    mine = asking(podTemplate={"spec": {"containers": [container, {**container, "name": "b"}]}})
    with pytest.raises(errors.Permanent, match="exactly one container"):
        built(state, mine, Seat("n1", 0xF))


def test_a_card_that_nobody_names_cannot_be_claimed(state):
    with pytest.raises(errors.Permanent, match="n9"):
        built(state, asking(), Seat("n9", 0xF))


# --- a claim of its own ---------------------------------------------------------------------------------


def created(client: RecordingClient) -> list[Any]:
    return [each.body for each in client.writes if each.verb == "create"]


def patched(client: RecordingClient) -> list[tuple[str, Any]]:
    return [(each.subresource or "pod", each.body) for each in client.writes if each.verb == "patch"]


async def seated(state: ClusterState, *pods: Any) -> RecordingClient:
    client = RecordingClient()
    seater = Pinner(SimpleNamespace(client=client, state=state, bytes_of=lambda _: b""))  # type: ignore[arg-type] # all it needs
    for each in pods:
        state.on_pod(added(each))
        seater.pin(UID, each)
    seater.start()
    for _ in range(20):
        await asyncio.sleep(0)
    await seater.stop()
    return client


def gang(state: ClusterState, *seats: Seat) -> str:
    """A gang of ours with that plan; the name of its template."""
    state.on_kgwe(added(workload(count=8)))
    run = _with_claim(job(seats=seats, gpus=0), TEMPLATE)
    state.on_job(added(run))
    return dra_claims.template_name(run.metadata.name, seats, state.reader.cards)


async def test_who_shares_his_node_with_nobody_of_the_plan_needs_no_claim_of_his_own(state):
    name = gang(state, Seat("n1", 0b1111), Seat("n2", 0b1111))
    client = await seated(state, *(claiming_pod(f"p{n}", name, index=n, at="", gated=True) for n in (0, 1)))
    assert not created(client)
    assert [kind for kind, _ in patched(client)] == ["pod", "pod"]


async def test_ranks_on_one_node_get_claims_of_their_own_once_kubernetes_has_made_its(state):
    name = gang(state, Seat("n1", 0b1111), Seat("n1", 0b11110000))
    waiting = claiming_pod("p0", name, index=0, at="", gated=True)
    client = await seated(state, waiting, claiming_pod("p1", name, entered="generated", index=1, at="", gated=True))
    (made,) = created(client)
    assert made["metadata"]["ownerReferences"][0]["uid"] == "uid-p1"
    (request,) = made["spec"]["devices"]["requests"]
    listed = request["exactly"]["selectors"][0]["cel"]["expression"]
    assert [card for card in range(8) if f"'{uuid('n1', card)}'" in listed] == [4, 5, 6, 7]
    (status, entry), (place, _) = patched(client)
    assert (status, place) == ("status", "pod"), "the gate goes last, and p0 is left alone"
    (entered,) = entry["status"]["resourceClaimStatuses"]
    assert entered == {"name": dra_claims.CLAIM, "resourceClaimName": made["metadata"]["name"]}


async def test_a_rank_that_was_moved_claims_what_its_seat_is_now(state):
    old = gang(state, Seat("n1", 0b1111), Seat("n2", 0b1111))
    state.run_registry.move_seats(UID, (Seat("n1", 0b1111), Seat("n2", 0b11110000)))
    client = await seated(state, claiming_pod("p1", old, entered="generated", index=1, at="", gated=True))
    (made,) = created(client)
    assert (
        f"'{uuid('n2', 4)}'" in made["spec"]["devices"]["requests"][0]["exactly"]["selectors"][0]["cel"]["expression"]
    )


async def test_after_a_crash_between_claim_and_seat_nothing_is_made_twice(state):
    name = gang(state, Seat("n1", 0b1111), Seat("n1", 0b11110000))
    holding = Holding("n1", gpus=0b1111)
    before = claiming_pod("p0", name, index=0, at="", gated=True)
    mine = dra_claims.build_claim(before, holding, state.reader.cards, {})["metadata"]["name"]
    client = await seated(state, claiming_pod("p0", name, entered=mine, index=0, at="", gated=True))
    assert not created(client)
    assert [kind for kind, _ in patched(client)] == ["pod"]


def test_a_claim_whose_pod_is_not_known_is_counted_itself(state):
    state.on_claim(added(claim("theirs", (0,), of="uid-of-nobody")))
    assert mask(state) == 0xFE
