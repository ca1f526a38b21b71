"""The simulated cloud: answers orders, makes nodes after a delay, and removes them.

It is a process of its own beside the autoscaler, like a real cloud. All its state is in the ConfigMaps of the orders
(`kgwe.cloud.kwok`) and in the nodes, so it can be restarted at any time. `CloudRules` say how well it behaves: launch
delay, GPUs that arrive late or not at all, no capacity, quotas, and nodes that never join.
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from kgwe import errors
from kgwe.cloud import kwok
from kgwe.kube.api import resources, timestamp
from kgwe.kube.client.informer import Informer, wait_synced
from kgwe.local.fleet import apply, gpunodes
from kgwe.model.simfleet import inventory
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from kgwe.cloud.kwok import Answer, ConfigMap, Machine, Order
    from kgwe.kube.client.client import KubeClient
    from kgwe.local.cluster.cluster import LocalCluster
    from kgwe.model.simfleet import model_file

log = structlog.get_logger(__name__)

SIDECAR: Final = "simulated-cloud"
#: Label of nodes that this cloud has made; its value is the request.
INSTANCE_LABEL: Final = "kgwe.nvidia.io/simulated-instance"
_TICK_S: Final = 0.1


@dataclass
class CloudRules:
    """How the cloud behaves. Patterns are those of a shell and match `type/zone/capacity type`."""

    launch_delay_s: float = 1.0
    """From an order until the node joins."""
    gpu_delay_s: float = 0.0
    """From then until it offers GPUs."""
    stock: dict[str, int] = field(default_factory=dict)
    """Pattern -> instances there are at most; more: no capacity."""
    quota: dict[str, int] = field(default_factory=dict)
    """Pattern -> instances that the account may have; more: quota."""
    limits: dict[str, int] = field(default_factory=dict)
    """Pattern of the pool's name -> instances of the group at most; more: limit."""
    never_join: int = 0
    """So many instances of the next orders never join."""
    missing_gpus: int = 0
    """Nodes join with so many GPUs fewer than their type has."""
    nodes_per_leaf: int = 16
    bare_names: bool = False
    """Nodes join under a name of their own, and without the labels of the order."""
    startup_taint: str = ""
    """Key of a taint that nodes have until their GPUs are there."""


