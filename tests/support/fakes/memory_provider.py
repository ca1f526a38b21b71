"""A cloud in memory with faults on command, and providers of it. It passes the contract of all providers.

`MemoryCloud` is the cloud; each `MemoryProvider` is one process that uses it. Faults:

- `slow`: calls wait for `cloud.release()`;  `lose_answers`: a launch acts, but its answer is lost
- `fail_next`: calls fail with a kind;  `capacity`: how many more instances there are
- `half_gangs`: an atomic launch gets only a part, as on clouds with best effort
- `shuffle`: lists come in another order, twice an entry, and miss instances younger than `settle_s`
- `vanish`: an instance is gone without a word
- `never_join`, `other_name`, `fewer_gpus`: what `take_joins` says about the nodes of instances launched from then on
"""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kgwe.cloud.provider import (
    CapacityType,
    GangSupport,
    Instance,
    InstanceState,
    InterruptionNotice,
    LaunchError,
    LaunchErrorKind,
    LaunchRequest,
    LaunchResult,
    NoticeKind,
    TopologySupport,
    Traits,
)

if TYPE_CHECKING:
    from collections.abc import Collection

ALIVE = {InstanceState.LAUNCHING, InstanceState.RUNNING, InstanceState.STOPPED}


@dataclass(frozen=True, slots=True)
class Join:
    """How the node of an instance joins the cluster."""

    instance: Instance
    request: LaunchRequest
    node_name: str
    missing_gpus: int = 0


@dataclass
class MemoryCloud:
    """All instances of all owners."""

    capacity: int = 1000
    slow: bool = False
    half_gangs: bool = False
    shuffle: bool = False
    never_join: bool = False
    other_name: bool = False
    fewer_gpus: int = 0
    settle_s: float = 60.0
    now: float = 1_000_000.0
    launches: int = 0
    """Instances ever bought: what a bill shows."""
    _instances: dict[str, tuple[str, Instance]] = field(default_factory=dict)
    """Id -> owner and instance."""
    _requests: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    _failures: list[LaunchError] = field(default_factory=list)
    _lost_answers: int = 0
    _joins: list[Join] = field(default_factory=list)
    _notices: list[InterruptionNotice] = field(default_factory=list)
    _gate: asyncio.Event = field(default_factory=asyncio.Event)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _random: random.Random = field(default_factory=lambda: random.Random(7))

    def fail_next(self, kind: LaunchErrorKind, times: int = 1, retry_after_s: float | None = None) -> None:
        failure = LaunchError(kind, f"the cloud says {kind}", code=kind, retry_after_s=retry_after_s)
        self._failures += [failure] * times

    def lose_answers(self, times: int = 1) -> None:
        self._lost_answers += times

    def release(self) -> None:
        self._gate.set()

    def vanish(self, provider_id: str) -> None:
        del self._instances[provider_id]

    def stop(self, provider_id: str) -> None:
        """Preempt an instance in the way of clouds that keep it, stopped."""
        owner, instance = self._instances[provider_id]
        self._instances[provider_id] = (owner, replace(instance, state=InstanceState.STOPPED))

    def announce(self, provider_id: str, kind: NoticeKind, deadline_at: float | None) -> None:
        self._notices.append(InterruptionNotice(provider_id=provider_id, kind=kind, deadline_at=deadline_at))

    def run_all(self) -> None:
        """Let launching instances run."""
        for key, (owner, instance) in self._instances.items():
            if instance.state is InstanceState.LAUNCHING:
                self._instances[key] = (owner, replace(instance, state=InstanceState.RUNNING))

    def take_joins(self) -> list[Join]:
        """Nodes that join from now on; each is returned once."""
        found, self._joins = self._joins, []
        return found

    def count_alive(self, owner: str | None = None) -> int:
        return sum(each.state in ALIVE and owner in (None, whose) for whose, each in self._instances.values())

    def is_alive(self, provider_id: str) -> bool:
        return provider_id in self._instances and self._instances[provider_id][1].state in ALIVE

    async def enter(self) -> None:
        if self.slow:
            await self._gate.wait()
        await asyncio.sleep(0)
        if self._failures:
            raise self._failures.pop(0)

    async def buy(self, owner: str, request: LaunchRequest) -> tuple[str, ...]:
        """Buy what is not bought yet. Returns the ids of all instances of the request."""
        await self.enter()
        key = (owner, request.request_id)
        if key not in self._requests:
            wanted = request.count
            if wanted > self.capacity and request.atomic and not self.half_gangs:
                raise LaunchError(LaunchErrorKind.NO_CAPACITY, f"{self.capacity} left, {wanted} wanted")
            got = min(wanted, self.capacity)
            if got == 0:
                raise LaunchError(LaunchErrorKind.NO_CAPACITY, f"none left, {wanted} wanted")
            self.capacity -= got
            self._requests[key] = tuple(self._create(owner, request) for _ in range(got))
        if self._lost_answers:
            self._lost_answers -= 1
            raise LaunchError(LaunchErrorKind.TRANSIENT, "no answer from the cloud")
        return self._requests[key]

    def _create(self, owner: str, request: LaunchRequest) -> str:
        number = next(self._numbers)
        provider_id = f"memory://{request.zone}/i-{number}"
        instance = Instance(
            provider_id=provider_id,
            request_id=request.request_id,
            pool=request.pool,
            instance_type=request.instance_type,
            zone=request.zone,
            capacity_type=request.capacity_type,
            state=InstanceState.LAUNCHING,
            node_name=f"node-{number}",
            launched_at=self.now,
        )
        self._instances[provider_id] = (owner, instance)
        self.launches += 1
        if not self.never_join:
            name = f"ip-10-0-0-{number}" if self.other_name else f"node-{number}"
            self._joins.append(Join(instance, request, name, self.fewer_gpus))
        return provider_id

    def find(self, ids: Collection[str]) -> tuple[Instance, ...]:
        return tuple(self._instances[each][1] for each in ids if self.is_alive(each))

    def list_of(self, owner: str) -> tuple[Instance, ...]:
        found = [each for whose, each in self._instances.values() if whose == owner and each.state in ALIVE]
        if self.shuffle:
            found = [each for each in found if self.now - each.launched_at >= self.settle_s]
            found += found[:1]
            self._random.shuffle(found)
        return tuple(found)

    def end(self, owner: str, ids: Collection[str]) -> None:
        for each in ids:
            if each in self._instances and self._instances[each][0] == owner and self.is_alive(each):
                self._instances[each] = (owner, replace(self._instances[each][1], state=InstanceState.GONE))
                self.capacity += 1
                self._joins = [join for join in self._joins if join.instance.provider_id != each]

    def notices_of(self, owner: str) -> tuple[InterruptionNotice, ...]:
        alive = {each.provider_id for each in self.list_of(owner)}
        return tuple(each for each in self._notices if each.provider_id in alive)


