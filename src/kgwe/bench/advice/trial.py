"""The workloads of the benchmark on a cluster: created, watched, and changed as advised."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kgwe import errors
from kgwe.bench.advice.workloads import follow_advice
from kgwe.kube.api import resources
from kgwe.kube.api.kgwe.gpuworkload_status import Phase

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from kgwe.bench.advice.workloads import Workload
    from kgwe.kube.client.client import KubeClient
    from kgwe.local.host.progress import Step
    from kgwe.optimizerapi.client import OptimizerClient

NAMESPACE: Final = "bench"
_SUSPEND: Final = "Suspend"
_NONE: Final = "None"
_POLL_S: Final = 1.0
_CONCURRENT: Final = 8
# Nothing is waited for when the saving is this near.
_NEAR: Final = 0.01
_FOLLOWED: Final = "Recommendation followed"


@dataclass(frozen=True, slots=True)
class Advice:
    """One recommendation of the optimizer."""

    action: str
    target: str
    saving_per_hour: float | None


@dataclass
class Trial:
    """The workloads now and as advised."""

    client: KubeClient
    step: Step
    timeout_s: float
    workloads: dict[str, Workload] = field(default_factory=dict)
    advice: dict[str, Advice] = field(default_factory=dict)

    async def create(self, workloads: Sequence[Workload]) -> None:
        """Create the workloads and wait until all run."""
        self.workloads = {each.name: each for each in workloads}
        await self.client.apply(resources.NAMESPACE, {"metadata": {"name": NAMESPACE}})
        await run_concurrently(
            [lambda each=each: self._create(each) for each in workloads]  # type: ignore[misc] # bound early
        )
        await self.await_running(set(self.workloads))

    async def _create(self, workload: Workload) -> None:
        await self.client.create(resources.GPU_WORKLOAD, workload.write_manifest(), NAMESPACE)

    async def await_running(self, names: set[str]) -> set[str]:
        """Wait until these workloads run; return those that do when the time is over."""
        running: set[str] = set()

        async def are_running() -> bool:
            nonlocal running
            found = await self.client.list(resources.GPU_WORKLOAD, NAMESPACE)
            running = {each.metadata.name for each in found if each.status.phase == Phase.RUNNING} & names
            self.step.update(f"{len(running)} of {len(names)} workloads run")
            return running >= names

        await self.wait(are_running)
        return running

    async def read_advice(self, optimizer: OptimizerClient) -> None:
        """Wait until each workload has a recommendation; keep those there are when the time is over."""

        async def is_complete() -> bool:
            try:
                reply = await optimizer.list_findings()
            except errors.KgweError:
                return False
            self.advice = {
                each.owner_name: Advice(
                    each.recommendation.action,
                    each.recommendation.target,
                    each.recommendation.saving_per_hour if each.recommendation.HasField("saving_per_hour") else None,
                )
                for each in reply.findings
                if each.namespace == NAMESPACE and each.recommendation.action != _NONE
            }
            self.step.update(f"{len(self.advice)} of {len(self.workloads)} workloads have a recommendation")
            return self.advice.keys() >= self.workloads.keys()

        await self.wait(is_complete)

    async def follow(self) -> None:
        """Do what was advised for every workload: suspend it, or delete it and create it with other devices."""
        await run_concurrently([lambda name=name: self._follow(name) for name in self.advice])  # type: ignore[misc]

    async def _follow(self, name: str) -> None:
        advised = self.advice[name]
        if advised.action == _SUSPEND:
            await self.client.patch(resources.GPU_WORKLOAD, name, {"spec": {"suspend": True}}, NAMESPACE)
            return
        changed = follow_advice(self.workloads[name], advised.action, advised.target)
        await self.client.delete(resources.GPU_WORKLOAD, name, NAMESPACE)

        async def is_gone() -> bool:
            try:
                await self.client.get(resources.GPU_WORKLOAD, name, NAMESPACE)
            except errors.NotFound:
                return True
            return False

        await self.wait(is_gone)
        await self._create(changed)
        self.workloads[name] = changed

    async def await_stopped(self, names: set[str]) -> set[str]:
        """Wait until these workloads have no pods; return those without when the time is over."""
        held: set[str] = set()

        async def are_stopped() -> bool:
            nonlocal held
            pods = await self.client.list(resources.POD, NAMESPACE)
            held = {each.metadata.labels.get("kgwe.nvidia.io/workload", "") for each in pods} & names
            return not held

        await self.wait(are_stopped)
        return names - held

    async def read_verified(self, optimizer: OptimizerClient, near: float) -> tuple[int, float]:
        """Wait until the optimizer has verified all recommendations; return how many, and its saving per hour.

        `near`: the saving to wait for; the optimizer adds each recommendation when it was metered long enough.
        """
        followed, saving = 0, 0.0

        async def are_verified() -> bool:
            nonlocal followed, saving
            try:
                reply = await optimizer.get_metrics()
            except errors.KgweError:
                return False
            followed, saving = reply.recommendations_followed, reply.realized_saving_per_hour
            self.step.update(
                f"the optimizer has seen {followed} of {len(self.advice)} followed, ${saving:.2f} per hour"
            )
            return followed >= len(self.advice) and abs(saving - near) <= _NEAR * near

        await self.wait(are_verified)
        return followed, saving

    async def list_unverified(self, optimizer: OptimizerClient) -> list[str]:
        """Return the workloads of which the optimizer does not say that advice was followed."""
        missing = []
        for name in sorted(self.advice):
            try:
                reply = await optimizer.explain(NAMESPACE, name)
            except errors.KgweError as exc:
                missing.append(f"{name}: {exc}")
                continue
            if not any(_FOLLOWED in each for each in reply.reasoning):
                missing.append(name)
        return missing

    async def wait(self, is_done: Callable[[], Awaitable[bool]]) -> bool:
        """Ask until it is done or the time is over."""
        deadline = time.monotonic() + self.timeout_s
        while not await is_done():
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(_POLL_S)
        return True

    def count_actions(self) -> dict[str, int]:
        """Return action -> recommendations."""
        return dict(sorted(Counter(each.action for each in self.advice.values()).items()))

    def list_unexpected(self) -> list[str]:
        """Return the workloads with another recommendation than their kind should have."""
        return [
            f"{name}: {advised.action if advised else 'nothing'} instead of {each.waste.action}"
            for name, each in self.workloads.items()
            if (advised := self.advice.get(name)) is None or advised.action != each.waste.action
        ]


async def run_concurrently(jobs: Sequence[Callable[[], Awaitable[Any]]]) -> None:
    """Run the jobs, a few at a time."""
    slots = asyncio.Semaphore(_CONCURRENT)

    async def run(job: Callable[[], Awaitable[Any]]) -> None:
        async with slots:
            await job()

    await asyncio.gather(*(run(job) for job in jobs))