class SimulatedCloud:
    """One simulated cloud. `fleets`: models whose pools say what an instance type is."""

    def __init__(
        self,
        client: KubeClient,
        fleets: Sequence[model_file.Fleet],
        rules: CloudRules | None = None,
        *,
        cluster: str = "local",
        namespace: str = "kgwe-system",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.rules = rules or CloudRules()
        self._client = client
        self._fleets = fleets
        self._namespace = namespace
        self._clock = clock
        self._orders: Informer[ConfigMap] = Informer(
            client, kwok.CONFIG_MAP, namespace=namespace, label_selector=f"{kwok.ORDER_LABEL}={cluster}"
        )
        self._nodes = Informer(client, resources.NODE, label_selector=INSTANCE_LABEL)
        self._never_join: set[str] = set()
        self._written: dict[str, Answer] = {}  # answers that the watch has not shown yet

    @contextlib.asynccontextmanager
    async def run_in_background(self) -> AsyncIterator[None]:
        """Serve orders while the context is open."""
        tasks = [asyncio.create_task(each.run()) for each in (self._orders, self._nodes)]
        try:
            await wait_synced(self._orders, self._nodes)
            tasks.append(asyncio.create_task(self._serve()))
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def run(self) -> None:
        """Serve orders until the task is cancelled."""
        async with self.run_in_background():
            await asyncio.Event().wait()

    async def _serve(self) -> None:
        while True:
            try:
                await self.step()
            except errors.KgweError as exc:
                log.warning("simulated_cloud_postponed", error=str(exc))
            await asyncio.sleep(_TICK_S)

    # --- one pass ---------------------------------------------------------------------------------------

    async def step(self) -> None:
        """Answer new orders, and bring every instance to where it should be by now."""
        for name, found in sorted(self._orders.store.items()):
            order, stored = kwok.read_order(found)
            answer = self._written.get(name, stored)
            if answer == stored:
                self._written.pop(name, None)
            if kwok.ANSWER not in found.data and name not in self._written:
                answer = self._decide(order)
            after = kwok.Answer(
                tuple([await self._move_on(order, each, found) for each in answer.machines]),
                answer.kind,
                answer.message,
            )
            if after != stored or kwok.ANSWER not in found.data:
                await self._write_answer(found, after)

    async def _write_answer(self, found: ConfigMap, answer: Answer) -> None:
        if self._written.get(found.metadata.key) == answer:
            return
        self._written[found.metadata.key] = answer
        body = {"data": {kwok.ANSWER: msgspec.json.encode(answer).decode()}}
        await self._client.patch(kwok.CONFIG_MAP, found.metadata.name, body, self._namespace)

    def _decide(self, order: Order) -> Answer:
        """Return what the cloud makes of an order: the instances, or why there are none or too few."""
        if self._find_pool(order) is None:
            return kwok.Answer(kind="bad-template", message=f"instance type {order.instance_type} is not known")
        room, kind = order.count, ""
        for limits, what, each in (
            (self.rules.quota, _describe(order), "quota"),
            (self.rules.limits, order.pool, "limit"),
            (self.rules.stock, _describe(order), "no-capacity"),
        ):
            left = self._count_left(limits, what, by_pool=each == "limit")
            if left is not None and left < room:
                room, kind = left, each
        count = 0 if order.atomic and room < order.count else room
        message = f"{kind}: {count} of {order.count} {order.instance_type} in {order.zone}" if kind else ""
        now = self._clock()
        machines = tuple(kwok.Machine(f"{order.request_id}-{number}", "launching", now) for number in range(count))
        doomed = machines[: self.rules.never_join]
        self.rules.never_join -= len(doomed)
        self._never_join |= {each.name for each in doomed}
        log.info("simulated_launch", request=order.request_id, count=count, error=message)
        return kwok.Answer(machines, kind, message)

    def _count_left(self, limits: Mapping[str, int], what: str, *, by_pool: bool) -> int | None:
        """Return how many more instances the limits allow; None: no limit."""
        left = [most - self._count_used(pattern, by_pool=by_pool) for pattern, most in limits.items()
                if fnmatch.fnmatchcase(what, pattern)]  # fmt: skip
        return max(min(left), 0) if left else None

    def _count_used(self, pattern: str, *, by_pool: bool) -> int:
        used = 0
        for name, found in self._orders.store.items():
            order, stored = kwok.read_order(found)
            if fnmatch.fnmatchcase(order.pool if by_pool else _describe(order), pattern):
                used += sum(each.state != "gone" for each in self._written.get(name, stored).machines)
        return used

    # --- one instance -----------------------------------------------------------------------------------

    async def _move_on(self, order: Order, machine: Machine, found: ConfigMap) -> Machine:
        if machine.state == "gone":
            return machine
        node = self._nodes.store.get(self._name_node(machine))
        if f"{kwok.TERMINATE}{machine.name}" in found.data:
            await self._remove(self._name_node(machine))
            return msgspec.structs.replace(machine, state="gone")
        age_s = self._clock() - machine.launched_at
        if machine.state == "running":
            if node is not None and not _has_gpus(node) and age_s >= self.rules.launch_delay_s + self.rules.gpu_delay_s:
                await self._bring_gpus(order, machine)
            return machine
        if age_s < self.rules.launch_delay_s or machine.name in self._never_join:
            return machine
        await self._join(order, machine)
        return msgspec.structs.replace(machine, state="running")

    async def _join(self, order: Order, machine: Machine) -> None:
        node = self._build(order, machine)
        if node is None:
            return
        body = self._manifest(order, node)
        if self.rules.gpu_delay_s > 0:
            for offered in (body["status"]["capacity"], body["status"]["allocatable"]):
                for name in [each for each in offered if amounts.is_gpu(each)]:
                    del offered[name]
        try:
            created = await self._client.create(resources.NODE, body)
        except errors.AlreadyExists:
            return
        if self.rules.gpu_delay_s <= 0:
            await self._add_gpu_node(node, created.metadata.uid)

    async def _bring_gpus(self, order: Order, machine: Machine) -> None:
        node, old = self._build(order, machine), self._nodes.store.get(self._name_node(machine))
        if node is None or old is None:
            return
        await self._add_gpu_node(node, old.metadata.uid)
        body = self._manifest(order, node)
        await apply.patch_devices(self._client, node.name, old, body["status"]["capacity"],
                                  body["status"]["allocatable"])  # fmt: skip
        if self.rules.startup_taint:
            kept = [msgspec.to_builtins(each) for each in old.spec.taints if each.key != self.rules.startup_taint]
            await self._client.patch(resources.NODE, node.name, {"spec": {"taints": kept}})

    async def _add_gpu_node(self, node: inventory.FleetNode, uid: str) -> None:
        wanted = gpunodes.gpu_node(node, uid)
        manifest = wanted.manifest()
        status = manifest.pop("status")
        with contextlib.suppress(errors.AlreadyExists):
            await self._client.create(resources.GPU_NODE, manifest)
        await apply.put_status(self._client, node.name, status)

    async def _remove(self, name: str) -> None:
        for kind in (resources.NODE, resources.GPU_NODE):
            with contextlib.suppress(errors.NotFound):
                await self._client.delete(kind, name)

    # --- what a node is ---------------------------------------------------------------------------------

    def _find_pool(self, order: Order) -> tuple[model_file.Fleet, model_file.Pool] | None:
        """Return the pool of a model with the name of the node pool, else one with the instance type."""
        pools = [(fleet, pool) for fleet in self._fleets for pool in fleet.pools]
        same = [each for each in pools if each[1].instance_type == order.instance_type]
        return next((each for each in same if each[1].name == order.pool), same[0] if same else None)

    def _build(self, order: Order, machine: Machine) -> inventory.FleetNode | None:
        found = self._find_pool(order)
        if found is None:
            return None
        fleet, pool = found
        leaf = self._find_leaf(order, machine)
        place = inventory.Place(leaf, f"spine-{order.zone}", f"core-{order.zone}", order.zone, fleet.region)
        return inventory.FleetNode(self._name_node(machine), inventory.CLOUD_FLEET, fleet.seed, pool, place)

    def _name_node(self, machine: Machine) -> str:
        return f"ip-{machine.name}" if self.rules.bare_names else machine.name

    def _find_leaf(self, order: Order, machine: Machine) -> str:
        number = int(machine.name.rpartition("-")[2])
        group = order.placement_group or order.request_id
        return f"leaf-{group}-{number // max(self.rules.nodes_per_leaf, 1)}"

    def _manifest(self, order: Order, node: inventory.FleetNode) -> dict[str, Any]:
        body = gpunodes.node_manifest(node, frozenset(range(self.rules.missing_gpus)), now=timestamp.seconds())
        body["metadata"]["labels"] |= {
            **dict.fromkeys(inventory.CAPACITY_TYPE_LABELS, order.capacity_type),
            "gpu-autoscaler.io/node-pool": order.pool,
            **({} if self.rules.bare_names else order.labels),
            INSTANCE_LABEL: order.request_id,
        }
        if order.capacity_type != "spot":
            body["metadata"]["labels"].pop("gpu-orchestrator/cheap-node", None)
        body["spec"]["providerID"] = kwok.provider_id_of(order.zone, node.name.removeprefix("ip-"))
        taints = [{"key": key, "value": value, "effect": effect} for key, value, effect in order.taints]
        if self.rules.startup_taint and self.rules.gpu_delay_s > 0:
            taints.append({"key": self.rules.startup_taint, "value": "", "effect": "NoSchedule"})
        body["spec"]["taints"] = taints
        return body


def start(cluster: LocalCluster, *, launch_delay_s: float = 2.0, gpu_delay_s: float = 0.0) -> None:
    """Start the simulated cloud as a sidecar of a cluster."""
    command = [sys.executable, "-m", "kgwe.cli", "local", "cloud", "--kubeconfig", str(cluster.kubeconfig)]
    command += ["--launch-delay", f"{launch_delay_s:g}", "--gpu-delay", f"{gpu_delay_s:g}"]
    cluster.start_sidecar(SIDECAR, command)


def _describe(order: Order) -> str:
    return f"{order.instance_type}/{order.zone}/{order.capacity_type}"


def _has_gpus(node: Any) -> bool:
    return any(amounts.is_gpu(name) for name in node.status.allocatable)
