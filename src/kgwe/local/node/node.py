"""A real node of a local cluster: up, down and status.

    up    programs → simulated GPUs → files → control group → runner → Node Ready, GPUs allocatable
    down  runner (everything inside ends with it) → control group → API objects → files

Both may be repeated, and `down` also cleans up after killed processes and after an incomplete `up`.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from kgwe.errors import KgweError, NotFound, Permanent, Transient
from kgwe.kube.client.client import KubeClient
from kgwe.local.cluster import certificates, components, kubeconfig, startup
from kgwe.local.cluster.cluster import service_account_kubeconfig
from kgwe.local.fleet import agents, models
from kgwe.local.host import cgroups, processes
from kgwe.local.host.lock import Lock
from kgwe.local.host.progress import Progress, Silent
from kgwe.local.node import addresses as node_addresses
from kgwe.local.node import cluster_objects, image_files, programs, settings_files
from kgwe.local.node import spec as node_spec
from kgwe.local.node.spec import NodeSpec, Program
from kgwe.local.nvml.hardware import Hardware
from kgwe.model.simfleet import inventory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kgwe.local.cluster.cluster import LocalCluster
    from kgwe.local.host.processes import ProcessRecord
    from kgwe.local.node.programs import Programs
    from kgwe.model.simfleet.inventory import FleetNode

#: name of the Node, and of the sidecar that runs it
NAME: Final = certificates.REAL_NODE
SIDECAR: Final = "node"
AGENT: Final = "agent"
_PREFIX: Final = "node-"
_READY_TIMEOUT_S: Final = 180.0
_POLL_S: Final = 0.2
_LOCK_TIMEOUT_S: Final = 300.0
_GRACE_S: Final = 10.0
_METRICS_PORT: Final = 9400


class ProgramStatus(msgspec.Struct, frozen=True):
    name: str
    pid: int | None = None
    rss_mib: float | None = None
    cpu_s: float | None = None


class NodeStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    running: bool
    ready: bool = False
    address: str | None = None
    allocatable: dict[str, str] = {}
    programs: list[ProgramStatus] = []
    metrics_url: str | None = None


class RealNode:
    """The real node of a local cluster, whether it runs or not."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.folder = node_spec.node_folder(cluster.directory)
        self._lock = Lock(cluster.directory / ".node.lock", purpose=f"managing the node of {cluster.name!r}")

    # --- up ---------------------------------------------------------------------------------------------

    def start(
        self,
        model: str = "dgx-h100",
        *,
        dra: bool = False,
        agent_settings: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> NodeSpec:
        """Start the node, or return it if it runs.

        With `dra` its GPUs can also be had by ResourceClaims. `agent_settings` has the names of `apps.agent.settings`.
        """
        settings = {**({"enable_dra": "true"} if dra else {}), **(agent_settings or {})}
        progress = progress or Silent()
        found = programs.ensure_programs(progress)
        with self._lock.hold(timeout_s=_LOCK_TIMEOUT_S, waiting=progress.note):
            spec = self.read_spec()
            if spec is not None and self.is_running():
                return spec
            self._clean()
            with progress.step(f"Starting the real node {NAME}") as step:
                machine = replace(inventory.expand_fleet(models.load(model), 1)[0], name=NAME)
                step.update("files")
                spec = self._prepare(found, machine, model, settings)
                try:
                    self._launch(spec, machine, step.update)
                except BaseException:
                    self._stop_processes()
                    cgroups.remove(spec.cgroup)
                    raise
        return spec

    def _prepare(self, found: Programs, machine: FleetNode, model: str, settings: Mapping[str, str]) -> NodeSpec:
        """Write all files of the node; the slot is taken once it is recorded."""
        cluster = self.cluster
        if not cluster.layout.certificates.pair(certificates.KUBELET).key.exists():
            raise Permanent(
                "the cluster was started by an older version, without the certificates of a node.\n"
                f"To restart it on its data: `kgwe local down --keep-data --name {cluster.name}`, then `kgwe local up`."
            )
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with Lock(cluster.directory.parent / "._nodes.lock", purpose="choosing addresses").hold(timeout_s=60):
            slot = node_addresses.choose_slot(_list_taken_slots(cluster.directory.parent))
            spec = NodeSpec(
                NAME,
                str(cluster.directory),
                slot,
                cluster.node_cgroup,
                cluster.state().ports[components.APISERVER],
                self._list_runtime(found),
                (),
                str(found[programs.CTR]),
                (),
                model=model,
                gpus=sum(not gpu.is_cut for gpu in machine.gpus),
            )
            node_spec.save(spec)
        hardware = Hardware.create(self.folder / "hardware", machine)
        environment = dict(hardware.environment)
        hardware.close()
        asyncio.run(_install_agent(cluster))
        spec = msgspec.structs.replace(
            spec,
            programs=(*self._list_programs(found, spec), self._describe_agent(spec, environment, settings)),
            images=self._write_images(),
        )
        self._write_settings(found, spec)
        node_spec.save(spec)
        return spec

    def _write_settings(self, found: Programs, spec: NodeSpec) -> None:
        folder, addresses = self.folder, spec.addresses
        authority = self.cluster.layout.certificates.authority
        contents = {
            "kubelet.yaml": settings_files.kubelet_configuration(folder, authority, addresses, spec.cgroup),
            "containerd.toml": settings_files.containerd_configuration(folder, found.cni, found["runc"]),
            "cni/10-kgwe.conflist": settings_files.cni_configuration(addresses),
            "kube-proxy.yaml": settings_files.proxy_configuration(
                folder / "kube-proxy.kubeconfig", addresses, spec.name
            ),
            "Corefile": settings_files.corefile(folder / "coredns.kubeconfig", addresses),
            "hosts": settings_files.hosts_file(addresses, spec.name),
            "resolv.conf": "",
        }
        for name, text in contents.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        files = self.cluster.layout.certificates
        for identity in (certificates.KUBELET, certificates.KUBE_PROXY, certificates.COREDNS):
            kubeconfig.write_kubeconfig(
                folder / f"{identity.file}.kubeconfig",
                context=self.cluster.context,
                server=addresses.api_url,
                authority=files.authority,
                user_name=identity.user,
                user=kubeconfig.certificate_user(files.pair(identity)),
            )

    def _write_images(self) -> tuple[str, ...]:
        pause, busybox = self.folder / "pause.tar", self.folder / "busybox.tar"
        image_files.write_pause_image(pause, settings_files.PAUSE_IMAGE)
        has_busybox = image_files.write_busybox_image(busybox, settings_files.BUSYBOX_IMAGE)
        return (str(pause), *([str(busybox)] if has_busybox else ()))

    def _list_runtime(self, found: Programs) -> Program:
        path = f"{found[programs.SHIM].parent}:{programs.SYSTEM_PATH}"
        argv = (str(found[programs.CONTAINERD]), "--config", str(self.folder / "containerd.toml"))
        return self._describe_program(programs.CONTAINERD, argv, {"PATH": path})

    def _list_programs(self, found: Programs, spec: NodeSpec) -> tuple[Program, ...]:
        folder = self.folder
        kubelet = (
            str(found[programs.KUBELET]),
            f"--config={folder / 'kubelet.yaml'}",
            f"--kubeconfig={folder / 'kubelet.kubeconfig'}",
            f"--root-dir={settings_files.KUBELET_ROOT}",
            f"--cert-dir={settings_files.KUBELET_ROOT}/pki",
            f"--hostname-override={spec.name}",
            f"--node-ip={spec.addresses.node}",
        )
        proxy = (str(found[programs.KUBE_PROXY]), f"--config={folder / 'kube-proxy.yaml'}")
        dns = (str(found[programs.COREDNS]), "-conf", str(folder / "Corefile"))
        path = {"PATH": programs.SYSTEM_PATH}
        return tuple(
            self._describe_program(name, argv, path)
            for name, argv in ((programs.KUBELET, kubelet), (programs.KUBE_PROXY, proxy), (programs.COREDNS, dns))
        )

    def _describe_agent(self, spec: NodeSpec, hardware: Mapping[str, str], settings: Mapping[str, str]) -> Program:
        token = service_account_kubeconfig(
            self.cluster, agents.NAMESPACE, agents.NAME, self.folder / "agent.kubeconfig"
        )
        token.write_text(token.read_text().replace(self.cluster.api_url, spec.addresses.api_url))
        given = {
            "node_name": spec.name,
            "grpc_bind_address": "127.0.0.1:50052",
            "exporter_bind_address": f"{spec.addresses.node}:{_METRICS_PORT}",
            "enable_device_plugin": "true",
            "discovery_interval_seconds": "5",
            "cloud": "none",
            "cdi_folder": settings_files.CDI_FOLDER,
            **settings,
        }
        env = {f"KGWE_AGENT_{key.upper()}": value for key, value in given.items()}
        env |= {"KUBECONFIG": str(token), **agents.COMPILED, **hardware}
        return self._describe_program(AGENT, (sys.executable, "-m", "kgwe.apps.agent"), env)

    def _describe_program(self, name: str, argv: tuple[str, ...], env: Mapping[str, str]) -> Program:
        return Program(name, argv, str(self.cluster.layout.log(f"{_PREFIX}{name}")), dict(env))

    def _launch(self, spec: NodeSpec, machine: FleetNode, say: Callable[[str], None]) -> None:
        cgroups.create(spec.cgroup)
        with self.cluster.api() as api:
            cluster_objects.apply_objects(api, spec.addresses)
        command = [sys.executable, "-m", "kgwe.local.node.runner", str(self.folder / node_spec.FILE)]
        runner = self.cluster.start_sidecar(SIDECAR, command, env=agents.COMPILED)
        deadline = time.monotonic() + _READY_TIMEOUT_S
        labelled = False
        with self.cluster.api() as api:
            while True:
                with suppress(Transient):
                    node = cluster_objects.read_node(api, spec.name)
                    if node is not None and not labelled:
                        cluster_objects.label_node(api, machine)
                        labelled = True
                    if node is not None and cluster_objects.is_ready(node) and _has_gpus(node, spec):
                        return
                    say(_describe_wait(node))
                if not processes.is_alive(runner):
                    raise Permanent(f"the node ended while it started. Last lines of {runner.log}:\n{_tail(runner)}")
                if time.monotonic() > deadline:
                    raise Transient(
                        f"{spec.name}: {_describe_wait(cluster_objects.read_node(api, spec.name))} after"
                        f" {_READY_TIMEOUT_S:.0f} s; see `kgwe local logs node-kubelet` and `... node-agent`"
                    )
                time.sleep(_POLL_S)

    # --- down -------------------------------------------------------------------------------------------

    def stop(self) -> bool:
        """Stop the node and remove everything of it; return whether there was one."""
        if not self.cluster.directory.exists():
            return False
        with self._lock.hold(timeout_s=_LOCK_TIMEOUT_S):
            return self._clean()

    def _clean(self) -> bool:
        was_there = self.folder.exists()
        self._stop_processes()
        cgroups.remove(self.cluster.node_cgroup)
        # A cluster that does not run keeps the objects until the next `down`.
        with suppress(KgweError), self.cluster.api() as api:
            cluster_objects.remove_node(api, NAME)
        shutil.rmtree(self.folder, ignore_errors=True)
        for folder in ("/var/lib/kubelet", "/var/lib/cni"):
            with suppress(OSError):  # mount points of the node; a folder with content is not ours
                Path(folder).rmdir()
        return was_there

    def _stop_processes(self) -> None:
        with suppress(KgweError):
            self.cluster.stop_sidecar(SIDECAR)
        processes.terminate(self._list_processes(), grace_s=_GRACE_S)

    # --- images -----------------------------------------------------------------------------------------

    def load_image(self, archive: Path) -> str:
        """Import an image archive into the node's containerd; return what ctr says."""
        spec, runtime = self.read_spec(), self.find_process(programs.CONTAINERD)
        if spec is None or runtime is None:
            raise NotFound("there is no real node.\nTo start one: `kgwe local node up`.")
        if not archive.is_file():
            raise Permanent(f"{archive} is no file; `kgwe image build` writes image archives")
        enter = ["nsenter", "--target", str(runtime.pid), "--mount"]
        load = [spec.ctr, "--address", settings_files.CONTAINERD_SOCKET, "-n", "k8s.io", "images", "import"]
        done = subprocess.run(
            [*enter, *load, str(archive.absolute())],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode:
            raise Permanent(f"containerd refuses {archive}: {done.stderr.strip()}")
        return done.stdout.strip()

    # --- status -----------------------------------------------------------------------------------------

    def read_spec(self) -> NodeSpec | None:
        return node_spec.load(self.folder / node_spec.FILE)

    def is_running(self) -> bool:
        known = self.cluster.state().sidecars.get(SIDECAR)
        return known is not None and processes.is_alive(known)

    def find_process(self, program: str) -> ProcessRecord | None:
        """Return the process of a program of the node, with its pid on the host; None if it does not run."""
        spec = self.read_spec()
        wanted = next((each for each in (spec.runtime, *spec.programs) if each.name == program), None) if spec else None
        found = [each for each in self._list_processes() if each.name == f"{_PREFIX}{program}"]
        # Children inherit the mark; the program itself has the argument list it was started with.
        return next((each for each in found if wanted is not None and each.argv == wanted.argv), None)

    def _list_processes(self) -> list[ProcessRecord]:
        found = processes.find_marked(self.cluster.directory)
        return [each for each in found if each.name == SIDECAR or each.name.startswith(_PREFIX)]

    def examine(self) -> NodeStatus:
        """Return what runs and what the API server knows of it."""
        spec = self.read_spec()
        if spec is None or not self.is_running():
            return NodeStatus(NAME, running=False)
        with self.cluster.api() as api:
            node = cluster_objects.read_node(api, NAME) or {}
        allocatable = node.get("status", {}).get("allocatable", {})
        names = [each.name for each in (spec.runtime, *spec.programs)]
        return NodeStatus(
            NAME,
            running=True,
            ready=cluster_objects.is_ready(node),
            address=spec.addresses.node,
            allocatable={key: value for key, value in allocatable.items() if key.startswith("nvidia.com/")},
            programs=[self._examine_program(name) for name in names],
            metrics_url=f"http://{spec.addresses.node}:{_METRICS_PORT}/metrics",
        )

    def _examine_program(self, name: str) -> ProgramStatus:
        record = self.find_process(name)
        usage = processes.read_usage(record) if record is not None else None
        if record is None or usage is None:
            return ProgramStatus(name)
        return ProgramStatus(name, record.pid, round(usage.rss_mib, 1), round(usage.cpu_s, 2))


async def _install_agent(cluster: LocalCluster) -> None:
    async with KubeClient.connect(cluster.kubeconfig, field_manager="kgwe-local") as client:
        await agents.install(client)


def _list_taken_slots(clusters: Path) -> set[int]:
    found = (node_spec.load(node_spec.node_folder(folder) / node_spec.FILE) for folder in clusters.iterdir())
    return {each.slot for each in found if each is not None}


def _has_gpus(node: dict[str, object], spec: NodeSpec) -> bool:
    status = node.get("status")
    allocatable = status.get("allocatable", {}) if isinstance(status, dict) else {}
    return any(key.startswith("nvidia.com/") and value != "0" for key, value in allocatable.items()) or not spec.gpus


def _describe_wait(node: dict[str, object] | None) -> str:
    if node is None:
        return "not registered"
    return "registered, without GPUs" if cluster_objects.is_ready(node) else "registered, not Ready"


def _tail(record: ProcessRecord) -> str:
    return startup.read_tail(Path(record.log))
