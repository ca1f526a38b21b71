"""A tenant with rights in one namespace tries all that KGWE reads, alone and in pairs, against another namespace.

The victim has a workload of one pod, a gang of two, an inference workload and a gang of plain pods, all of them placed,
and one of each that waits. The tenant writes labels, annotations, owner references, gates and pins on pods, Jobs,
Deployments and ResourceClaims of its own, with values copied from the victim's objects. While the forgeries are there
every pod of the victim restarts. Whatever is tried: no seat, node, GPU, plan or phase of the victim changes.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.support.builders import tenant_surface
from tests.support.builders.claims import resource_slice
from tests.support.builders.objects import added, make, node, owned_by, removed

from kgwe.apps.scheduler.pods import pinner
from kgwe.cluster.gangs.leader_actions import LeaderActions
from kgwe.cluster.registry.announcer import ClusterListener
from kgwe.cluster.state import run_state
from kgwe.cluster.state.cluster_state import ClusterState
from kgwe.cluster.workload import metadata_keys, placement_annotations
from kgwe.cluster.workload.signatures import Signer
from kgwe.kube.api import resources
from kgwe.kube.dialects import kinds
from kgwe.placement.live.holding import Holding
from kgwe.placement.planning.plan import Seat

if TYPE_CHECKING:
    from collections.abc import Iterator

VICTIM, TENANT = "victim", "tenant"
SOURCE = Path(__file__).parents[3] / "src" / "kgwe"
KEY = re.compile(r"[a-z0-9][a-z0-9.-]*\.[a-z][a-z0-9-]*/[A-Za-z0-9._-]*")
OWNER = f"gang:{VICTIM}/kgwe.nvidia.io/g"

SINGLE, GANG, SERVING, WAITING = (f"{digit * 8}-aaaa-bbbb-cccc-000000000000" for digit in "1234")


def keys_in(part: str) -> Iterator[tuple[str, str]]:
    """(key, module) of everything in the source that reads like the key of a label or annotation."""
    for path in sorted((SOURCE / part).rglob("*.py")):
        name = ".".join(("kgwe", *path.relative_to(SOURCE).with_suffix("").parts))
        names = vars(importlib.import_module(name))
        for each in ast.walk(ast.parse(path.read_text())):
            found = text_of(each, names)
            if "/" in found and KEY.fullmatch(found):
                yield found, name
        # Put together in a loop.
        for listed in names.values():
            for each in listed if isinstance(listed, tuple | list | set | frozenset | dict) else ():
                if isinstance(each, str) and KEY.fullmatch(each):
                    yield each, name


def text_of(part: ast.AST, names: dict[str, Any]) -> str:
    """The text of a constant, or of one that begins with the name of another; empty: something else."""
    if isinstance(part, ast.Constant):
        return part.value if isinstance(part.value, str) else ""
    if isinstance(part, ast.JoinedStr):
        texts = [text_of(each, names) for each in part.values]
        return "".join(texts) if all(texts) else ""
    if isinstance(part, ast.FormattedValue):
        return text_of(part.value, names)
    if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Add):
        left, right = text_of(part.left, names), text_of(part.right, names)
        return left + right if left and right else ""
    found = names.get(part.id, "") if isinstance(part, ast.Name) else ""
    if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
        found = getattr(names.get(part.value.id), part.attr, "")
    return found if isinstance(found, str) else ""


def test_every_key_in_the_source_is_in_the_table() -> None:
    known = tenant_surface.SURFACE.keys() | {*tenant_surface.PREFIXES, *tenant_surface.NOT_PLACEMENT}
    unknown = {
        key: module
        for part in ("agentapi", "apps", "cluster", "kube", "model", "placement", "records", "sharing")
        for key, module in keys_in(part)
        if key not in known and not key.startswith(tenant_surface.NOT_TENANTS)
    }
    assert unknown == {}, "say in tests/support/builders/tenant_surface.py what a tenant may put there"


# --- the victim -------------------------------------------------------------------------------------------


def meta(name: str, uid: str, namespace: str = VICTIM, **more: Any) -> dict[str, Any]:
    return {"name": name, "namespace": namespace, "uid": uid, "creationTimestamp": "2026-01-01T00:00:00Z"} | more


def spec(gpus: int = 4, at: str = "", *, pin: str = "", gated: bool = False, **more: Any) -> dict[str, Any]:
    container = {"name": "c", "resources": {"requests": {"nvidia.com/gpu": str(gpus)}}}
    made: dict[str, Any] = {"nodeName": at, "containers": [container], **more}
    if pin:
        placement_annotations.pin_to_node(made, pin)
    if gated:
        made["schedulingGates"] = [{"name": placement_annotations.GATE}]
    return made


class World:
    """The victim's objects in a state with its gangs, and what the victim has."""

    def __init__(self) -> None:
        self.signer = Signer(b"k" * 32)
        self.state = ClusterState(self.signer)
        self.heard: list[tuple[str, str, str]] = []
        self._later: list[Any] = []
        for name in ("n1", "n2", "n3", "n4", "n5"):
            self.state.on_node(added(node(name)))
        self.state.on_slice(added(resource_slice("n5")))
        self.gangs = self.state.gangs
        group = {"metadata": {"name": "g", "namespace": TENANT}, "spec": {"minMember": 1}}
        for kind in (kinds.COSCHEDULING, kinds.VOLCANO):
            self.state.group_objects.add_store(kind, {f"{TENANT}/g": group})
        self.pods: list[Any] = []
        #: made by the Job controller when the first pod of the gang is gone; it waits for its seat
        about = meta(
            "next",
            "uid-next",
            labels={metadata_keys.UID_LABEL: GANG},
            annotations={placement_annotations.INDEX_ANNOTATION: "0"},
            ownerReferences=owned_by("job-2", "Job", job_name("w2", GANG)),
        )
        self.next = make(resources.POD.type, {"metadata": about, "spec": spec(gated=True)})
        self._make_victim()
        self._listen()

    def _make_victim(self) -> None:
        state = self.state
        for uid, count, name in ((SINGLE, 4, "w1"), (GANG, 8, "w2"), (SERVING, 8, "w3"), (WAITING, 4096, "w4")):
            phase = "Pending" if uid == WAITING else "Running"
            wanted = {"gpuRequirements": {"count": count}}
            body = {"metadata": meta(name, uid, generation=1), "spec": wanted, "status": {"phase": phase}}
            state.on_kgwe(added(make(resources.GPU_WORKLOAD.type, body)))
        single, gang, serving = (
            (Seat("n1", 0xF),),
            (Seat("n1", 0xF0), Seat("n2", 0xF)),
            (Seat("n2", 0xF0), Seat("n3", 0xF)),
        )
        state.on_job(added(self._run(resources.JOB, SINGLE, "w1", "job-1", single)))
        state.on_job(added(self._run(resources.JOB, GANG, "w2", "job-2", gang)))
        state.on_deployment(added(self._run(resources.DEPLOYMENT, SERVING, "w3", "dep-3", serving)))
        self._pod("p1", SINGLE, owned_by("job-1", "Job", job_name("w1", SINGLE)), single[0])
        for number, seat in enumerate(gang):
            notes = {placement_annotations.INDEX_ANNOTATION: str(number)}
            self._pod(f"p2-{number}", GANG, owned_by("job-2", "Job", job_name("w2", GANG)), seat, number, **notes)
        for number, seat in enumerate(serving):
            replicas = owned_by("rs", "ReplicaSet", f"{job_name('w3', SERVING)}-5d9c")
            self._pod(f"p3-{number}", SERVING, replicas, seat, number)
        named = {"kgwe.nvidia.io/gang": "g", "kgwe.nvidia.io/gang-size": "2"}
        for number, seat in enumerate((Seat("n3", 0xF0), Seat("n4", 0xF))):
            self._pod(f"g-{number}", "", [], seat, number, **named)
        waits = {"kgwe.nvidia.io/gang": "h", "kgwe.nvidia.io/gang-size": "3"}
        body = {"metadata": meta("h-0", "uid-h-0", annotations=waits), "spec": spec(gated=True)}
        self._add(make(resources.POD.type, body))

    def _run(self, kind: Any, uid: str, name: str, run: str, seats: tuple[Seat, ...]) -> Any:
        notes = {
            placement_annotations.PLAN_ANNOTATION: placement_annotations.encode(seats),
            metadata_keys.GENERATION_ANNOTATION: "1",
        }
        labels = {
            metadata_keys.UID_LABEL: uid,
            metadata_keys.RUN_LABEL: run,
            metadata_keys.MANAGED_BY: metadata_keys.CONTROLLER_NAME,
        }
        pin = seats[0].node if len(seats) == 1 else ""
        names = ("replicas",) if kind is resources.DEPLOYMENT else ("completions", "parallelism")
        count = dict.fromkeys(names, len(seats))
        body: dict[str, Any] = {
            "metadata": meta(job_name(name, uid), run, labels=labels, annotations=notes, ownerReferences=owned_by(uid)),
            "spec": {**count, "template": {"spec": spec(pin=pin)}},
        }
        self.signer.sign_run(body, uid, seats)
        body["spec"]["template"].pop("metadata", None)
        return make(kind.type, body)

    def _pod(self, name: str, uid: str, owners: Any, seat: Seat, number: int = 0, **notes: str) -> None:
        """A pod in its seat, as the seater left it."""
        labels = {metadata_keys.UID_LABEL: uid, metadata_keys.RUN_LABEL: "dep-3"} if uid else {}
        about = meta(name, f"uid-{name}", labels=labels, annotations=notes, ownerReferences=owners)
        bare = make(resources.POD.type, {"metadata": about, "spec": spec()})
        place, owner = Holding(seat.node, {}, seat.gpus), uid or OWNER
        signature = self.signer.sign_seat(bare, owner, number, place)
        given = pinner.pin_patch(bare, owner, number, place, signature)["metadata"]["annotations"]
        said = notes | {key: text for key, text in given.items() if text is not None}
        body = {"metadata": about | {"annotations": said}, "spec": spec(at=seat.node, pin=seat.node)}
        self._add(make(resources.POD.type, body | {"status": {"phase": "Running"}}))

    def _add(self, pod: Any) -> None:
        self.pods.append(pod)
        self.state.on_pod(added(pod))

    def _listen(self) -> None:
        def hear(word: str) -> Any:
            return lambda owner, *rest: self.heard.append((word, str(owner), str(rest)))

        nothing: Any = lambda *_: None  # noqa: E731
        self.state.announcer.subscribe(
            ClusterListener(
                workload_changed=nothing,
                workload_touched=nothing,
                capacity_freed=nothing,
                workload_removed=hear("gone"),
                pod_unseated=hear("unseated"),
            )
        )
        self.gangs.start_leading(
            LeaderActions(
                request_plan=lambda ask: self.heard.append(("want", ask.owner, str(ask))),
                withdraw_request=hear("forget"),
                assign_seat=hear("seat"),
                remove_gate=nothing,
                call_soon=self._later.append,
            )
        )
        self.settle()

    def settle(self) -> None:
        while self._later:
            self._later.pop()()

    def facts(self) -> dict[str, Any]:
        """All that the victim has."""
        state, ledger = self.state, self.state.ledger
        owners = (SINGLE, GANG, SERVING, WAITING, OWNER, f"gang:{VICTIM}/kgwe.nvidia.io/h")
        found: dict[str, Any] = {"workloads": {key: each for key, each in state.workloads.items() if VICTIM in key[1]}}
        for owner in owners:
            run, workload, group = state.runs.get(owner), state.find_workload(owner), self.gangs.group(owner)
            seats = ledger.booked_seats(owner)
            found[owner] = (
                {number: (each, ledger.pod_in(owner, number)) for number, each in seats.items()},
                ledger.find_short_seats(owner),
                run,
                run and workload and run_state.is_running(workload, run, state.pods_of(run)),
                run and workload and run_state.find_unplaced(state, workload, run, state.pods_of(run)),
                run
                and (
                    set(state.pods_of(run)),
                    state.run_registry.taken_seats(owner),
                    list(state.run_registry.list_unseated(owner)),
                ),
                group and (set(group.members), group.seats, group.awaited, group.problem, group.lacking),
            )
        for pod in self.pods:
            found[pod.metadata.key] = (state.seat_of(pod), ledger.fleet.holding(pod.metadata.uid), state.run_of(pod))
        return found

    def free(self) -> dict[str, int]:
        """Free GPUs by node: what those have who wait, the victim among them."""
        snapshot = self.state.fleet.snapshot
        return {each.name: int(snapshot.free[number]).bit_count() for number, each in enumerate(snapshot.nodes)}

    def restart(self) -> None:
        """Every pod of the victim goes; then others come in their places. Nothing of theirs is free meanwhile."""
        bound = [pod for pod in self.pods if pod.spec.nodeName]
        kept = {owner: dict(self.state.ledger.booked_seats(owner)) for owner in (SINGLE, GANG, SERVING)}
        for pod in bound:
            if pod.metadata.labels:
                self.state.on_pod(removed(pod))
        assert {owner: dict(self.state.ledger.booked_seats(owner)) for owner in kept} == kept
        assert all(not self.state.ledger.pod_in(owner, number) for owner in kept for number in kept[owner])
        self.heard.clear()
        self.state.on_pod(added(self.next))
        assert [(word, owner) for word, owner, _ in self.heard] == [("unseated", GANG)]
        assert "uid-next" in self.heard[0][2]
        assert self.state.seat_of(self.next) == (GANG, 0)
        self.state.on_pod(removed(self.next))
        for pod in bound:
            if pod.metadata.labels:
                self.state.on_pod(added(pod))


