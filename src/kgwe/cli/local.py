"""`kgwe local`: starts, stops and inspects local clusters."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from cyclopts import App, Parameter

from kgwe import terminal, text_files
from kgwe.errors import KgweError, NotFound
from kgwe.local.cluster import components, logs, startup, status
from kgwe.local.cluster.cluster import ClusterOptions, LocalCluster
from kgwe.local.cluster.supervisor import Supervisor
from kgwe.local.host import paths, progress
from kgwe.local.toolchain import binaries, build

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.local.cluster.status import ClusterStatus, ComponentStatus
    from kgwe.local.host.processes import ProcessRecord

app = App(
    name="local",
    help="""Run a real Kubernetes control plane on this machine.

etcd, kube-apiserver, kube-controller-manager and kube-scheduler are real; kwok replaces the kubelets, so
nodes and pods use almost no resources. Several clusters can run at the same time under different names.""",
    help_format="plaintext",
)

app.command("kgwe.cli.fleet:fleet_app", name="fleet", help="Create, list and remove simulated GPU nodes.")
app.command(
    "kgwe.cli.fleet:fault_app", name="fault", help="Inject hardware faults into simulated nodes, and clear them."
)
app.command(
    "kgwe.cli.fleet:metrics",
    name="metrics",
    help="Serve the GPU metrics of the simulated nodes.",
    help_epilogue="""Examples:
  kgwe local metrics                            serve them at http://127.0.0.1:9400/metrics
  kgwe local metrics --listen 127.0.0.1:0       on a free port
  kgwe local metrics --once --node h100-0000    print the metrics of one node and exit""",
)

app.command(
    "kgwe.cli.fleet:cloud",
    name="cloud",
    help="Run the simulated cloud, which makes nodes for kgwe autoscaler (provider kwok).",
    help_epilogue="""Examples:
  kgwe local cloud                                  nodes join after a second
  kgwe local cloud --launch-delay 30 --gpu-delay 90
  kgwe local cloud --stock "p5.48xlarge/*/spot=0" --quota "p4de.24xlarge/*=4\"""",
)
app.command("kgwe.cli.sidecars.node:app", name="node", help="Run one real node: kubelet, containerd and the agent.")
app.command(
    "kgwe.cli.sidecars.prometheus:app",
    name="prometheus",
    help="Run a real Prometheus that scrapes the simulated GPU nodes.",
)

Name = Annotated[str, Parameter(name=["--name", "-n"], help="Name of the local cluster.")]
Output = Annotated[Literal["table", "json"], Parameter(name=["--output", "-o"], help="Output format.")]


@app.command(
    help_epilogue="""Examples:
  kgwe local up                      start the cluster, unless it already runs
  kgwe local up --foreground         run until Ctrl-C, then stop and delete the cluster
  kgwe local up --name second        start a second cluster
  kgwe local up --fleet mixed --nodes 64   with 64 simulated GPU nodes
  kgwe local up --scheduler-config my-scheduler.yaml
  kgwe local up --feature-gate GangScheduling=true --api scheduling.k8s.io/v1alpha2"""
)
def up(
    *,
    name: Name = "kgwe",
    foreground: bool = False,
    keep_data: bool = False,
    scheduler_config: Path | None = None,
    feature_gate: tuple[str, ...] = (),
    api: tuple[str, ...] = (),
    fleet: str | None = None,
    nodes: int = 16,
) -> int:
    """Start a local cluster. A cluster that already runs stays unchanged.

    Binaries are taken from $KUBEBUILDER_ASSETS, PATH or the cache; missing ones are built from source once.

    Parameters
    ----------
    foreground
        Keep running, report components that exit, and stop the cluster on Ctrl-C.
    keep_data
        With --foreground: keep the data on exit, so that the next `up` continues with it.
    scheduler_config
        KubeSchedulerConfiguration file for kube-scheduler.
    feature_gate
        Kubernetes feature gate, such as GangScheduling=true. May be repeated.
    api
        API version to serve that is off by default, such as scheduling.k8s.io/v1alpha2. May be repeated.
    fleet
        Fleet model of simulated GPU nodes: a file such as models/mixed.yaml, or a name `kgwe local fleet models`
        lists.
    nodes
        With --fleet: number of nodes.
    """
    options = ClusterOptions(
        name=name,
        scheduler_config=None if scheduler_config is None else _read_file(scheduler_config),
        features=components.Features(feature_gate, api),
    )
    # Handle SIGTERM like Ctrl-C: stop everything that was started so far.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    cluster = LocalCluster.start(options, progress=progress.for_stream())
    if fleet is not None:
        from kgwe.cli.fleet import bring  # noqa: PLC0415 -- a cluster without a fleet does without it

        bring(cluster, fleet, nodes)
    _print(_format_summary(cluster))
    return _supervise(cluster, keep_data=keep_data) if foreground else 0


