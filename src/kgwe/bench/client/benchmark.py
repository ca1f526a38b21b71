"""`kgwe bench client`: the cost of requests to the API server with our HTTP client and with httpx2.

    requests   each worker reads and patches its own pod, on a private local API server (TLS, client
               certificate) or on a loopback server (plain HTTP)
    watch      events that arrive one by one from a loopback server

The transports run alternately, in separate processes. CPU time is that of the client process only.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import yaml

from kgwe import errors
from kgwe.bench import report
from kgwe.bench.client import loopback, probe
from kgwe.bench.cluster import clusters
from kgwe.bench.nodes.informer import build_pod
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient
from kgwe.local.host.ports import LOOPBACK
from kgwe.local.toolchain import build

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kgwe.local.host.progress import Progress, Step

_PROBE_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    #: requests per process
    requests: int = 4000
    #: concurrent requests
    workers: int = 16
    #: watch events per process
    events: int = 1000
    #: processes per transport, run alternately
    repeat: int = 3
    #: use a loopback server instead of an API server
    loopback: bool = False

    def check(self) -> None:
        """Raise Permanent if a size is not valid."""
        for name in ("requests", "workers", "events", "repeat"):
            if getattr(self, name) < 1:
                raise errors.Permanent(f"--{name} must be at least 1")
        if self.requests < self.workers:
            raise errors.Permanent(f"--requests {self.requests}: must be at least --workers {self.workers}")


def run(options: Options, progress: Progress) -> report.Report:
    """Measure both transports and compare them."""
    options.check()
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kgwe-bench-")))
        local = _write_kubeconfig(directory, stack.enter_context(_serve_loopback()))
        target, kubernetes = local, None
        if not options.loopback:
            found = build.ensure_binaries(progress)
            kubernetes = clusters.read_version(found)
            cluster = stack.enter_context(clusters.private_cluster(clusters.name_of("client"), found, progress))
            target = cluster.kubeconfig
            asyncio.run(_create_pods(target, options.workers))
        machine = report.examine_machine(kubernetes=kubernetes)
        with progress.step(f"Sending {options.requests} requests, {options.workers} at a time") as step:
            requests, watches = _probe_all(target, local, options, step)
    return report.Report("client", dataclasses.asdict(options), summarize(requests, watches), machine)


def summarize(
    requests: Mapping[str, Sequence[probe.Result]], watches: Mapping[str, Sequence[probe.Result]]
) -> dict[str, Any]:
    """Return our own numbers by their names, the baseline with a prefix, and the difference; medians over
    processes."""
    own, other = ({**_request_numbers(requests[way]), **_watch_numbers(watches[way])} for way in probe.WAYS)
    return {
        **own,
        **{f"httpx2_{name}": value for name, value in other.items()},
        "cpu_saved_ms_per_request": round(other["cpu_ms_per_request"] - own["cpu_ms_per_request"], 3),
        "cpu_ratio": _compare_rates(other["cpu_ms_per_request"], own["cpu_ms_per_request"]),
        "watch_cpu_ratio": _compare_rates(other["watch_cpu_us_per_event"], own["watch_cpu_us_per_event"]),
    }


def _request_numbers(results: Sequence[probe.Result]) -> dict[str, float]:
    return {
        "requests_per_s": round(statistics.median(each.count / each.wall_s for each in results), 1),
        "cpu_ms_per_request": round(statistics.median(each.cpu_s * 1e3 / each.count for each in results), 3),
        "p50_ms": round(statistics.median(each.p50_ms for each in results), 2),
        "p99_ms": round(statistics.median(each.p99_ms for each in results), 2),
    }


def _watch_numbers(results: Sequence[probe.Result]) -> dict[str, float]:
    return {"watch_cpu_us_per_event": round(statistics.median(each.cpu_s * 1e6 / each.count for each in results), 1)}


def _compare_rates(baseline: float, own: float) -> float | None:
    return round(baseline / own, 2) if own else None


# --- servers -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _serve_loopback() -> Iterator[int]:
    """Run the loopback server and yield its port."""
    with subprocess.Popen([sys.executable, "-m", loopback.__name__], stdout=subprocess.PIPE) as process:
        try:
            if process.stdout is None or not (line := process.stdout.readline()):
                raise errors.Permanent("the loopback server did not start")
            yield int(line)
        finally:
            process.terminate()


def _write_kubeconfig(directory: Path, port: int) -> Path:
    document = {
        "current-context": "bench",
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        "clusters": [{"name": "bench", "cluster": {"server": f"http://{LOOPBACK}:{port}"}}],
        "users": [{"name": "bench", "user": {"token": "bench"}}],
    }
    path = directory / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


async def _create_pods(kubeconfig: Path, workers: int) -> None:
    async with KubeClient.connect(kubeconfig, field_manager="kgwe-bench") as client:
        for worker in range(workers):
            body = build_pod(worker)
            body["metadata"]["name"] = probe.pod_name(worker)
            await client.create(resources.POD, body, probe.NAMESPACE)


# --- processes -----------------------------------------------------------------------------------------


def _probe_all(
    target: Path, local: Path, options: Options, step: Step
) -> tuple[dict[str, list[probe.Result]], dict[str, list[probe.Result]]]:
    requests: dict[str, list[probe.Result]] = {way: [] for way in probe.WAYS}
    watches: dict[str, list[probe.Result]] = {way: [] for way in probe.WAYS}
    for number in range(options.repeat):
        for way in probe.WAYS:
            step.update(f"{way}, round {number + 1} of {options.repeat}")
            requests[way].append(_probe(way, target, probe.REQUESTS, options.requests, options.workers))
            watches[way].append(_probe(way, local, probe.WATCH, options.events, 1))
    return requests, watches


def _probe(way: str, kubeconfig: Path, part: str, count: int, workers: int) -> probe.Result:
    done = subprocess.run(
        [sys.executable, "-m", probe.__name__, way, str(kubeconfig), part, str(count), str(workers)],
        capture_output=True,
        timeout=_PROBE_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise errors.Permanent(f"{part} with {way} failed:\n{done.stderr.decode(errors='replace')[-2000:]}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=probe.Result)