def job_name(name: str, uid: str) -> str:
    return f"{name}-job-{uid[:8]}"


# --- the tenant -------------------------------------------------------------------------------------------


@dataclass
class Forgery:
    """What the tenant writes, whatever object it is on."""

    annotations: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    owners: list[dict[str, Any]] = field(default_factory=list)
    pod: dict[str, Any] = field(default_factory=dict)
    pin: str = ""
    name: str = "forged"

    def meta(self, uid: str) -> dict[str, Any]:
        said = {"labels": self.labels, "annotations": self.annotations, "ownerReferences": self.owners}
        return meta(self.name, uid, TENANT, **said)

    def leaves(self) -> dict[str, int]:
        """Free GPUs beside it: a pod that is bound, and a claim that was allocated, really have theirs."""
        free = {"n1": 0, "n2": 0, "n3": 0, "n4": 4, "n5": 8}
        free["n5"] -= 4 * (self.pod.get("at") == "n5") + bool(self.owners)
        return free

    def objects(self, world: World) -> list[tuple[Any, Any]]:
        """(listener, object) for each kind that can carry it."""
        state = world.state
        of_pod = spec(at=self.pod.get("at", ""), pin=self.pin, gated=self.pod.get("gated", False))
        group = {key: text for key, text in self.pod.items() if key == "schedulingGroup"}
        template = {"spec": of_pod}
        bodies: list[tuple[Any, Any, dict[str, Any]]] = [
            (state.on_pod, resources.POD, {"spec": of_pod | group, "status": {"phase": "Pending"}}),
            (state.on_job, resources.JOB, {"spec": {"completions": 1, "template": template}}),
            (state.on_job, resources.JOB, {"spec": {"completions": 2, "template": template}}),
            (state.on_deployment, resources.DEPLOYMENT, {"spec": {"replicas": 2, "template": template}}),
        ]
        if self.owners:
            given = {"driver": "gpu.nvidia.com", "pool": "n5", "device": "gpu-7"}
            status = {"allocation": {"devices": {"results": [given]}}}
            bodies.append((state.on_claim, resources.RESOURCE_CLAIM, {"status": status}))
        return [
            (listen, make(kind.type, {"metadata": self.meta(f"forged-{number}"), **body}))
            for number, (listen, kind, body) in enumerate(bodies)
        ]


