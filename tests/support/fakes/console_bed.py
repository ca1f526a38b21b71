"""A console over an API server in memory: its API, with rights that a test chooses."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from tests.support.fakes.asgi import Answer, get
from tests.support.fakes.memory_api import MemoryApi
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.apps.console.api import Sources, make_console_api
from kgwe.apps.console.cluster_watch import ClusterWatch
from kgwe.apps.console.sessions import Sessions
from kgwe.cli.processes.console_answers import WhatIfAnswers
from kgwe.httpapi import problems
from kgwe.httpapi.authentication import User, read_token
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient
from kgwe.kube.client.informer import wait_synced
from kgwe.local.fleet import gpunodes, models
from kgwe.model.simfleet import inventory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from starlette.routing import BaseRoute

    from kgwe.apps.console.api import ConsoleApi
    from kgwe.httpapi.authorization import Right

NOW = "2026-01-01T00:00:00Z"
OWN = [
    each
    for each in vars(resources).values()
    if isinstance(each, resources.Resource) and each.group in ("kgwe.nvidia.io", "gpu.warp.dev")
]
#: (resource, namespace); an empty namespace: all of them
Grants = frozenset[tuple[str, str]]


class Tokens:
    """The token is the name of the user; `expired` is no user."""

    async def authenticate(self, request: Any) -> User:
        return await self.authenticate_token(read_token(request), "")

    async def authenticate_token(self, token: str, _address: str) -> User:
        if token == "expired":  # noqa: S105 - a test's token
            raise problems.unauthorized("the token is not valid")
        return User(token)


@dataclass
class Rights:
    """`admin` may list everything, others what `grants` says."""

    grants: dict[str, Grants] = field(default_factory=dict)

    async def may(self, user: User, right: Right) -> bool:
        if user.name == "admin":
            return True
        name = f"{right.resource}.{right.group}" if right.group else right.resource
        found = self.grants.get(user.name, frozenset())
        return (name, "") in found or (bool(right.namespace) and (name, right.namespace) in found)


@dataclass
class ConsoleBed:
    """The console of one cluster."""

    api: MemoryApi
    watch: ClusterWatch
    console: ConsoleApi
    rights: Rights
    sessions: Sessions

    async def get(self, path: str, user: str = "admin", **headers: str) -> Answer:
        sent = {"authorization": f"Bearer {user}"} if user else {}
        return await get(self.console.api.asgi, path, sent | headers)

    async def read(self, path: str, user: str = "admin") -> Any:
        answer = await self.get(path, user)
        assert answer.status == 200, answer.body
        return answer.json()

    async def wait(self, is_done: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not is_done():  # noqa: ASYNC110 - the informers have no event for it
                await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def open_console(
    objects: Iterable[dict[str, Any]], *, pages: Sequence[BaseRoute] = (), **sources: Any
) -> AsyncIterator[ConsoleBed]:
    """Yield a console of a cluster with these objects."""
    api = MemoryApi(OWN)
    for each in objects:
        put(api, each)
    watch = ClusterWatch(KubeClient(api))
    await watch.prepare()
    rights, sessions = Rights(), Sessions(idle_s=600, longest_s=3600, code_s=60)
    tokens: Any = Tokens()
    made = make_console_api(
        Sources(watch, WhatIfAnswers(), _refuse, _refuse, **sources), tokens, rights, sessions, others=pages
    )
    tasks = [asyncio.create_task(informer.run()) for informer in watch.informers]
    try:
        await wait_synced(*watch.informers)
        yield ConsoleBed(api, watch, made, rights, sessions)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _refuse() -> Any:
    raise errors.Transient("there is no ledger")


def put(api: MemoryApi, body: dict[str, Any]) -> None:
    """Create an object."""
    kinds = {(each.api_version, each.kind): each for each in (*OWN, resources.NODE, resources.POD, resources.JOB)}
    kind = kinds[body["apiVersion"], body["kind"]]
    api.call("POST", kind.path(namespace=body["metadata"].get("namespace")), body)


def make_fleet(count: int, model: str = "dgx-h100") -> list[dict[str, Any]]:
    """Return Nodes and GPUNodes."""
    found: list[dict[str, Any]] = []
    for node in inventory.expand_fleet(models.load(model), count):
        found.append({"apiVersion": "v1", "kind": "Node", **msgspec.to_builtins(gpunodes.node_manifest(node, now=NOW))})
        described = msgspec.to_builtins(gpunodes.gpu_node(node, ""))
        found.append({"apiVersion": "kgwe.nvidia.io/v1", "kind": "GPUNode", **described})
    return found


def make_pod(namespace: str, name: str, gpus: int, node: str = "", **meta: Any) -> dict[str, Any]:
    """Return a pod that asks for GPUs, bound if a node is given."""
    limits = {"nvidia.com/gpu": str(gpus)}
    spec: dict[str, Any] = {"containers": [{"name": "c", "resources": {"limits": limits, "requests": limits}}]}
    if node:
        spec["nodeName"] = node
    status = {"phase": "Running" if node else "Pending"}
    metadata = {"namespace": namespace, "name": name, "uid": f"uid-{namespace}-{name}", **meta}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def make_workload(namespace: str, name: str, gpus: int = 8, **status: Any) -> dict[str, Any]:
    """Return a GPUWorkload."""
    return {
        "apiVersion": "kgwe.nvidia.io/v1",
        "kind": "GPUWorkload",
        "metadata": {"namespace": namespace, "name": name, "uid": f"uid-{namespace}-{name}"},
        "spec": {"workloadType": "Training", "gpuRequirements": {"count": gpus}},
        "status": status,
    }
