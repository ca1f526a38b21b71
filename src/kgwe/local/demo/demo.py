"""The demo of `make run`: a local cluster with a simulated GPU fleet, KGWE and sample workloads of both API groups.

The scheduler runs with its own service account, and kube-scheduler calls it. The demo stops the processes it started;
a cluster that already ran keeps running.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.kube.api.kgwe.gpuworkload_status import Phase
from kgwe.kube.client import manifests
from kgwe.kube.client.informer import Informer
from kgwe.local.cluster.cluster import ClusterOptions, LocalCluster
from kgwe.local.demo import install
from kgwe.local.fleet import apply, cloud, exporter, models
from kgwe.local.host import assets
from kgwe.model.units.phrasing import format_count

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from kgwe.kube.client.client import KubeClient
    from kgwe.kube.client.informer import Change
    from kgwe.local.host.progress import Progress

NAMESPACE = "ml-team"
# Long enough for a slow machine; the sample that is expected to succeed runs for ten seconds.
_EXPECT_TIMEOUT_S = 180.0
_FINDINGS_S = 5.0
_COSTS_S = 2.0
_BUDGET = "GPUBudget"
_COST_LINE = re.compile(r'^kgwe_gpu_cost_fleet_per_hour_dollars\{line="([a-z-]+)"\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True)
class Sample:
    """An example manifest and the phase that its workload is expected to reach."""

    file: str
    expects: Phase
    shows: str


SAMPLES = (
    Sample("training.yaml", Phase.RUNNING, "8 GPUs connected by NVSwitch"),
    Sample("distributed.yaml", Phase.RUNNING, "32 GPUs on four nodes of one leaf"),
    Sample("warp-inference.yaml", Phase.SUCCEEDED, "a workload of gpu.warp.dev, 2 GPUs"),
    Sample("inference.yaml", Phase.RUNNING, "1 GPU on a low-cost node, keeps running"),
    Sample("notebook.yaml", Phase.RUNNING, "an idle notebook, which the optimizer finds"),
    Sample("burst.yaml", Phase.SUCCEEDED, "32 GPUs on nodes that are bought for it and go afterwards"),
    Sample("too-large.yaml", Phase.PENDING, "waits, with the reason in its status"),
    Sample("greedy.yaml", Phase.PENDING, "would cost too much: its budget stops it before it starts"),
)


@dataclass
class Seen:
    """The last observed state of a workload, of either API group. `phase` is empty until the scheduler has seen it."""

    name: str
    kind: str
    gpus: str
    phase: str
    node: str
    message: str
    since: float


def ignore_phase(_: Seen) -> None:
    """Do nothing about a change of phase."""


@dataclass
class View:
    """The workloads, nodes and pods that the demo shows. `on_phase` is called at each change of phase."""

    nodes: Informer[Any]
    pods: Informer[Any]
    on_phase: Callable[[Seen], None] = ignore_phase
    seen: dict[tuple[str, str], Seen] = field(default_factory=dict)
    #: of the optimizer; None until it has judged the pods
    findings: list[Any] | None = None
    budgets: Informer[Any] | None = None
    #: dollars per hour by line of the books; None until the cost engine has counted
    costs: dict[str, float] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def on_workload(self, kind: str, change: Change[Any]) -> None:
        key = (kind, change.key)
        self.changed.set()
        if change.new is None:
            self.seen.pop(key, None)
            return
        old = self.seen.get(key)
        spec, status = change.new.spec, change.new.status
        phase = status.phase
        new = self.seen[key] = Seen(
            name=change.new.metadata.name,
            kind=kind,
            gpus=_format_gpus(spec),
            phase=phase,
            node=getattr(status, "nodeSummary", "") or getattr(status, "assignedNode", ""),
            message=status.message,
            since=old.since if old and old.phase == phase else time.monotonic(),
        )
        if phase and (old is None or old.phase != phase):
            self.on_phase(new)

    def phase_of(self, name: str) -> str:
        return next((seen.phase for seen in self.seen.values() if seen.name == name), "")


def _format_gpus(spec: Any) -> str:
    if hasattr(spec, "gpuCount"):
        return str(spec.gpuCount)
    wants = spec.gpuRequirements
    if wants.mig:
        return f"{wants.mig.count}x{wants.mig.profile}"
    return str(wants.share) if wants.count is None else str(wants.count)


@contextlib.contextmanager
def running_cluster(name: str, progress: Progress) -> Any:
    """Yield the cluster with this name. A cluster that was started here is stopped and deleted at the end."""
    ours = not LocalCluster(name).is_running()
    cluster = LocalCluster.start(ClusterOptions(name), progress=progress)
    try:
        yield cluster
    finally:
        if ours:
            with progress.step(f"Stopping local cluster {name!r}"):
                cluster.stop()


@dataclass(frozen=True)
class Endpoints:
    """Where the demo's processes answer."""

    metrics: str
    """URL of the GPU metrics."""
    optimizer: str
    """Address of the optimizer's gRPC service."""
    costs: str = ""
    """URL of the cost engine's metrics."""
    console: str = ""
    """URL of the console."""
    sign_in: str = ""
    """A link that signs a browser in to the console, once."""


