"""Instances that Karpenter launches: one NodeClaim each, without a NodePool, so that only KGWE removes them.

A NodeClaim is named after its request and number, so a repeated call creates none twice. Karpenter deletes a NodeClaim
that it cannot launch: then there is no capacity. Karpenter has no gangs, so they are best effort: if one NodeClaim of a
gang cannot be launched, the others are deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

from kgwe import errors
from kgwe.cloud.kubernetes.request_book import DONE, OPEN, RequestBook, translate_error
from kgwe.cloud.provider import (
    CLUSTER_TAG,
    POOL_TAG,
    REQUEST_TAG,
    CapacityType,
    GangSupport,
    Instance,
    InstanceState,
    InterruptionNotice,
    LaunchError,
    LaunchErrorKind,
    LaunchResult,
    TopologySupport,
    Traits,
)
from kgwe.kube.api import timestamp
from kgwe.kube.api.resources import Resource

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from kgwe.cloud.provider import LaunchRequest
    from kgwe.kube.client.client import KubeClient

NODE_CLAIM: Final = Resource("karpenter.sh", "v1", "nodeclaims", "NodeClaim", namespaced=False, type=dict[str, Any])
BOOK: Final = "kgwe-node-claims"
TYPE_LABEL: Final = "node.kubernetes.io/instance-type"
ZONE_LABEL: Final = "topology.kubernetes.io/zone"
CAPACITY_LABEL: Final = "karpenter.sh/capacity-type"
_PENDING: Final = "karpenter:///"
_TEMPLATE_PARTS: Final = 3
_ALIVE: Final = frozenset({InstanceState.LAUNCHING, InstanceState.RUNNING})
#: Words in the message of a failed launch that tell its kind.
_WORDS: Final = (
    ("requestlimit", LaunchErrorKind.THROTTLED),
    ("throttl", LaunchErrorKind.THROTTLED),
    ("quota", LaunchErrorKind.QUOTA),
    ("limitexceeded", LaunchErrorKind.QUOTA),
    ("maxspotinstancecount", LaunchErrorKind.QUOTA),
    ("unauthorized", LaunchErrorKind.AUTHENTICATION),
    ("accessdenied", LaunchErrorKind.AUTHENTICATION),
    ("insufficient", LaunchErrorKind.NO_CAPACITY),
    ("invalid", LaunchErrorKind.BAD_TEMPLATE),
    ("notfound", LaunchErrorKind.BAD_TEMPLATE),
)


class KarpenterClaims:
    """Provider of NodeClaims. The template of a request is a node class: `GROUP/KIND/NAME`."""

    name: Final = "karpenter"
    traits: Final = Traits(gangs=GangSupport.BEST_EFFORT, topology=TopologySupport.OBSERVED_AFTER_JOIN, settle_s=10.0)

    def __init__(
        self,
        client: KubeClient,
        *,
        cluster: str,
        namespace: str = "kgwe-system",
        wait_s: float = 60.0,
        poll_s: float = 1.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._book = RequestBook(client, BOOK, namespace)
        self._wait_s = wait_s
        self._poll_s = poll_s
        self._clock = clock

    async def launch(self, request: LaunchRequest) -> LaunchResult:
        try:
            return await self._launch(request)
        except LaunchError as error:
            return LaunchResult(error=error)
        except errors.KgweError as error:
            return LaunchResult(error=translate_error(error, "Karpenter"))

    async def _launch(self, request: LaunchRequest) -> LaunchResult:
        body = make_claim(self._cluster, request)
        state = await self._book.read(request.request_id)
        if state == DONE:
            found = _find_launched(await self._list(request.request_id))
            return LaunchResult(instances=found, error=_describe_rest(request, len(found)))
        if not state:
            await self._book.write(request.request_id, OPEN, self._clock())
        there = {claim["metadata"]["name"] for claim in await self._list(request.request_id)}
        try:
            for number in range(request.count):
                name = f"{request.request_id}-{number}"
                if name not in there:
                    await self._create(name, body)
        except errors.Permanent:
            # A wrong request stays wrong: nothing of it is kept.
            await self._give_up(request)
            raise
        return await self._wait(request)

    async def _create(self, name: str, body: dict[str, Any]) -> None:
        with contextlib.suppress(errors.AlreadyExists):
            await self._client.create(NODE_CLAIM, {**body, "metadata": {**body["metadata"], "name": name}})

    async def _wait(self, request: LaunchRequest) -> LaunchResult:
        """Wait until Karpenter has launched all NodeClaims, or has deleted one."""
        ends = time.monotonic() + self._wait_s
        while True:
            claims = [claim for claim in await self._list(request.request_id) if not _is_ending(claim)]
            launched = _find_launched(claims)
            if len(launched) >= request.count:
                await self._book.write(request.request_id, DONE, self._clock())
                return LaunchResult(instances=launched)
            failure = next((error for claim in claims if (error := read_failure(claim)) is not None), None)
            if len(claims) < request.count:
                text = f"Karpenter could not launch {request.count - len(claims)} of {request.count} NodeClaims"
                return await self._end(request, LaunchError(LaunchErrorKind.NO_CAPACITY, text))
            if failure is not None and not failure.is_retryable:
                return await self._end(request, failure)
            if time.monotonic() >= ends:
                text = f"Karpenter has launched {len(launched)} of {request.count} NodeClaims so far"
                return LaunchResult(instances=launched, error=failure or LaunchError(LaunchErrorKind.TRANSIENT, text))
            await asyncio.sleep(self._poll_s)

    async def _end(self, request: LaunchRequest, error: LaunchError) -> LaunchResult:
        """Keep what is launched, or nothing of a gang."""
        if request.atomic:
            await self._give_up(request)
            return LaunchResult(error=error)
        await self._book.write(request.request_id, DONE, self._clock())
        claims = await self._list(request.request_id)
        for claim in claims:
            if not _is_launched(claim):
                await self._delete(claim["metadata"]["name"])
        return LaunchResult(instances=_find_launched(claims), error=error)

    async def _give_up(self, request: LaunchRequest) -> None:
        await self._book.write(request.request_id, DONE, self._clock())
        for claim in await self._list(request.request_id):
            await self._delete(claim["metadata"]["name"])

    async def list_instances(self) -> tuple[Instance, ...]:
        try:
            return tuple(read_claim(claim) for claim in await self._list(""))
        except errors.KgweError as error:
            raise translate_error(error, "Karpenter") from error

    async def terminate(self, provider_ids: Collection[str]) -> None:
        wanted = set(provider_ids)
        try:
            for claim in await self._list("") if wanted else ():
                if read_claim(claim).provider_id in wanted and not _is_ending(claim):
                    await self._delete(claim["metadata"]["name"])
        except errors.KgweError as error:
            raise translate_error(error, "Karpenter") from error

    async def list_notices(self) -> tuple[InterruptionNotice, ...]:
        """Return nothing: Karpenter handles notices of its own queue, and the node agent reads its own."""
        return ()

    async def close(self) -> None:
        """The client belongs to the caller."""

    async def _delete(self, name: str) -> None:
        with contextlib.suppress(errors.NotFound):
            await self._client.delete(NODE_CLAIM, name)

    async def _list(self, request_id: str) -> list[dict[str, Any]]:
        selector = f"{CLUSTER_TAG}={self._cluster}" + (f",{REQUEST_TAG}={request_id}" if request_id else "")
        return await self._client.list(NODE_CLAIM, labelSelector=selector)


def make_claim(cluster: str, request: LaunchRequest) -> dict[str, Any]:
    """Return a NodeClaim without a name."""
    parts = request.template.split("/")
    if len(parts) != _TEMPLATE_PARTS or not all(parts):
        text = f"template {request.template!r} must be GROUP/KIND/NAME, such as karpenter.k8s.aws/EC2NodeClass/gpu"
        raise LaunchError(LaunchErrorKind.BAD_TEMPLATE, text)
    group, kind, name = parts
    wanted = {
        TYPE_LABEL: request.instance_type,
        ZONE_LABEL: request.zone,
        CAPACITY_LABEL: str(request.capacity_type),
    }
    return {
        "apiVersion": NODE_CLAIM.api_version,
        "kind": NODE_CLAIM.kind,
        "metadata": {
            "labels": {
                **request.labels,
                CLUSTER_TAG: cluster,
                REQUEST_TAG: request.request_id,
                POOL_TAG: request.pool,
            },
            # KGWE decides when the node goes, not Karpenter's consolidation.
            "annotations": {"karpenter.sh/do-not-disrupt": "true"},
        },
        "spec": {
            "nodeClassRef": {"group": group, "kind": kind, "name": name},
            "requirements": [
                {"key": key, "operator": "In", "values": [value]} for key, value in wanted.items() if value
            ],
            "taints": [{"key": taint.key, "value": taint.value, "effect": taint.effect} for taint in request.taints],
            "expireAfter": "Never",
        },
    }


def read_claim(claim: dict[str, Any]) -> Instance:
    """Return the instance of a NodeClaim. Before its launch, its id is that of the NodeClaim."""
    meta, status = claim["metadata"], claim.get("status", {})
    wanted = {each["key"]: each.get("values", [""])[0] for each in claim["spec"].get("requirements", ())}
    labels = {**wanted, **meta.get("labels", {})}
    capacity = labels.get(CAPACITY_LABEL, "")
    return Instance(
        provider_id=status.get("providerID") or f"{_PENDING}{meta['name']}",
        request_id=labels.get(REQUEST_TAG, ""),
        pool=labels.get(POOL_TAG, ""),
        instance_type=labels.get(TYPE_LABEL, ""),
        zone=labels.get(ZONE_LABEL, ""),
        capacity_type=CapacityType(capacity) if capacity in set(CapacityType) else CapacityType.ON_DEMAND,
        state=_read_state(claim),
        node_name=status.get("nodeName") or None,
        launched_at=timestamp.epoch_seconds(meta.get("creationTimestamp") or ""),
        message=_find_condition(claim, "Launched").get("message", ""),
    )


def read_failure(claim: dict[str, Any]) -> LaunchError | None:
    """Return why Karpenter has not launched a NodeClaim, by the words of its condition."""
    condition = _find_condition(claim, "Launched")
    if condition.get("status") == "True" or condition.get("reason") != "LaunchFailed":
        return None
    message = condition.get("message", "")
    words = message.lower().replace(" ", "")
    kind = next((kind for word, kind in _WORDS if word in words), LaunchErrorKind.TRANSIENT)
    return LaunchError(kind, f"Karpenter: {message}", code="LaunchFailed")


def _find_condition(claim: dict[str, Any], kind: str) -> dict[str, Any]:
    found = claim.get("status", {}).get("conditions", ())
    return next((each for each in found if each.get("type") == kind), {})


def _is_launched(claim: dict[str, Any]) -> bool:
    return _find_condition(claim, "Launched").get("status") == "True" and bool(claim["status"].get("providerID"))


def _is_ending(claim: dict[str, Any]) -> bool:
    return bool(claim["metadata"].get("deletionTimestamp"))


def _find_launched(claims: list[dict[str, Any]]) -> tuple[Instance, ...]:
    found = (read_claim(claim) for claim in claims if _is_launched(claim))
    return tuple(each for each in found if each.state in _ALIVE)


def _read_state(claim: dict[str, Any]) -> InstanceState:
    if _is_ending(claim):
        return InstanceState.REMOVING
    is_registered = _find_condition(claim, "Registered").get("status") == "True"
    return InstanceState.RUNNING if is_registered else InstanceState.LAUNCHING


def _describe_rest(request: LaunchRequest, found: int) -> LaunchError | None:
    if found >= request.count:
        return None
    text = f"{found} of {request.count} instances of request {request.request_id} exist"
    return LaunchError(LaunchErrorKind.NO_CAPACITY, text)
