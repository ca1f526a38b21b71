"""The same job in the words of every system, on a real cluster: the same plan, with the rights of deploy/rbac.yaml.

Of the other systems only their definitions are there, as on a cluster on which their schedulers no longer run.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import yaml
from tests.support.builders import dialect_wishes
from tests.support.clusters.pods import pod
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.kube.dialects import KINDS, find_readable
from kgwe.local.cluster.components import Features

if TYPE_CHECKING:
    from tests.support.clusters.pods import Live

    from kgwe.kube.api.resources import Resource
    from kgwe.kube.client.client import KubeClient

FEATURES = Features(("GenericWorkload=true",), ("scheduling.k8s.io/v1alpha2",))
NAMESPACE = "train"
# Of Kubernetes itself.
BUILT_IN = ("batch", "scheduling.k8s.io")


def definition(kind: Resource[Any]) -> dict[str, Any]:
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": kind.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}
    return {
        "metadata": {
            "name": f"{kind.plural}.{kind.group}",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1111"},
        },
        "spec": {
            "group": kind.group,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "names": {"plural": kind.plural, "singular": kind.kind.lower(), "kind": kind.kind},
            "versions": [version],
        },
    }


async def define(client: KubeClient) -> set[tuple[str, str]]:
    """Define them all; returns what may be written then."""
    wanted = {(kind.group, kind.plural): kind for kind in reversed(KINDS) if kind.group not in BUILT_IN}
    for kind in wanted.values():
        await client.apply(resources.CRD, definition(kind))
    async with asyncio.timeout(PATIENCE_S):
        while not {*wanted.values()} <= {*(await find_readable(client))[0]}:  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.2)
    return {(kind.api_version, kind.kind) for kind in (await find_readable(client))[0] if kind is not resources.JOB}


async def submit(client: KubeClient, text: str) -> list[str]:
    """Everything in the text; returns the names of the pods, in the order of their ranks."""
    owners: dict[str, str] = {}
    names = []
    for document in yaml.safe_load_all(text):
        if document["kind"] != "Pod":
            key = document["apiVersion"], document["kind"]
            kind = next(kind for kind in KINDS if (kind.api_version, kind.kind) == key)
            claimed = document["metadata"].pop("uid", "")
            made = await create(client, kind, document, NAMESPACE if kind.namespaced else None)
            owners[claimed] = made.metadata.uid
            continue
        for number in range(document.pop("count", 8)):
            said = msgspec.json.encode(document).decode().replace("$i", str(number)).replace("$q", str(number // 4))
            for claimed, uid in owners.items():
                said = said.replace(f'"uid":"{claimed}"', f'"uid":"{uid}"')
            body = msgspec.json.decode(said)
            like = pod("any", 8)
            meta = {
                **body["metadata"],
                "annotations": like["metadata"]["annotations"] | body["metadata"].get("annotations", {}),
            }
            await client.create(
                resources.POD, {"metadata": meta, "spec": like["spec"] | body.get("spec", {})}, NAMESPACE
            )
            names.append(meta["name"])
    return names


async def create(client: KubeClient, kind: Resource[Any], body: dict[str, Any], namespace: str | None) -> Any:
    """A definition is announced a moment before its storage is ready."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await client.create(kind, body, namespace)
            except (errors.NotFound, errors.Transient):
                await asyncio.sleep(0.1)


async def clear(live: Live) -> None:
    client = live.bed.client
    for kind in (await find_readable(client))[0]:
        for each in await client.list(kind, NAMESPACE if kind.namespaced else None):
            with contextlib.suppress(errors.NotFound):
                await client.delete(kind, each.metadata.name, each.metadata.namespace or None)
    for each in list(live.bed.pods.store.values()):
        with contextlib.suppress(errors.NotFound):
            await client.delete(resources.POD, each.metadata.name, each.metadata.namespace, grace_s=0)
    await live.bed.until(lambda: not live.bed.pods.store)


async def test_the_same_job_in_every_dialect_gets_the_same_nodes(live: Live) -> None:
    client = live.bed.client
    await client.apply(resources.NAMESPACE, {"metadata": {"name": NAMESPACE}})
    await live.nodes({"a": 4, "d": 9})
    # Started before anybody has defined anything: it finds the kinds when they come.
    await live.scheduler(group_kinds_seconds="0.5")
    known = await define(client)
    plans: dict[str, list[str]] = {}
    for dialect, text in dialect_wishes.REQUIRED.items():
        kinds = {(each["apiVersion"], each["kind"]) for each in yaml.safe_load_all(text) if each["kind"] != "Pod"}
        if not kinds <= known:
            continue  # older than this Kubernetes, or a Job, which makes its own pods: test_extender has those
        # kwok deletes pods by name, sometimes twice: a new pod of the same name may be deleted with the old one.
        names = await submit(client, text.replace("llama", f"llama{len(plans)}"))
        bound = await bound_all(live, names, dialect)
        plans[dialect] = [bound[name] for name in names]
        await clear(live)
    assert len(plans) >= 5
    expected = plans["kgwe"]
    assert {node.split("-")[0] for node in expected} == {"d"}
    assert {dialect: nodes for dialect, nodes in plans.items() if nodes != expected} == {}


async def bound_all(live: Live, names: list[str], dialect: str) -> dict[str, str]:
    def bound() -> dict[str, str]:
        pods = live.bed.pods.store.values()
        return {each.metadata.name: each.spec.nodeName for each in pods if each.spec.nodeName}

    try:
        await live.bed.until(lambda: bound().keys() >= {*names})
    except (TimeoutError, pytest.fail.Exception):
        said = [
            f"{each.metadata.name}: {condition.reason} {condition.message}"
            for each in live.bed.pods.store.values()
            for condition in each.status.conditions
        ]
        gangs = (await live.snapshot()).get("gangs")
        pytest.fail(f"{dialect}: only {sorted(bound())} of {names} are bound; {said}; {gangs}")
    return bound()
