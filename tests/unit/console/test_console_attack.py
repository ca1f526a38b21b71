"""Users and strangers who take what others need: sign-ins, sessions, streams, and the time of the planner."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from tests.support.fakes.console_bed import make_fleet, make_pod, make_workload, open_console, put
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.apps.console import stream_places
from kgwe.apps.console.identity import ConsoleAuthenticator
from kgwe.apps.console.scaling_routes import ScalingRoutes
from kgwe.apps.console.scope import EVERYTHING, Scope
from kgwe.apps.console.sessions import Identity, Sessions
from kgwe.apps.console.stream import StreamRoutes
from kgwe.apps.console.stream_places import StreamPlaces
from kgwe.apps.console.work_routes import WhatIfBody, WorkRoutes
from kgwe.cli.processes.console_answers import WhatIfAnswers, read_documents
from kgwe.httpapi import problems
from kgwe.httpapi.authentication import TokenAuthenticator, User
from kgwe.httpapi.authorization import Readable
from kgwe.httpapi.routes import NoQuery
from kgwe.kube.api import resources
from kgwe.kube.api.kgwe.autoscalingpolicy import (
    AutoscalingPolicyStatus,
    LaunchRecord,
    PlannedNodes,
    ScaleAction,
    UnmetDemand,
)


def make_sessions() -> Sessions:
    return Sessions(idle_s=600, longest_s=3600, code_s=60)


class Reviewer:
    """An API server that knows one token."""

    async def create(self, _resource: Any, body: dict[str, Any]) -> dict[str, Any]:
        is_valid = body["spec"]["token"] == "good"  # noqa: S105 - a test's token
        return {"status": {"authenticated": is_valid, "user": {"username": "ann"} if is_valid else {}}}


async def test_strangers_who_guess_tokens_end_no_session() -> None:
    now = [0.0]
    tokens = TokenAuthenticator(Reviewer(), clock=lambda: now[0])  # type: ignore[arg-type] # the one call it makes
    console = ConsoleAuthenticator(tokens, make_sessions())
    for address in ("", "10.0.0.9"):
        for number in range(30):
            with pytest.raises(problems.Problem):
                await tokens.authenticate_token(f"bad{number}", address)
    assert (await console.find_user(Identity("ann", token="good"))).name == "ann"


def test_a_user_with_many_codes_and_sessions_takes_none_of_others() -> None:
    sessions = make_sessions()
    code = sessions.make_code(Identity("ann", token="a"))
    name, _ = sessions.start(Identity("ann", token="a"))
    for number in range(1100):
        sessions.make_code(Identity(f"mallory-{number % 60}", token="m"))
    first, _ = sessions.start(Identity("mallory", token="m"))
    for _ in range(10_100):
        sessions.start(Identity("mallory", token="m"))
    assert sessions.find(name).identity.name == "ann"
    assert sessions.redeem(code)[1].identity.name == "ann"
    with pytest.raises(problems.Problem):
        sessions.find(first)


def test_a_session_in_use_is_not_the_oldest() -> None:
    sessions = make_sessions()
    used, _ = sessions.start(Identity("ann"))
    idle, _ = sessions.start(Identity("ann"))
    sessions.find(used)
    for _ in range(49):
        sessions.start(Identity("ann"))
    sessions.find(used)
    with pytest.raises(problems.Problem):
        sessions.find(idle)


def test_when_all_places_are_taken_the_user_with_the_most_streams_loses_one() -> None:
    places = StreamPlaces()
    own = places.take("ann", "10.0.0.1")
    taken = []
    for number in range(400):
        user = f"system:serviceaccount:evil-{number % 8}:robot-{number}"
        with contextlib.suppress(problems.Problem):
            taken.append(places.take(user, f"10.0.1.{number}"))
    assert len(places) == stream_places.OF_ALL
    assert own.queue.empty()
    assert taken[0].queue.get_nowait() is None
    for place in [own, *taken]:
        places.release(place)
    assert len(places) == 0


def test_streams_have_limits_by_user_namespace_and_address() -> None:
    places = StreamPlaces()
    for _ in range(stream_places.OF_USER):
        places.take("ann", "a")
    with pytest.raises(problems.Problem):
        places.take("ann", "b")
    for number in range(stream_places.OF_NAMESPACE):
        places.take(f"system:serviceaccount:team:{number}", f"c{number}")
    with pytest.raises(problems.Problem):
        places.take("system:serviceaccount:team:more", "d")
    crowd = [places.take(f"user-{number}", "proxy") for number in range(stream_places.OF_ADDRESS + 1)]
    assert [place.queue.empty() for place in crowd].count(False) >= 1


class Scopes:
    """Gives every user the same scope, after other tasks had a turn."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    async def read(self, _user: User) -> Scope:
        await asyncio.sleep(0)
        return self.scope