async def prepare(cluster: LocalCluster, client: KubeClient, model: str, nodes: int, progress: Progress) -> Endpoints:
    """Install the CRDs and RBAC rules, create the fleet and start KGWE. Return where its processes answer."""
    with progress.step("Installing CRDs and RBAC rules"):
        await install.install(client)
        await manifests.apply_manifest(
            client, [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}]
        )
        # Budgets come before the scheduler: a workload that is faster than its budget would start.
        budgets = [each for sample in SAMPLES for each in _load_documents(sample) if each["kind"] == _BUDGET]
        await manifests.apply_manifest(client, budgets, namespace=NAMESPACE)
    with progress.step(f"Creating {format_count(nodes, 'node')} of the {model} fleet") as step:
        await apply.apply_fleet(
            client, models.load(model), nodes, progress=lambda done, total: step.update(f"{done} of {total}")
        )
    with progress.step(
        "Starting the scheduler, the MIG controller, the optimizer, the cost engine, the console and the GPU metrics"
    ):
        metrics = await asyncio.to_thread(exporter.start, cluster)
        optimizer = await asyncio.to_thread(install.start_optimizer, cluster, metrics)
        records = cluster.directory / "records"
        settings = {
            "KGWE_SCHEDULER_OPTIMIZER_ADDRESS": optimizer,
            "KGWE_SCHEDULER_RECORD_DIRECTORY": str(records),
            "KGWE_SCHEDULER_RECORD_MAX_MB": "32",
        }
        await asyncio.to_thread(lambda: install.start_scheduler(cluster, env=settings))
        await asyncio.to_thread(install.start_mig, cluster)
        await asyncio.to_thread(cloud.start, cluster)
        await asyncio.to_thread(install.start_autoscaler, cluster)
        costs = await asyncio.to_thread(install.start_cost_engine, cluster)
        console = await asyncio.to_thread(install.start_console, cluster, optimizer, records)
        return Endpoints(metrics, optimizer, costs, console)


async def submit_samples(client: KubeClient) -> None:
    policy = manifests.load_manifests(assets.find_asset("examples") / "burst-policy.yaml")
    await manifests.apply_manifest(client, policy)
    for sample in SAMPLES:
        workloads = [each for each in _load_documents(sample) if each["kind"] != _BUDGET]
        await manifests.apply_manifest(client, workloads, namespace=NAMESPACE)


def _load_documents(sample: Sample) -> list[manifests.Document]:
    """Return the manifests of a sample without their status, which only the controller writes."""
    documents = manifests.load_manifests(assets.find_asset("examples") / sample.file)
    return [{key: value for key, value in document.items() if key != "status"} for document in documents]