class Try:
    """One thing the tenant writes."""

    def __init__(self, words: str, **parts: Any) -> None:
        self.words = words
        self._parts = parts

    def write(self, forgery: Forgery) -> None:
        for name, value in self._parts.items():
            if isinstance(value, dict):
                getattr(forgery, name).update(value)
            elif isinstance(value, list):
                forgery.owners = value
            else:
                setattr(forgery, name, value)


def copied(world: World) -> dict[str, set[str]]:
    """Key -> what stands in the victim's objects."""
    found: dict[str, set[str]] = {}
    objects = [*world.pods, *(run for run in world.state.runs.values())]
    for each in objects:
        about = each.metadata if hasattr(each, "metadata") else each.meta
        for key, text in [*about.labels.items(), *about.annotations.items()]:
            found.setdefault(key, set()).add(text)
    return found


def tries(world: World) -> list[Try]:
    found: list[Try] = []
    from_victim = copied(world)
    for key, values in tenant_surface.SURFACE.items():
        texts = dict.fromkeys((*values, *sorted(from_victim.get(key, ()))[:3]))
        found += [Try(f"annotation {key}={text}", annotations={key: text}) for text in texts]
        found.append(Try(f"label {key}={next(iter(texts))}", labels={key: next(iter(texts))}))
    references = {
        "job of one": owned_by("job-1", "Job", job_name("w1", SINGLE)),
        "job of a gang": owned_by("job-2", "Job", job_name("w2", GANG)),
        "replica set": owned_by("rs", "ReplicaSet", f"{job_name('w3', SERVING)}-5d9c"),
        "deployment": owned_by("dep-3", "Deployment", job_name("w3", SERVING)),
        "workload": owned_by(GANG),
        "waiting workload": owned_by(WAITING, name="w4"),
        "pod": owned_by("uid-p1", "Pod", "p1"),
        "pod group": owned_by("group", "PodGroup", "g"),
    }
    found += [Try(f"owner reference to a {words}", owners=each) for words, each in references.items()]
    found += [Try(f"pin to {name}", pin=name) for name in ("n1", "n2", "n3", "n5")]
    found += [Try(f"bound to {name}", pod={"at": name}) for name in ("n1", "n5")]
    found += [
        Try("the gate", pod={"gated": True}),
        Try("scheduling group", pod={"schedulingGroup": {"podGroupName": "g"}}),
    ]
    found += [Try(f"the name of {name}", name=name) for name in (job_name("w1", SINGLE), job_name("w4", WAITING), "p1")]
    return found


