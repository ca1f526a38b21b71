"""A local cluster: start, attach, inject crashes, stop.

    start sweep leftovers → ports, certificates, files → etcd → API server → the rest → ready
    stop    sidecars → kwok, scheduler, controllers → API server → etcd → (data)

Starting is idempotent: a running cluster is returned unchanged, and an incomplete one is swept and restarted on its
data. Each change holds the lock of the cluster, so of two concurrent starts the second finds a running cluster. If a
start fails or is interrupted, its processes are stopped before the error is raised; the logs stay. If it failed because
another program took a port after it was chosen, it is repeated on other ports.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import shutil
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from kgwe.errors import NotFound, Permanent
from kgwe.local.cluster import certificates, component_config, components, kubeconfig, startup
from kgwe.local.cluster import cluster_record as state
from kgwe.local.cluster.admin_api import Api
from kgwe.local.cluster.cluster_record import ClusterRecord
from kgwe.local.host import cgroups, paths, ports, processes
from kgwe.local.host.lock import Lock
from kgwe.local.host.ports import LOOPBACK
from kgwe.local.host.progress import Progress, Silent
from kgwe.local.toolchain import build

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from kgwe.local.cluster.components import Component, Features
    from kgwe.local.host.processes import ProcessRecord
    from kgwe.local.host.progress import Step
    from kgwe.local.toolchain.binaries import Binaries

_LOCK_TIMEOUT_S = 180.0
_READY_TIMEOUT_S = 240.0
_GRACE_S = 10.0
# Leftover processes get little grace: an API server without etcd would use up any.
_SWEEP_GRACE_S = 3.0
# Another program can take a port after it was chosen; each try uses other ports.
_PORT_TRIES = 3
_TOKEN_LIFETIME_S = 7 * 24 * 3600


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    name: str = "kgwe"
    # A KubeSchedulerConfiguration; the connection to the cluster is filled in. None: kube-scheduler's defaults.
    scheduler_config: str | None = None
    # Kubernetes features that are off by default. A running cluster keeps the features it was started with.
    features: Features = components.NO_FEATURES
    # Directory of clusters, instead of paths.state_root().
    state_root: Path | None = None


class LocalCluster:
    """A handle of a cluster. The state is on disk and in /proc, so any number of handles may exist."""

    def __init__(self, name: str, *, state_root: Path | None = None) -> None:
        self.name = name
        self.directory = paths.cluster_directory(name, state_root)
        self.layout = components.Layout(self.directory)
        # True if start() found the cluster running.
        self.reused = False
        self._root = state_root
        self._lock = Lock(self.directory.parent / f".{name}.lock", purpose=f"managing local cluster {name!r}")

    @classmethod
    def start(
        cls, options: ClusterOptions, *, binaries: Binaries | None = None, progress: Progress | None = None
    ) -> LocalCluster:
        """Start the cluster, or return it if it already runs."""
        progress = progress or Silent()
        cluster = cls(options.name, state_root=options.state_root)
        if not cluster.is_running():
            # Build before taking the lock: it takes minutes, and other commands may need the lock briefly.
            binaries = binaries or build.ensure_binaries(progress)
        with cluster._lock.hold(timeout_s=_LOCK_TIMEOUT_S, waiting=progress.note):
            if not cluster.is_running():
                cluster._start(options, binaries or build.ensure_binaries(progress), progress)
                return cluster
        cluster.reused = True
        if options.scheduler_config is not None:
            cluster.configure_scheduler(options.scheduler_config)
        return cluster

    @classmethod
    def attach(cls, name: str = "kgwe", *, state_root: Path | None = None) -> LocalCluster:
        """Return the running cluster with this name; raise NotFound if there is none."""
        cluster = cls(name, state_root=state_root)
        if not cluster.is_running():
            raise NotFound(f"local cluster {name!r} is not running.\nTo start it: `kgwe local up --name {name}`.")
        return cluster

    def is_running(self) -> bool:
        """Return whether the start has completed, each component runs and the API server responds."""
        known = state.load_record(self.directory)
        if known is None or not known.ready or set(known.processes) != set(components.NAMES):
            return False
        if not all(processes.is_alive(record) for record in known.processes.values()):
            return False
        with self.api() as api:
            return api.is_healthy("/readyz")

    def find_dead(self) -> ProcessRecord | None:
        """Return a process that should run and does not. Waits for a running command, such as a restart."""
        with self._lock.hold(timeout_s=_LOCK_TIMEOUT_S):
            known = state.load_record(self.directory)
            everyone = known.everyone.values() if known is not None else ()
            return next((record for record in everyone if not processes.is_alive(record)), None)

    @property
    def kubeconfig(self) -> Path:
        return self.layout.admin_kubeconfig

    @property
    def context(self) -> str:
        """Return the name of cluster and context in kubeconfigs; it stays unique when files are merged."""
        return self.name if self.name.startswith("kgwe") else f"kgwe-{self.name}"

    @property
    def node_cgroup(self) -> str:
        """Return the name of the control group of the cluster's real node, if it has one."""
        return f"kgwe-{hashlib.sha256(str(self.directory).encode()).hexdigest()[:12]}"

    @property
    def audit_log(self) -> Path:
        return self.layout.audit_log

    @property
    def api_url(self) -> str:
        return f"https://{LOOPBACK}:{self.state().ports[components.APISERVER]}"

    @property
    def metrics_url(self) -> str:
        """Return the URL of the API server's metrics (`apiserver_request_total`), for the administrator."""
        return f"{self.api_url}/metrics"

    def state(self) -> ClusterRecord:
        """Return the stored record of the cluster."""
        known = state.load_record(self.directory)
        if known is None:
            raise NotFound(f"no local cluster named {self.name!r}.\nTo create it: `kgwe local up --name {self.name}`.")
        return known

    @contextmanager
    def api(self) -> Iterator[Api]:
        """Return an API client with the administrator's credentials."""
        with Api(self.api_url, self.layout.certificates) as api:
            yield api

    def stop(self, *, remove: bool = True, grace_s: float = _GRACE_S) -> None:
        """Stop all processes. With `remove`, delete data, certificates and logs too. Stopping twice is no error."""
        if not self.directory.exists():
            return
        with self._lock.hold(timeout_s=_LOCK_TIMEOUT_S):
            self._sweep(grace_s)
            cgroups.remove(self.node_cgroup)
            if remove:
                shutil.rmtree(self.directory, ignore_errors=True)
                self._lock.remove()

    def kill(self, component: str) -> None:
        """Kill one component with SIGKILL, as a crash would."""
        processes.kill(self._find_record(component))

    def restart(self, component: str, *, timeout_s: float = _READY_TIMEOUT_S) -> None:
        """Restart a component with the same arguments and port, and wait until the cluster is ready."""
        with self._lock.hold(timeout_s=_LOCK_TIMEOUT_S):
            old = self._find_record(component)
            processes.terminate([old], grace_s=_GRACE_S)
            self._launch(component, old.argv, old.env)
        self.wait_ready(timeout_s)

    def wait_ready(self, timeout_s: float = _READY_TIMEOUT_S) -> None:
        """Wait until each component is ready and pods can be created."""
        deadline = time.monotonic() + timeout_s
        known = self.state()
        with self.api() as api:
            for name in components.NAMES:
                startup.await_healthy(api, self._find_record(name), components.health_url(name, known.ports), deadline)
            startup.await_service_account(api, deadline)

    def configure_scheduler(self, text: str | None) -> None:
        """Change kube-scheduler's configuration; restart it only if the configuration differs."""
        content = component_config.scheduler_configuration(
            text, kubeconfig=self.layout.kubeconfig(components.SCHEDULER)
        )
        path = self.layout.setting("scheduler.yaml")
        if content != path.read_text():
            path.write_text(content)
            self.restart(components.SCHEDULER)

    def start_sidecar(self, name: str, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> ProcessRecord:
        """Run another process as long as the cluster runs; a process with the same name is replaced."""
        if name in components.NAMES:
            raise Permanent(f"{name} is a component of the control plane; choose another name for the sidecar")
        with self._lock.hold(timeout_s=_LOCK_TIMEOUT_S):
            if (old := self.state().sidecars.get(name)) is not None:
                processes.terminate([old], grace_s=_GRACE_S)
            return self._launch(name, argv, env or {})

    def stop_sidecar(self, name: str) -> bool:
        """Stop a sidecar and forget it; return False if there is none."""
        with self._lock.hold(timeout_s=_LOCK_TIMEOUT_S):
            known = self.state()
            if (old := known.sidecars.get(name)) is None:
                return False
            processes.terminate([old], grace_s=_GRACE_S)
            others = {each: record for each, record in known.sidecars.items() if each != name}
            state.save_record(self.directory, msgspec.structs.replace(known, sidecars=others))
            return True

    def _start(self, options: ClusterOptions, found: Binaries, progress: Progress) -> None:
        with progress.step(f"Starting local cluster {self.name!r}") as step:
            tried: set[int] = set()
            for attempt in range(1, _PORT_TRIES + 1):
                try:
                    self._start_once(options, found, step, tried)
                    break
                except startup.PortTaken:
                    if attempt == _PORT_TRIES:
                        raise
                    tried |= set(self.state().ports.values())

    def _start_once(self, options: ClusterOptions, found: Binaries, step: Step, avoid: Collection[int]) -> None:
        known = self._sweep(_SWEEP_GRACE_S)
        if known is None or not known.resumable:
            shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        certificates.ensure(self.layout.certificates.directory, dt.datetime.now(dt.UTC))
        self._allocate_ports(known, found, avoid)
        startup.write_files(
            self.layout, context=self.context, server=self.api_url, scheduler_config=options.scheduler_config
        )

        def launch(component: Component) -> ProcessRecord:
            step.update(component.name)
            return self._launch(component.name, component.argv, component.env)

        try:
            with self.api() as api:
                startup.start_components(
                    api,
                    self.layout,
                    self.state().ports,
                    found,
                    features=options.features,
                    launch=launch,
                    timeout_s=_READY_TIMEOUT_S,
                )
        except BaseException:
            self._sweep(_SWEEP_GRACE_S)
            raise
        state.save_record(self.directory, msgspec.structs.replace(self.state(), ready=True, resumable=True))

    def _allocate_ports(self, known: ClusterRecord | None, found: Binaries, avoid: Collection[int] = ()) -> None:
        preferred = {name: port for name, port in known.ports.items() if port not in avoid} if known else None
        # One lock for all clusters: a port is taken once it is recorded. "_" is not allowed in cluster names.
        with Lock(self.directory.parent / "._ports.lock", purpose="choosing ports").hold(timeout_s=_LOCK_TIMEOUT_S):
            chosen = ports.allocate(
                components.PORTS,
                preferred=preferred,
                avoid=state.ports_of_others(self.name, self._root) | set(avoid),
                among=ports.CONTROL_PLANES,
            )
            versions = {name: tool.version for name, tool in found.found.items()}
            resumable = known is not None and known.resumable
            state.save_record(
                self.directory, ClusterRecord(self.name, time.time(), chosen, versions, resumable=resumable)
            )

    def _launch(self, name: str, argv: Sequence[str], env: Mapping[str, str]) -> ProcessRecord:
        record = processes.spawn(name, argv, log=self.layout.log(name), owner=self.directory, env=env)
        known = self.state()
        group = "processes" if name in components.NAMES else "sidecars"
        state.save_record(
            self.directory, msgspec.structs.replace(known, **{group: {**getattr(known, group), name: record}})
        )
        return record

    def _find_record(self, component: str) -> ProcessRecord:
        everyone = self.state().everyone
        if component not in everyone:
            raise NotFound(
                f"local cluster {self.name!r} has no process {component}; it has: {', '.join(everyone) or 'none'}"
            )
        return everyone[component]

    def _sweep(self, grace_s: float) -> ClusterRecord | None:
        """Stop all processes of the cluster, recorded or not; return the previous record."""
        try:
            known = state.load_record(self.directory)
        except Permanent:
            known = None  # unreadable record: the environment marks still identify our processes
        records = {record.pid: record for record in processes.find_marked(self.directory)}
        if known is not None:
            records |= {record.pid: record for record in known.everyone.values()}
        control_plane = (components.ETCD, components.APISERVER)
        workers = (components.CONTROLLER_MANAGER, components.SCHEDULER, components.KWOK)
        groups = [
            [record for record in records.values() if record.name not in components.NAMES],
            [record for record in records.values() if record.name in workers],
            *([record for record in records.values() if record.name == name] for name in reversed(control_plane)),
        ]
        for group in groups:
            processes.terminate(group, grace_s=grace_s)
        if known is not None:
            state.save_record(self.directory, msgspec.structs.replace(known, ready=False, processes={}, sidecars={}))
        return known


def service_account_kubeconfig(cluster: LocalCluster, namespace: str, name: str, path: Path) -> Path:
    """Write a kubeconfig of a service account, with a token from the TokenRequest API."""
    with cluster.api() as api:
        token = api.request_token(namespace, name, expires_s=_TOKEN_LIFETIME_S)
    return kubeconfig.write_kubeconfig(
        path,
        context=cluster.context,
        server=cluster.api_url,
        authority=cluster.layout.certificates.authority,
        user_name=f"system:serviceaccount:{namespace}:{name}",
        user=kubeconfig.token_user(token),
        namespace=namespace,
    )
