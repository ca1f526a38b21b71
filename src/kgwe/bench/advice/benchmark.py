"""`kgwe bench recommendations`: the optimizer's advice is followed on a local cluster, and metered.

    wasteful workloads → use is metered → advice → all of it is followed at once → use is metered again

The promise is the sum of the recommendations' savings. The meter has no part in them: it reads which pod holds
which devices of which node, every few seconds, at prices of whole nodes.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import httpx2
import yaml

from kgwe import errors
from kgwe.bench import report
from kgwe.bench.advice.meter import AllocationMeter
from kgwe.bench.advice.trial import NAMESPACE, Trial
from kgwe.bench.advice.workloads import A100, L40S, make_fleet, make_workloads
from kgwe.bench.cluster import clusters
from kgwe.bench.loop import loop_factory
from kgwe.kube.client.client import KubeClient
from kgwe.local.demo import install
from kgwe.local.fleet import apply, exporter
from kgwe.local.toolchain import build
from kgwe.optimizerapi.client import Access, OptimizerClient

if TYPE_CHECKING:
    from kgwe.local.cluster.cluster import LocalCluster
    from kgwe.local.host.progress import Progress, Step

_MIN_METER_S: Final = 10.0
# Dollars per hour of a node with eight GPUs, by instance type. The optimizer's price of one GPU is an eighth of it.
_NODE_PRICES: Final = {"hgx-a100": 27.2, "l40s": 16.32}
_GPU_PRICES: Final = {A100: 3.4, L40S: 2.04}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Size and times."""

    count: int = 100
    #: part of the advised devices that the fleet has
    room: float = 1.0
    meter_s: float = 60.0
    timeout_s: float = 300.0

    def check(self) -> None:
        """Raise Permanent for a size or time that makes no sense."""
        if self.count < 1:
            raise errors.Permanent(f"--count {self.count}: must be at least 1")
        if not 0 <= self.room <= 1:
            raise errors.Permanent(f"--room {self.room:g}: must be from 0 to 1")
        if self.meter_s < _MIN_METER_S:
            raise errors.Permanent(f"--meter-s {self.meter_s:g}: must be at least {_MIN_METER_S:g}")


def run(options: Options, progress: Progress) -> report.Report:
    """Follow recommendations on a private cluster."""
    options.check()
    clusters.sweep()
    found = build.ensure_binaries(progress)
    machine = report.examine_machine(kubernetes=clusters.read_version(found))
    with (
        clusters.private_cluster(clusters.name_of("recommendations"), found, progress) as cluster,
        progress.step(f"{options.count} recommendations") as step,
        asyncio.Runner(loop_factory=loop_factory()) as runner,
    ):
        metrics = runner.run(_measure(cluster, options, step))
    params = {"count": options.count, "room": options.room, "meter_s": options.meter_s}
    return report.Report("recommendations", params, metrics, machine)


async def _measure(cluster: LocalCluster, options: Options, step: Step) -> dict[str, Any]:
    workloads = make_workloads(options.count)
    fleet, nodes = make_fleet(workloads, options.room)
    async with KubeClient.connect(cluster.kubeconfig) as client:
        step.update(f"installing KGWE on {nodes} nodes")
        await install.install(client)
        await apply.apply_fleet(client, fleet, nodes)
        url = await asyncio.to_thread(exporter.start, cluster)
        config = cluster.directory / "optimizer.yaml"
        await asyncio.to_thread(config.write_text, yaml.safe_dump({"prices": _GPU_PRICES}), "utf-8")
        address = await asyncio.to_thread(install.start_optimizer, cluster, url, config)
        await asyncio.to_thread(install.start_scheduler, cluster)
        trial = Trial(client, step, options.timeout_s)
        await trial.create(workloads)
        async with (
            httpx2.AsyncClient(trust_env=False) as web,
            OptimizerClient(Access(address, deadline_s=5.0)) as optimizer,
        ):
            meter = AllocationMeter(client, web, f"{url}/metrics", NAMESPACE, _NODE_PRICES)
            return await _follow(trial, meter, optimizer, options)


async def _follow(trial: Trial, meter: AllocationMeter, optimizer: OptimizerClient, options: Options) -> dict[str, Any]:
    trial.step.update(f"metering for {options.meter_s:g} s")
    before = await meter.meter(options.meter_s)
    await trial.read_advice(optimizer)
    unexpected = trial.list_unexpected()
    trial.step.update("following the recommendations")
    await trial.follow()
    moved = {name for name, each in trial.advice.items() if each.action != "Suspend"}
    stopped = await trial.await_stopped(trial.advice.keys() - moved)
    started = await trial.await_running(moved)
    trial.step.update(f"metering for {options.meter_s:g} s")
    after = await meter.meter(options.meter_s)
    promised = math.fsum(each.saving_per_hour or 0.0 for each in trial.advice.values())
    metered = before.dollars_per_hour - after.dollars_per_hour
    followed, verified = await trial.read_verified(optimizer, metered)
    return {
        "recommended": len(trial.advice),
        "applied": len(trial.advice),
        "resized": len(moved),
        "started": len(started),
        "suspended": len(stopped),
        "not_started": sorted(moved - started),
        "unexpected": unexpected,
        "before_dollars_per_hour": round(before.dollars_per_hour, 4),
        "after_dollars_per_hour": round(after.dollars_per_hour, 4),
        "promised_dollars_per_hour": round(promised, 4),
        "metered_dollars_per_hour": round(metered, 4),
        "error_share": round(abs(metered - promised) / promised, 5) if promised else None,
        "verified": followed,
        "not_verified": await trial.list_unverified(optimizer),
        "verified_dollars_per_hour": round(verified, 4),
        "unmetered_pods": before.unmetered + after.unmetered,
        "actions": trial.count_actions(),
    }