@contextlib.asynccontextmanager
async def watch_samples(client: KubeClient, on_phase: Callable[[Seen], None] = ignore_phase) -> AsyncIterator[View]:
    """Yield a view of workloads, nodes and pods that informers keep up to date."""
    view = View(nodes=Informer(client, resources.NODE), pods=Informer(client, resources.POD), on_phase=on_phase)
    view.budgets = Informer(client, resources.GPU_BUDGET)
    informers: list[Informer[Any]] = [view.nodes, view.pods, view.budgets]
    for resource in (resources.GPU_WORKLOAD, resources.WARP_GPU_WORKLOAD):
        informer: Informer[Any] = Informer(client, resource)
        kind = resource.group
        informer.on_change(lambda change, kind=kind: view.on_workload(kind, change))  # type: ignore[misc] # bound early
        informers.append(informer)
    tasks = [asyncio.create_task(informer.run()) for informer in informers]
    try:
        yield view
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def find_unmet(view: View) -> dict[str, str]:
    """Return the samples that are not in their expected phase: name -> the difference."""
    wrong = {}
    for sample in SAMPLES:
        for document in _load_documents(sample):
            if document["kind"] == _BUDGET:
                continue
            name = document["metadata"]["name"]
            phase = view.phase_of(name)
            if phase != sample.expects:
                wrong[name] = f"{phase or 'without a phase'}, expected {sample.expects}"
    return wrong


async def wait_expected(view: View, timeout_s: float = _EXPECT_TIMEOUT_S) -> None:
    """Return once each sample is in its expected phase; raise Permanent with the others after the timeout."""
    try:
        async with asyncio.timeout(timeout_s):
            while find_unmet(view):
                view.changed.clear()
                await view.changed.wait()
    except TimeoutError as exc:
        states = "; ".join(f"{name} is {state}" for name, state in find_unmet(view).items())
        more = f"See `kgwe local logs {install.SCHEDULER}`."
        raise errors.Permanent(f"after {timeout_s:.0f} s: {states}. {more}") from exc


async def watch_findings(view: View, address: str) -> None:
    """Keep the optimizer's findings in the view, until cancelled. Until it answers there are none."""
    from kgwe.optimizerapi.client import Access, OptimizerClient  # noqa: PLC0415 - loads gRPC

    async with OptimizerClient(Access(address, deadline_s=2.0)) as optimizer:
        while True:
            with contextlib.suppress(errors.KgweError):
                reply = await optimizer.list_findings()
                view.findings = list(reply.findings) if reply.HasField("judged_s") else None
            await asyncio.sleep(_FINDINGS_S)


async def watch_costs(view: View, url: str) -> None:
    """Keep the dollars per hour in the view, until cancelled."""
    while True:
        found = await asyncio.to_thread(read_costs, url)
        view.costs = found or view.costs
        await asyncio.sleep(_COSTS_S)


async def wait_costs(url: str, timeout_s: float = _EXPECT_TIMEOUT_S) -> dict[str, float]:
    """Return the dollars per hour once pods cost something; what is known after the timeout."""
    until = time.monotonic() + timeout_s
    while True:
        found = await asyncio.to_thread(read_costs, url)
        if found.get("allocated") or time.monotonic() > until:
            return found
        await asyncio.sleep(_COSTS_S / 4)


def read_costs(url: str) -> dict[str, float]:
    """Return the dollars per hour by line, as the metrics of the cost engine say; empty if it does not answer."""
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=2) as reply:  # noqa: S310 - the demo's own process
            text = reply.read().decode()
    except OSError:
        return {}
    return {match[1]: float(match[2]) for match in _COST_LINE.finditer(text)}


async def watch_processes(cluster: LocalCluster) -> None:
    """Raise Permanent when a process of the cluster exits."""
    while True:
        dead = await asyncio.to_thread(cluster.find_dead)
        if dead is not None:
            log = Path(cluster.directory) / "logs"
            raise errors.Permanent(f"{dead.name} exited unexpectedly; see its log in {log}")
        await asyncio.sleep(1)