class MemoryProvider:
    """One process that buys in a cloud in memory."""

    def __init__(self, cloud: MemoryCloud, cluster: str = "test", traits: Traits | None = None) -> None:
        self.cloud = cloud
        self.cluster = cluster
        self._traits = traits or Traits(
            gangs=GangSupport.BEST_EFFORT if cloud.half_gangs else GangSupport.ATOMIC,
            topology=TopologySupport.OBSERVED_AFTER_JOIN,
            settle_s=cloud.settle_s,
        )

    @property
    def name(self) -> str:
        return "memory"

    @property
    def traits(self) -> Traits:
        return self._traits

    async def launch(self, request: LaunchRequest) -> LaunchResult:
        try:
            ids = await self.cloud.buy(self.cluster, request)
        except LaunchError as failure:
            return LaunchResult(error=failure)
        missing = request.count - len(ids)
        if not missing:
            return LaunchResult(instances=self.cloud.find(ids))
        error = LaunchError(LaunchErrorKind.NO_CAPACITY, f"{missing} of {request.count} instances are missing")
        if request.atomic:
            self.cloud.end(self.cluster, ids)
            return LaunchResult(error=error)
        return LaunchResult(instances=self.cloud.find(ids), error=error)

    async def list_instances(self) -> tuple[Instance, ...]:
        await self.cloud.enter()
        return self.cloud.list_of(self.cluster)

    async def terminate(self, provider_ids: Collection[str]) -> None:
        await self.cloud.enter()
        self.cloud.end(self.cluster, provider_ids)

    async def list_notices(self) -> tuple[InterruptionNotice, ...]:
        await self.cloud.enter()
        return self.cloud.notices_of(self.cluster)

    async def close(self) -> None:
        """Nothing is open."""


class MemoryProviderBed:
    """The contract's view of a cloud in memory."""

    def __init__(self, *, half_gangs: bool = False) -> None:
        self.cloud = MemoryCloud(half_gangs=half_gangs)
        self.provider = MemoryProvider(self.cloud)
        self.kinds = tuple(LaunchErrorKind)

    def reopen(self) -> MemoryProvider:
        return MemoryProvider(self.cloud)

    def make_request(self, request_id: str, count: int = 1, *, atomic: bool = False) -> LaunchRequest:
        return LaunchRequest(
            request_id=request_id,
            pool="h100",
            instance_type="p5.48xlarge",
            zone="zone-a",
            capacity_type=CapacityType.SPOT,
            count=count,
            atomic=atomic,
        )

    def set_capacity(self, instances: int) -> None:
        self.cloud.capacity = instances

    def fail_next(self, kind: LaunchErrorKind) -> None:
        self.cloud.fail_next(kind)

    def lose_answer(self) -> None:
        self.cloud.lose_answers()

    async def add_foreign(self) -> str:
        return (await self.cloud.buy("another", self.make_request("foreign")))[0]

    def is_alive(self, provider_id: str) -> bool:
        return self.cloud.is_alive(provider_id)

    def count_alive(self) -> int:
        return self.cloud.count_alive("test")