@app.command(
    help_epilogue="""Examples:
  kgwe local down                    stop the cluster and remove its data
  kgwe local down --keep-data        stop it; the next up continues with its data
  kgwe local down --all              stop every local cluster"""
)
def down(
    *,
    name: Name = "kgwe",
    all_clusters: Annotated[bool, Parameter(name="--all", negative="")] = False,
    keep_data: bool = False,
) -> int:
    """Stop a local cluster and delete its data. Only processes of this cluster are stopped.

    Parameters
    ----------
    all_clusters
        Stop every local cluster.
    keep_data
        Keep data, certificates and logs, so that the next `up` continues with them.
    """
    names = paths.cluster_names() if all_clusters else [name]
    for each in names:
        cluster = LocalCluster(each)
        if not cluster.directory.exists():
            _print(f"No local cluster named {each!r}.")
            continue
        with progress.for_stream().step(f"Stopping local cluster {each!r}"):
            cluster.stop(remove=not keep_data)
    if all_clusters and not names:
        _print("There are no local clusters.")
    return 0


@app.command(
    name="status",
    help_epilogue="""Examples:
  kgwe local status                  show the components of the cluster
  kgwe local status --all            show all clusters
  kgwe local status -o json          print JSON""",
)
def show_status(
    *,
    name: Name = "kgwe",
    all_clusters: Annotated[bool, Parameter(name="--all", negative="")] = False,
    output: Output = "table",
) -> int:
    """Show the components of a cluster. Exit code 0 if all are ready, 1 otherwise.

    Parameters
    ----------
    all_clusters
        Show all local clusters.
    """
    names = paths.cluster_names() if all_clusters else [name]
    found = [status.examine(LocalCluster(each)) for each in names]
    if output == "json":
        _print(msgspec.json.format(msgspec.json.encode(found if all_clusters else found[0]), indent=2).decode())
    else:
        _print("\n\n".join(_describe(each) for each in found) or "There are no local clusters.")
    return 0 if found and all(each.running for each in found) else 1


@app.command(
    help_epilogue="""Examples:
  kgwe local kubeconfig > cluster.yaml
  export KUBECONFIG=$(kgwe local kubeconfig --path)"""
)
def kubeconfig(*, name: Name = "kgwe", path: bool = False) -> int:
    """Print the administrator's kubeconfig. It embeds the certificates and works from any directory of this machine.

    Parameters
    ----------
    path
        Print the path of the file instead of its content.
    """
    cluster = LocalCluster(name)
    cluster.state()  # fails with a clear error if the cluster does not exist
    _print(str(cluster.kubeconfig) if path else cluster.kubeconfig.read_text().rstrip("\n"))
    return 0


@app.command(
    name="logs",
    help_epilogue="""Examples:
  kgwe local logs                    print the last lines of every component
  kgwe local logs kube-scheduler -f  follow one component
  kgwe local logs audit --tail 5     API writes with their users, as JSON lines""",
)
def show_logs(
    component: str | None = None,
    /,
    *,
    name: Name = "kgwe",
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], negative="")] = False,
    tail: int = 20,
) -> int:
    """Print the logs of the cluster's processes.

    Parameters
    ----------
    component
        etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kwok, audit, or a sidecar. Default: all.
    follow
        Keep printing new lines until Ctrl-C.
    tail
        Number of last lines to print.
    """
    cluster = LocalCluster(name)
    cluster.state()
    files = logs.select(cluster.layout, component)
    for each, path in files.items():
        for line in logs.last_lines(path, tail):
            _print(line if component else f"{each}: {line}")
    if follow:
        for each, line in logs.follow(files):
            _print(line if component else f"{each}: {line}")
    return 0


