"""Runs Prometheus as a sidecar of a local cluster. It finds the simulated nodes by the exporter's list of targets."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import httpx2
import yaml

from kgwe import errors
from kgwe.local.fleet import exporter
from kgwe.local.host import ports, processes
from kgwe.local.prometheus import binary

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kgwe.local.cluster.cluster import LocalCluster
    from kgwe.local.host.progress import Progress

SIDECAR: Final = "prometheus"
JOB: Final = "gpu-metrics"
PORT: Final = 9090
_READY_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.1
_LISTEN: Final = "--web.listen-address="


@dataclass(frozen=True, slots=True)
class PrometheusStatus:
    """What is known of the Prometheus of a cluster."""

    url: str = ""
    pid: int | None = None
    version: str = ""
    problem: str | None = None
    targets_up: int = 0
    targets_down: int = 0


def make_configuration(
    targets_url: str, *, interval_s: float = 15.0, jobs: Mapping[str, Mapping[str, str]] | None = None
) -> str:
    """Return prometheus.yml: each job scrapes all targets of the list, and adds its labels to them."""
    interval = f"{round(interval_s * 1000)}ms"
    configs: list[dict[str, Any]] = []
    for job, labels in (jobs or {JOB: {}}).items():
        relabel = [{"target_label": name, "replacement": value} for name, value in labels.items()]
        configs.append(
            {
                "job_name": job,
                "http_sd_configs": [{"url": targets_url, "refresh_interval": "5s"}],
                **({"relabel_configs": relabel} if relabel else {}),
            }
        )
    return yaml.safe_dump(
        {"global": {"scrape_interval": interval, "scrape_timeout": interval}, "scrape_configs": configs},
        sort_keys=False,
    )


def make_command(program: Path, configuration: Path, data: Path, listen: str) -> list[str]:
    """Return the command line; the same for both version lines."""
    return [
        str(program),
        f"--config.file={configuration}",
        f"--storage.tsdb.path={data}",
        "--storage.tsdb.retention.time=1d",
        f"{_LISTEN}{listen}",
        "--log.level=warn",
    ]


def start(
    cluster: LocalCluster,
    *,
    line: int | None = None,
    interval_s: float = 15.0,
    progress: Progress | None = None,
) -> str:
    """Start Prometheus beside a cluster, and the exporter if it does not run; return its URL.

    A running Prometheus stays, unless it is of another version line.
    """
    known = cluster.state().sidecars.get(SIDECAR)
    found = binary.ensure_prometheus(line, progress)
    if known is not None and processes.is_alive(known) and known.argv[0] == str(found.path):
        return f"http://{_listen_of(known.argv)}"
    stop(cluster)  # before ports are chosen: another version line takes over its port
    targets_url = f"{exporter.start(cluster)}/targets"
    configuration = cluster.directory / "prometheus.yml"
    configuration.write_text(make_configuration(targets_url, interval_s=interval_s))
    listen = f"{ports.LOOPBACK}:{ports.allocate((SIDECAR,), preferred={SIDECAR: PORT})[SIDECAR]}"
    # Each version line has its own data: an older one cannot read what a newer one wrote.
    data = cluster.directory / f"prometheus-{found.version.split('.')[0]}"
    cluster.start_sidecar(SIDECAR, make_command(found.path, configuration, data, listen))
    await_ready(f"http://{listen}")
    return f"http://{listen}"


def stop(cluster: LocalCluster) -> bool:
    """Stop Prometheus; its data stays until the cluster is removed. Return False if it does not run."""
    return cluster.stop_sidecar(SIDECAR)


def examine(cluster: LocalCluster) -> PrometheusStatus:
    """Return whether Prometheus of a cluster runs, and how many of its targets respond."""
    known = cluster.state().sidecars.get(SIDECAR)
    if known is None:
        return PrometheusStatus(problem="not started")
    url = f"http://{_listen_of(known.argv)}"
    if not processes.is_alive(known):
        return PrometheusStatus(url, problem=f"exited; see `kgwe local logs {SIDECAR}`")
    try:
        with httpx2.Client(base_url=url, trust_env=False) as client:
            version = client.get("/api/v1/status/buildinfo").raise_for_status().json()["data"]["version"]
            active = client.get("/api/v1/targets?state=active").raise_for_status().json()["data"]["activeTargets"]
    except (httpx2.HTTPError, ValueError, KeyError) as exc:
        return PrometheusStatus(url, known.pid, problem=f"does not respond: {exc}")
    up = sum(target.get("health") == "up" for target in active)
    return PrometheusStatus(url, known.pid, version, None, up, len(active) - up)


def await_ready(url: str) -> None:
    """Wait until Prometheus accepts queries, for at most a minute."""
    with httpx2.Client(transport=httpx2.HTTPTransport(retries=6), trust_env=False) as client:
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while time.monotonic() < deadline:
            try:
                if client.get(f"{url}/-/ready").status_code == httpx2.codes.OK:
                    return
            except httpx2.HTTPError as exc:
                raise errors.Transient(
                    f"Prometheus at {url} does not respond: {exc}; see `kgwe local logs {SIDECAR}`"
                ) from exc
            time.sleep(_POLL_S)  # it replays its log
    raise errors.Transient(f"Prometheus at {url} is not ready; see `kgwe local logs {SIDECAR}`")


def _listen_of(argv: tuple[str, ...]) -> str:
    return next((each.removeprefix(_LISTEN) for each in argv if each.startswith(_LISTEN)), "")
