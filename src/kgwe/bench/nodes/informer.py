"""`kgwe bench informer`: the cost of listing all pods of a large cluster.

Unscheduled pods are created on a private cluster and listed page by page, each time in a separate process: with
KGWE's informer, with the informer in JSON, with lightkube's typed client (the baseline), and into plain dictionaries.
Wall time includes the API server, which encodes each page on the same machine; CPU time is that of the client only.
"""

from __future__ import annotations

import asyncio
import dataclasses
import statistics
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from kgwe import errors
from kgwe.bench import report
from kgwe.bench.cluster import clusters
from kgwe.bench.cluster.load import run_concurrently
from kgwe.bench.nodes import informer_probe
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient
from kgwe.local.toolchain import build

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kgwe.local.cluster.cluster import LocalCluster
    from kgwe.local.host.progress import Progress

_PROBE_TIMEOUT_S = 600.0
_NAMESPACE = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    pods: int = 10_000
    page_size: int = 500
    # Lists per process, after one warm-up list.
    lists: int = 3
    # Processes per method, run alternately.
    repeat: int = 3

    def check(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) < 1:
                raise errors.Permanent(f"--{field.name.replace('_', '-')} must be at least 1")


def run(options: Options, progress: Progress) -> report.Report:
    """Create the pods, list them with each method, and compare."""
    options.check()
    found = build.ensure_binaries(progress)
    machine = report.examine_machine(kubernetes=clusters.read_version(found))
    with clusters.private_cluster(clusters.name_of("informer"), found, progress) as cluster:
        with progress.step(f"Creating {options.pods} pods") as step:
            asyncio.run(_fill(cluster, options.pods, lambda done: step.update(f"{done} of {options.pods}")))
        results: dict[str, list[informer_probe.Result]] = {way: [] for way in informer_probe.WAYS}
        with progress.step(f"Listing {options.pods} pods") as step:
            for number in range(options.repeat):
                for way, each in results.items():
                    step.update(f"{way}, round {number + 1} of {options.repeat}")
                    each.append(_probe(way, cluster, options))
    return report.Report("informer", dataclasses.asdict(options), summarize(results), machine)


def summarize(results: Mapping[str, Sequence[informer_probe.Result]]) -> dict[str, Any]:
    """Return the informer's numbers under plain names, and all numbers by method; medians over all lists."""
    ways = {way: _summarize_results(each) for way, each in results.items()}
    mine, baseline = ways[informer_probe.INFORMER], ways[informer_probe.LIGHTKUBE]
    return {
        **mine,
        "lightkube_us_per_pod": baseline["us_per_pod"],
        "lightkube_cpu_us_per_pod": baseline["cpu_us_per_pod"],
        "lightkube_rss_mb": baseline["rss_mb"],
        "cpu_ratio": round(baseline["cpu_us_per_pod"] / mine["cpu_us_per_pod"], 2),
        "rss_ratio": round(baseline["rss_added_mb"] / mine["rss_added_mb"], 2) if mine["rss_added_mb"] else None,
        "ways": ways,
    }


def _summarize_results(results: Sequence[informer_probe.Result]) -> dict[str, Any]:
    pods = results[0].pods
    walls = [seconds / pods * 1e6 for result in results for seconds in result.wall_s]
    cpus = [seconds / pods * 1e6 for result in results for seconds in result.cpu_s]
    return {
        "pods": pods,
        "us_per_pod": round(statistics.median(walls), 2),
        "cpu_us_per_pod": round(statistics.median(cpus), 2),
        "list_s": round(statistics.median(walls) * pods / 1e6, 3),
        "rss_mb": round(statistics.median(result.rss_mb for result in results), 1),
        "rss_added_mb": round(statistics.median(result.rss_mb - result.rss_before_mb for result in results), 1),
        "rss_peak_mb": round(statistics.median(result.rss_peak_mb for result in results), 1),
        "bytes_per_pod": round(results[0].bytes / pods),
    }


# --- pods ----------------------------------------------------------------------------------------------


def build_pod(index: int) -> dict[str, Any]:
    """Return a training pod as an operator would create it; the API server adds as much again."""
    job = f"train-{index // 64}"
    labels = {
        "app": job,
        "batch.kubernetes.io/job-name": job,
        "batch.kubernetes.io/job-completion-index": str(index % 64),
    }
    environment = [{"name": f"SETTING_{number}", "value": f"value-{number}"} for number in range(8)]
    room = {"cpu": "12", "memory": "180Gi", "nvidia.com/gpu": "1"}
    return {
        "metadata": {"name": f"{job}-{index % 64}", "labels": labels, "annotations": {"example.com/team": "research"}},
        "spec": {
            # No scheduler has this name: the pods stay pending and are not written while they are listed.
            "schedulerName": "nobody",
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "containers": [
                {
                    "name": "trainer",
                    "image": "registry.example/train:1",
                    "command": ["python", "-m", "train"],
                    "env": environment,
                    "resources": {"requests": room, "limits": room},
                    "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108 - where shared memory is
                }
            ],
            "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
        },
    }


async def create_pods(
    client: KubeClient, count: int, namespace: str = _NAMESPACE, progress: Callable[[int], None] = lambda _: None
) -> None:
    """Create `count` unscheduled pods and call `progress(done)` from time to time."""
    done = 0

    async def create(index: int) -> None:
        nonlocal done
        await client.create(resources.POD, build_pod(index), namespace)
        done += 1
        if done % 250 == 0:
            progress(done)

    await run_concurrently(range(count), create)


async def _fill(cluster: LocalCluster, count: int, progress: Callable[[int], None]) -> None:
    async with KubeClient.connect(cluster.kubeconfig, field_manager="kgwe-bench") as client:
        await create_pods(client, count, progress=progress)


# --- processes -----------------------------------------------------------------------------------------


def _probe(way: str, cluster: LocalCluster, options: Options) -> informer_probe.Result:
    argv = [way, str(cluster.kubeconfig), str(options.page_size), str(options.lists)]
    done = subprocess.run(
        [sys.executable, "-m", informer_probe.__name__, *argv],
        capture_output=True,
        timeout=_PROBE_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise errors.Permanent(f"listing pods as {way} failed:\n{done.stderr.decode(errors='replace')[-2000:]}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=informer_probe.Result)