class Busy:
    """Refuses every client."""

    def __init__(self, problem: problems.Problem) -> None:
        self.problem = problem

    async def authenticate(self, _request: Any) -> User:
        raise self.problem


def make_streams(problem: problems.Problem) -> Any:
    hub: Any = SimpleNamespace(open=lambda scope: SimpleNamespace(scope=scope, queues=set()))
    return StreamRoutes(hub, Scopes(EVERYTHING), Busy(problem))  # type: ignore[arg-type] # what it calls


async def test_streams_that_are_opened_in_parallel_are_counted() -> None:
    streams = make_streams(problems.too_many(1))
    request: Any = SimpleNamespace(client=SimpleNamespace(host="a"), state=SimpleNamespace())
    found = await asyncio.gather(
        *(streams.stream(User("ann"), NoQuery(), request) for _ in range(17)), return_exceptions=True
    )
    assert sum(isinstance(each, problems.Problem) for each in found) == 5


async def test_too_many_requests_revoke_no_stream() -> None:
    channel = SimpleNamespace(scope=EVERYTHING)
    assert await make_streams(problems.too_many(1))._is_same(channel, None)
    assert not await make_streams(problems.unauthorized("gone"))._is_same(channel, None)


async def test_a_label_takes_no_pod_into_a_workload_of_another_namespace() -> None:
    async with open_console([*make_fleet(1), make_workload("vision", "train", phase="Running")]) as bed:
        uid = next(iter(bed.watch.stores[resources.GPU_WORKLOAD].values())).metadata.uid
        label = {"kgwe.nvidia.io/workload-uid": uid}
        put(bed.api, make_pod("speech", "forged", 2, "h100-0000", labels=label))
        put(bed.api, make_pod("vision", "own", 1, "h100-0000", labels=label))
        await bed.wait(lambda: len(bed.watch.state.pods) == 2)
        rows = (await bed.read("/api/v1/workloads"))["items"]
    assert {(row["namespace"], row["name"]): row.get("gpusHeld") for row in rows} == {
        ("vision", "train"): 1.0,
        ("speech", "forged"): 2.0,
    }


@pytest.mark.parametrize("text", ["[" * 30_000, "- " * 30_000, "{a: " * 15_000])
def test_a_manifest_that_is_nested_too_deeply_is_refused_before_it_is_read(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The scanner in Python takes time that grows with the square of the depth.
    monkeypatch.setattr(yaml, "scan", None)
    with pytest.raises(errors.Permanent, match="nested too deeply"):
        read_documents(text)


async def test_a_bad_manifest_does_not_wait_for_the_planner() -> None:
    unused: Any = None
    routes = WorkRoutes(unused, unused, Scopes(EVERYTHING), WhatIfAnswers())  # type: ignore[arg-type] # what it calls
    async with routes._planning, asyncio.timeout(PATIENCE_S):
        with pytest.raises(errors.Permanent, match="nested too deeply"):
            await routes.plan(User("ann"), NoQuery(), WhatIfBody("[" * 1000))


async def test_work_of_other_namespaces_is_not_named_in_the_status_of_a_policy() -> None:
    status = AutoscalingPolicyStatus(
        launches=(LaunchRecord("r", "p", "t", "z", "spot", 1, "2026-01-01T00:00:00Z", owners=("ml/a", "secret/b")),),
        unmet=(UnmetDemand("ml/a", "NoOffer"), UnmetDemand("secret/b", "NoOffer"), UnmetDemand("secret-uid", "x")),
        plan=(PlannedNodes("p", "t", "z", "spot", 1, reason="secret/b"),),
        actions=(ScaleAction("2026-01-01T00:00:00Z", "ScaleUp", reason="for secret/b"),),
        lastScaleReason="for secret/b",
    )
    policy = SimpleNamespace(metadata=SimpleNamespace(name="p"), spec=None, status=status)
    watch: Any = SimpleNamespace(stores={resources.AUTOSCALING_POLICY: {"p": policy}})
    ml = Readable(everything=False, namespaces=frozenset({"ml"}))
    some = Scope(policies=True, pods=ml, workloads=ml, warp_workloads=ml)
    shown = []
    for scope in (some, EVERYTHING):
        routes = ScalingRoutes(watch, Scopes(scope), "")  # type: ignore[arg-type] # what it calls
        shown.append((await routes.read_policies(User("ann"), NoQuery())).policies[0].status)
    assert "secret" not in str(shown[0])
    assert [each.owner for each in shown[0].unmet] == ["ml/a"]
    assert shown[0].launches[0].owners == ("ml/a",)
    assert shown[1] == status
