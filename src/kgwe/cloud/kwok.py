"""The simulated cloud as a provider: orders in ConfigMaps, which the local cluster's simulator answers.

The simulator (`kgwe.local.fleet.cloud`) is the cloud: it decides on an order, and it makes and removes nodes. It keeps
its state in the same ConfigMaps, so the autoscaler can be killed at any time, as with a real cloud.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kgwe import errors
from kgwe.cloud.provider import (
    CapacityType,
    GangSupport,
    Instance,
    InstanceState,
    LaunchError,
    LaunchErrorKind,
    LaunchResult,
    TopologySupport,
    Traits,
)
from kgwe.kube.api.meta import ObjectMeta  # noqa: TC001 - read by msgspec when it decodes
from kgwe.kube.api.resources import Resource

if TYPE_CHECKING:
    from collections.abc import Collection

    from kgwe.cloud.provider import InterruptionNotice, LaunchRequest
    from kgwe.kube.client.client import KubeClient

#: Label of the ConfigMaps that hold orders; its value is the owning cluster.
ORDER_LABEL: Final = "kgwe.nvidia.io/simulated-cloud"
#: Keys of the data of an order.
ORDER, ANSWER, TERMINATE = "order", "answer", "terminate-"
_POLL_S: Final = 0.05


class ConfigMap(msgspec.Struct, frozen=True, gc=False):
    metadata: ObjectMeta
    data: dict[str, str] = {}


CONFIG_MAP: Final = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True, type=ConfigMap)


class Order(msgspec.Struct, frozen=True, rename="camel"):
    """A launch request as the simulator reads it."""

    request_id: str
    pool: str
    instance_type: str
    zone: str
    capacity_type: str
    count: int
    atomic: bool = False
    placement_group: str = ""
    labels: dict[str, str] = {}
    taints: tuple[tuple[str, str, str], ...] = ()
    """Key, value and effect."""


class Machine(msgspec.Struct, frozen=True, rename="camel"):
    """An instance as the simulator has made it."""

    name: str
    """Of the instance and of its node."""
    state: str
    launched_at: float
    message: str = ""


class Answer(msgspec.Struct, frozen=True, rename="camel"):
    """What the simulator made of an order."""

    machines: tuple[Machine, ...] = ()
    kind: str = ""
    message: str = ""


def provider_id_of(zone: str, machine: str) -> str:
    """Return the `spec.providerID` of a simulated node."""
    return f"kwok://{zone}/{machine}"


class KwokProvider:
    """The simulated cloud of one cluster."""

    def __init__(
        self, client: KubeClient, *, cluster: str = "local", namespace: str = "kgwe-system", answer_s: float = 20.0
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._namespace = namespace
        self._answer_s = answer_s

    @property
    def name(self) -> str:
        return "kwok"

    @property
    def traits(self) -> Traits:
        return Traits(gangs=GangSupport.ATOMIC, topology=TopologySupport.GUARANTEED, settle_s=2.0)

    async def launch(self, request: LaunchRequest) -> LaunchResult:
        """Write the order and wait for the answer. The name of the ConfigMap is the request id: no order is double."""
        order = Order(
            request_id=request.request_id,
            pool=request.pool,
            instance_type=request.instance_type,
            zone=request.zone,
            capacity_type=request.capacity_type,
            count=request.count,
            atomic=request.atomic,
            placement_group=request.placement_group,
            labels=dict(request.labels),
            taints=tuple((taint.key, taint.value, taint.effect) for taint in request.taints),
        )
        body: dict[str, Any] = {
            "metadata": {"name": request.request_id, "labels": {ORDER_LABEL: self._cluster}},
            "data": {ORDER: msgspec.json.encode(order).decode()},
        }
        try:
            with contextlib.suppress(errors.AlreadyExists):
                await self._client.create(CONFIG_MAP, body, self._namespace)
            return await self._await_answer(request.request_id)
        except LaunchError as exc:
            return LaunchResult(error=exc)
        except errors.KgweError as exc:
            return LaunchResult(error=_translate(exc))

    async def _await_answer(self, request_id: str) -> LaunchResult:
        deadline = time.monotonic() + self._answer_s
        while True:
            found = await self._client.get(CONFIG_MAP, request_id, self._namespace)
            if ANSWER in found.data:
                instances = tuple(_list_instances(found))
                answer = read_order(found)[1]
                kinds = {str(each): each for each in LaunchErrorKind}
                kind = kinds.get(answer.kind, LaunchErrorKind.TRANSIENT)
                return LaunchResult(
                    instances=instances, error=LaunchError(kind, answer.message) if answer.kind else None
                )
            if time.monotonic() > deadline:
                raise LaunchError(
                    LaunchErrorKind.TRANSIENT,
                    f"the simulated cloud has not answered within {self._answer_s:g} s; is it running?",
                )
            await asyncio.sleep(_POLL_S)

    async def list_instances(self) -> tuple[Instance, ...]:
        return tuple(
            instance
            for found in await self._list_orders()
            if ANSWER in found.data
            for instance in _list_instances(found)
            if instance.state is not InstanceState.GONE
        )

    async def terminate(self, provider_ids: Collection[str]) -> None:
        wanted = set(provider_ids)
        for found in await self._list_orders():
            if ANSWER not in found.data:
                continue
            marks = {
                f"{TERMINATE}{each.provider_id.rpartition('/')[2]}": "true"
                for each in _list_instances(found)
                if each.provider_id in wanted and each.state is not InstanceState.GONE
            }
            if marks:
                try:
                    await self._client.patch(CONFIG_MAP, found.metadata.name, {"data": marks}, self._namespace)
                except errors.NotFound:
                    continue
                except errors.KgweError as exc:
                    raise _translate(exc) from exc

    async def list_notices(self) -> tuple[InterruptionNotice, ...]:
        """Return none: the notice of a simulated spot node is on its Node."""
        return ()

    async def close(self) -> None:
        """Nothing is open: the client belongs to the caller."""

    async def _list_orders(self) -> list[ConfigMap]:
        try:
            return await self._client.list(CONFIG_MAP, self._namespace, labelSelector=f"{ORDER_LABEL}={self._cluster}")
        except errors.KgweError as exc:
            raise _translate(exc) from exc


def read_order(found: ConfigMap) -> tuple[Order, Answer]:
    """Return an order and its answer; an unanswered order has an empty answer."""
    order = msgspec.json.decode(found.data.get(ORDER, ""), type=Order)
    answer = msgspec.json.decode(found.data[ANSWER], type=Answer) if ANSWER in found.data else Answer()
    return order, answer


def _list_instances(found: ConfigMap) -> list[Instance]:
    """Return the instances of an order; raise LaunchError if it cannot be read: they may exist."""
    try:
        return _read_instances(found)
    except ValueError as exc:  # msgspec's errors are ValueErrors
        message = f"ConfigMap {found.metadata.key} is not an order: {exc}; repair or delete it"
        raise LaunchError(LaunchErrorKind.TRANSIENT, message) from exc


def _read_instances(found: ConfigMap) -> list[Instance]:
    order, answer = read_order(found)
    return [
        Instance(
            provider_id=provider_id_of(order.zone, each.name),
            request_id=order.request_id,
            pool=order.pool,
            instance_type=order.instance_type,
            zone=order.zone,
            capacity_type=CapacityType(order.capacity_type),
            state=_read_state(each, found),
            node_name=each.name,
            launched_at=each.launched_at,
            message=each.message,
        )
        for each in answer.machines
    ]


def _read_state(machine: Machine, found: ConfigMap) -> InstanceState:
    """Return the state of an instance. One that must go is going, whether or not the simulator has seen it."""
    state = InstanceState(machine.state)
    is_ordered = f"{TERMINATE}{machine.name}" in found.data and state is not InstanceState.GONE
    return InstanceState.REMOVING if is_ordered else state


def _translate(exc: errors.KgweError) -> LaunchError:
    """Return an error of the API server as one of the cloud."""
    if isinstance(exc, LaunchError):
        return exc
    if isinstance(exc, errors.Transient) and (exc.retry_after_s is not None or "too many requests" in str(exc).lower()):
        return LaunchError(LaunchErrorKind.THROTTLED, str(exc), retry_after_s=exc.retry_after_s)
    kind = LaunchErrorKind.AUTHENTICATION if isinstance(exc, errors.Permanent) else LaunchErrorKind.TRANSIENT
    return LaunchError(kind, str(exc))