ALONE = Try("a pod alone")
#: with the name of the victim's gang; forging a seat takes this besides the seat and a pin
MEMBER = Try("member of a gang", annotations={"kgwe.nvidia.io/gang": "g", "kgwe.nvidia.io/gang-size": "1000"})


def attack(world: World, before: dict[str, Any], *parts: Try) -> None:
    words = " and ".join(each.words for each in parts)
    forgery = Forgery()
    for each in parts:
        each.write(forgery)
    world.heard.clear()
    objects = forgery.objects(world)
    for listen, obj in objects:
        listen(added(obj))
    world.settle()
    assert world.facts() == before, words
    heard = [each for each in world.heard if VICTIM in each[1] or each[1] in (SINGLE, GANG, SERVING, WAITING)]
    assert heard == [], words
    assert world.free() == forgery.leaves(), f"{words}: reserves what nobody gave it"
    world.restart()
    world.settle()
    assert world.facts() == before, f"{words}, when the victim's pods restart"
    for listen, obj in reversed(objects):
        listen(removed(obj))
    world.settle()
    assert world.facts() == before, f"{words}, gone"


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(scope="module")
def before(world: World) -> dict[str, Any]:
    found = world.facts()
    assert found[SINGLE][3] is True
    assert found[GANG][3] is True
    assert found[SERVING][3] is True
    assert {number: held[0].node for number, held in found[OWNER][0].items()} == {0: "n3", 1: "n4"}
    assert all(taken for owner in (SINGLE, GANG, SERVING, OWNER) for _, taken in found[owner][0].values())
    return found