@app.command(
    help_epilogue="""Examples:
  kgwe local kubectl get nodes -o wide
  kgwe local kubectl --name second -n kube-system get pods
  kgwe local kubectl -- get --help"""
)
def kubectl(
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True)],
    name: Annotated[
        str, Parameter(help="Name of the local cluster.")
    ] = "kgwe",  # no -n: kubectl uses it for the namespace
) -> int:
    """Run kubectl, in the version of the cluster, against the cluster.

    Parameters
    ----------
    arguments
        Arguments passed to kubectl.
    """
    cluster = LocalCluster.attach(name)
    found = binaries.find().found.get("kubectl") or build.ensure_binaries(progress.for_stream()).found["kubectl"]
    os.execve(  # noqa: S606 -- replaces this process by kubectl on purpose, without a shell
        found.path, ["kubectl", *arguments], {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    )


def _supervise(cluster: LocalCluster, *, keep_data: bool) -> int:
    supervisor = Supervisor(cluster)
    supervisor.install_signal_handlers()
    if cluster.reused:
        # Another command started the cluster, and it may hold data.
        _print("Watching the cluster. Press Ctrl-C to stop watching; the cluster keeps running.")
        dead = supervisor.watch()
        if dead is not None:
            terminal.write_error(_describe_exit(dead))
        return 0 if dead is None else 1
    _print("Press Ctrl-C to stop.")
    dead = supervisor.watch()
    if dead is not None:
        terminal.write_error(f"{_describe_exit(dead)}Stopping the other components; data and logs are kept.\n")
    with progress.for_stream().step(f"Stopping local cluster {cluster.name!r}"):
        cluster.stop(remove=dead is None and not keep_data)
    return 0 if dead is None else 1


def _describe_exit(dead: ProcessRecord) -> str:
    return (
        f"kgwe: {dead.name} (pid {dead.pid}) exited. Last lines of {dead.log}:\n{startup.read_tail(Path(dead.log))}\n"
    )


def _format_summary(cluster: LocalCluster) -> str:
    version = cluster.state().versions["kube-apiserver"]
    suffix = "" if cluster.name == "kgwe" else f" --name {cluster.name}"
    was = "is already running" if cluster.reused else "is ready"
    return "\n".join(
        (
            f"Local cluster {cluster.name!r} {was}: Kubernetes {version} at {cluster.api_url}",
            f"  export KUBECONFIG={shlex.quote(str(cluster.kubeconfig))}",
            f"  kgwe local kubectl{suffix} get namespaces",
            f"  kgwe local down{suffix}",
        )
    )


def _describe(cluster: ClusterStatus) -> str:
    if cluster.problem:
        return f"Local cluster {cluster.name!r}: {cluster.problem}"
    if not cluster.components:
        return f"No local cluster named {cluster.name!r}.\nTo create it: `kgwe local up --name {cluster.name}`."
    head = f"Local cluster {cluster.name!r} {'is running' if cluster.running else 'is not running'}: {cluster.api_url}"
    header = ("COMPONENT", "HEALTH", "PID", "VERSION", "RSS", "CPU", "AGE")
    return "\n".join((head, *_format_table([header, *(_format_component(each) for each in cluster.components)])))


def _format_component(component: ComponentStatus) -> tuple[str, ...]:
    return (
        component.name,
        component.health.value,
        str(component.pid or "-"),
        component.version or "-",
        "-" if component.rss_mib is None else f"{component.rss_mib:.0f} MiB",
        "-" if component.cpu_s is None else f"{component.cpu_s:.1f} s",
        "-" if component.age_s is None else _format_duration(component.age_s),
    )


def _format_table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _format_duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m"
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def _read_file(path: Path) -> str:
    try:
        return text_files.read_text(path)
    except FileNotFoundError as exc:
        raise NotFound(f"file not found: {path}") from exc
    except OSError as exc:
        raise KgweError(f"cannot read {path}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise KgweError(f"{path} is not text") from exc


def _print(text: str) -> None:
    terminal.write(f"{text}\n")
    sys.stdout.flush()