@pytest.mark.parametrize("base", [ALONE, MEMBER], ids=lambda each: each.words)
def test_nothing_that_a_tenant_writes_changes_anything_of_the_victim(
    world: World, before: dict[str, Any], base: Try
) -> None:
    for each in tries(world):
        attack(world, before, base, each)


def attack_in_pairs(world: World, before: dict[str, Any], base: Try, step: int = 1) -> int:
    pairs = list(itertools.combinations(tries(world), 2))[::step]
    for pair in pairs:
        attack(world, before, base, *pair)
    return len(pairs)


@pytest.mark.parametrize("step", [401, pytest.param(25, marks=pytest.mark.slow)])
@pytest.mark.parametrize("base", [ALONE, MEMBER], ids=lambda each: each.words)
def test_nor_do_two_together(world: World, before: dict[str, Any], base: Try, step: int) -> None:
    """One in so many of all pairs; all of them below."""
    attack_in_pairs(world, before, base, step)


@pytest.mark.soak
@pytest.mark.parametrize("base", [ALONE, MEMBER], ids=lambda each: each.words)
def test_nor_do_any_two_together(world: World, before: dict[str, Any], base: Try) -> None:
    count = len(tries(world))
    assert attack_in_pairs(world, before, base) == count * (count - 1) // 2


def test_nor_does_a_copy_of_everything(world: World, before: dict[str, Any]) -> None:
    """Each of the victim's pods and runs once more in the tenant's namespace, gated, pinned and bound."""
    copies: list[tuple[Any, Any]] = []
    for number, pod in enumerate(world.pods):
        for at in ("", pod.spec.nodeName):
            about = msgspec.structs.replace(pod.metadata, namespace=TENANT, uid=f"copy-{number}-{at}")
            body = msgspec.structs.replace(pod.spec, nodeName=at)
            copies.append((world.state.on_pod, msgspec.structs.replace(pod, metadata=about, spec=body)))
    for owner in (SINGLE, GANG):
        run = world.state.runs[owner]
        about = msgspec.structs.replace(run.meta, namespace=TENANT, uid=f"copy-{owner}")
        copies.append(
            (
                world.state.on_job,
                make(resources.JOB.type, {"metadata": msgspec.to_builtins(about), "spec": {"completions": run.pods}}),
            )
        )
    for listen, obj in copies:
        listen(added(obj))
    world.settle()
    assert world.facts() == before
    world.restart()
    world.settle()
    assert world.facts() == before
    for listen, obj in copies:
        listen(removed(obj))
    assert world.facts() == before
