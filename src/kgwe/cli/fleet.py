"""`kgwe local fleet`, `kgwe local fault` and `kgwe local metrics`: simulated GPU nodes."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import msgspec
from cyclopts import App, Parameter

from kgwe import errors, terminal
from kgwe.hardware.dcgm import metrics as dcgm
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient
from kgwe.local.cluster.cluster import LocalCluster
from kgwe.local.fleet import apply as fleet
from kgwe.local.fleet import exporter, faults, gpunodes, models
from kgwe.local.fleet.cloud import CloudRules, SimulatedCloud
from kgwe.local.fleet.simulator import Simulator
from kgwe.local.host import progress
from kgwe.model.health.xids import look_up
from kgwe.model.simfleet import inventory
from kgwe.model.units import amounts
from kgwe.model.units.phrasing import format_count
from kgwe.telemetry import http, logs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from kgwe.kube.api import core

T = TypeVar("T")

fleet_app = App(
    name="fleet",
    help="Create, list and remove simulated GPU nodes.",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe local fleet models
  kgwe local fleet apply mixed --nodes 64
  kgwe local fleet show""",
)
fault_app = App(
    name="fault",
    help="""Inject hardware faults into simulated nodes, and clear them.

A fault is stored in the node's API objects. It survives restarts and lasts until you clear it.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe local fault gpu-xid h100-0003 2 79      GPU 2 of h100-0003 falls off the bus
  kgwe local fault node-down h100-0003
  kgwe local fault list
  kgwe local fault clear h100-0003             clear the faults of one node""",
)

Name = Annotated[str, Parameter(name=["--name", "-n"], help="Name of the local cluster.")]
Output = Annotated[Literal["table", "json"], Parameter(name=["--output", "-o"], help="Output format.")]


# --- fleet ----------------------------------------------------------------------------------------------


@fleet_app.command(
    help_epilogue="""Examples:
  kgwe local fleet apply mixed --nodes 64        create 64 nodes of the mixed fleet
  kgwe local fleet apply mixed --nodes 16        remove the last 48 nodes
  kgwe local fleet apply ./mine.yaml --nodes 8   use your own fleet model
  kgwe local fleet apply mixed --nodes 8 --dra   publish ResourceSlices, as a DRA driver does
  kgwe local fleet apply mixed --nodes 0         remove all simulated nodes"""
)
def apply(model: str, /, *, nodes: int, dra: bool = False, name: Name = "kgwe") -> int:
    """Create or remove simulated nodes until the cluster has exactly these; nodes that already match stay unchanged.

    Parameters
    ----------
    model
        Fleet model: the path of a file, or a name that `kgwe local fleet models` lists.
    nodes
        Number of nodes.
    dra
        Publish a ResourceSlice for each node, so that ResourceClaims can allocate its GPUs.
    """
    bring(LocalCluster.attach(name), model, nodes, dra=dra)
    return 0


def bring(cluster: LocalCluster, model: str, nodes: int, *, dra: bool = False) -> None:
    """Create a fleet on a running cluster and start the server for its metrics."""
    described = models.load(model)

    async def work(client: KubeClient) -> fleet.Outcome:
        with progress.for_stream().step(
            f"Creating {format_count(nodes, 'node')} of the {described.name} fleet"
        ) as step:
            return await fleet.apply_fleet(
                client, described, nodes, dra=dra, progress=lambda done, total: step.update(f"{done} of {total}")
            )

    outcome = _with_client(cluster, work)
    url = exporter.start(cluster)
    _print(f"{str(outcome).capitalize()}\n  GPU metrics: {url}/metrics")


@fleet_app.command(
    help_epilogue="""Examples:
  kgwe local fleet show              pools, their GPUs and active faults
  kgwe local fleet show -o json      every node, as JSON"""
)
def show(*, name: Name = "kgwe", output: Output = "table") -> int:
    """Show the simulated nodes by pool, and all active faults."""
    cluster = LocalCluster.attach(name)

    async def read(client: KubeClient) -> tuple[list[core.Node], list[faults.NodeFaults]]:
        nodes = await client.list(resources.NODE, labelSelector=inventory.FLEET_LABEL)
        return nodes, await faults.list_faults(client) if nodes else []

    nodes, broken = _with_client(cluster, read)
    if output == "json":
        by_name = {fault.node: fault for fault in broken}
        _print(msgspec.json.encode([_describe_node(node, by_name.get(node.metadata.name)) for node in nodes]).decode())
        return 0
    if not nodes:
        _print("There are no simulated nodes.\nTo create some: `kgwe local fleet apply mixed --nodes 16`.")
        return 0
    _print("\n".join(_format_table(_pool_rows(nodes))))
    for fault in broken:
        _print(f"  {fault.node}: {'; '.join(_describe_fault(fault))}")
    return 0


@fleet_app.command(name="models")
def list_models() -> int:
    """List the built-in fleet models."""
    rows = [("MODEL", "WHAT")]
    rows += [(model, models.load(model).description) for model in models.list_names()]
    _print("\n".join(_format_table(rows)))
    return 0


def _pool_rows(nodes: Iterable[core.Node]) -> list[Sequence[str]]:
    pools: dict[str, list[core.Node]] = collections.defaultdict(list)
    for node in nodes:
        pools[node.metadata.labels.get("gpu-autoscaler.io/node-pool", "?")].append(node)
    rows: list[Sequence[str]] = [("POOL", "NODES", "READY", "GPUS", "PRODUCT", "TYPE", "OFFERED")]
    for pool, members in sorted(pools.items()):
        labels = members[0].metadata.labels
        offered: collections.Counter[str] = collections.Counter()
        for node in members:
            for resource, text in node.status.allocatable.items():
                if amounts.is_gpu(resource) and int(text):
                    offered[resource.removeprefix("nvidia.com/")] += int(text)
        rows.append(
            (
                pool,
                str(len(members)),
                str(sum(fleet.is_ready(node) for node in members)),
                str(sum(int(node.metadata.labels.get("nvidia.com/gpu.count", "0")) for node in members)),
                labels.get("nvidia.com/gpu.product", "?"),
                labels.get(inventory.CAPACITY_TYPE_LABELS[0], "?"),
                ", ".join(f"{count} {resource}" for resource, count in sorted(offered.items())) or "none",
            )
        )
    return rows


def _describe_node(node: core.Node, broken: faults.NodeFaults | None) -> dict[str, object]:
    return {
        "name": node.metadata.name,
        "pool": node.metadata.labels.get("gpu-autoscaler.io/node-pool", ""),
        "ready": fleet.is_ready(node),
        "allocatable": {key: value for key, value in node.status.allocatable.items() if amounts.is_gpu(key)},
        "faults": _describe_fault(broken) if broken else [],
    }


def _describe_fault(broken: faults.NodeFaults) -> list[str]:
    words = ["node down"] if broken.down else []
    for card in broken.cards:
        if isinstance(card, gpunodes.Xid):
            words.append(f"GPU {card.gpu}: XID {card.xid} ({look_up(card.xid).reason})")
        else:
            towards = "into the NVSwitch" if card.peer is None else f"to GPU {card.peer}"
            words.append(f"GPU {card.gpu}: {card.links} NVLink {towards} down")
    return [*words, f"spot node reclaimed at {broken.spot_deadline}"] if broken.spot_deadline else words


# --- faults ---------------------------------------------------------------------------------------------


@fault_app.command(name="node-down")
def node_down(node: str, /, *, name: Name = "kgwe") -> int:
    """Take a node down until the fault is cleared."""
    _with_client(LocalCluster.attach(name), lambda client: faults.node_down(client, node))
    cluster = "" if name == "kgwe" else f" --name {name}"
    _print(f"Node {node} is down. To bring it back: `kgwe local fault clear {node}{cluster}`.")
    return 0


@fault_app.command(name="gpu-xid")
def gpu_xid(node: str, gpu: int, xid: int, /, *, name: Name = "kgwe") -> int:
    """Report an XID error on a GPU, such as 79 (fell off the bus), 48 (double-bit error) or 74 (NVLink error).

    The GPU becomes unhealthy if the XID requires a reset. Contained errors (63, 92, 94) and application errors (13,
    31, 43, …) leave it in service.
    """
    health = _with_client(LocalCluster.attach(name), lambda client: faults.gpu_xid(client, node, gpu, xid))
    _print(f"GPU {gpu} of {node} is {health.state}: {health.reason} ({health.message}).")
    return 0


@fault_app.command(name="link-down")
def link_down(node: str, gpu: int, peer: int | None = None, /, *, links: int = 1, name: Name = "kgwe") -> int:
    """Take NVLinks of a GPU down.

    Parameters
    ----------
    peer
        GPU at the other end; omit it if the GPUs are connected by an NVSwitch.
    links
        Number of links.
    """
    nvlink = _with_client(
        LocalCluster.attach(name), lambda client: faults.link_down(client, node, gpu, peer, links=links)
    )
    _print(f"GPU {gpu} of {node} has {nvlink.links} of {nvlink.maxLinks} NVLinks ({nvlink.bandwidthGBps:g} GB/s).")
    return 0


@fault_app.command(name="spot-notice")
def spot_notice(node: str, /, *, after: int = faults.SPOT_NOTICE_S, name: Name = "kgwe") -> int:
    """Announce that a spot node will be reclaimed.

    Parameters
    ----------
    after
        Seconds until the node is removed.
    """
    deadline = _with_client(LocalCluster.attach(name), lambda client: faults.spot_notice(client, node, after_s=after))
    _print(f"Node {node} will be reclaimed at {deadline:%H:%M:%S} UTC.")
    return 0


@fault_app.command
def clear(node: str | None = None, /, *, name: Name = "kgwe") -> int:
    """Clear the faults of one node, or all faults.

    Parameters
    ----------
    node
        Node name. Default: all nodes.
    """
    mended = _with_client(LocalCluster.attach(name), lambda client: faults.clear(client, node))
    _print(f"Cleared the faults of {', '.join(mended)}." if mended else "There were no faults to clear.")
    return 0


@fault_app.command(name="list")
def list_faults(*, name: Name = "kgwe") -> int:
    """List the active faults."""
    broken = _with_client(LocalCluster.attach(name), faults.list_faults)
    lines = [f"{fault.node}: {'; '.join(_describe_fault(fault))}" for fault in broken]
    _print("\n".join(lines) or "There are no active faults.")
    return 0


# --- metrics --------------------------------------------------------------------------------------------


def metrics(
    *,
    name: Name = "kgwe",
    listen: str = f"127.0.0.1:{exporter.PORT}",
    kubeconfig: Path | None = None,
    memory: Path | None = None,
    once: bool = False,
    node: str | None = None,
) -> int:
    """Serve the GPU metrics of the simulated fleet in dcgm-exporter's format, and simulate the GPU usage of its pods.

    `kgwe local up --fleet` and `kgwe local fleet apply` start this server for their cluster.

    Parameters
    ----------
    listen
        Address for /metrics, /nodes/NAME/metrics and /targets (Prometheus http_sd_configs); port 0 picks a free port.
    kubeconfig
        Kubeconfig of another cluster, instead of the local cluster --name.
    memory
        File that stores which pod has which GPU.
    once
        Print the metrics once and exit.
    node
        With --once: print only the metrics of this node.
    """
    logs.configure(level="warning" if once else "info")
    config = kubeconfig or LocalCluster.attach(name).kubeconfig

    async def work() -> None:
        async with KubeClient.connect(config, field_manager="kgwe-simulator") as client:
            if once:
                await _print_metrics(client, node)
                return
            await exporter.serve(client, http.Address.parse(listen), memory=memory, ready=_print_address)

    def _print_address(port: int) -> None:
        _print(f"Serving GPU metrics at http://{http.Address.parse(listen).host}:{port}/metrics")

    asyncio.run(work())
    return 0


async def _print_metrics(client: KubeClient, node: str | None) -> None:
    simulator = Simulator(client)
    async with simulator.watch_cluster():
        names = simulator.node_names() if node is None else [node]
        sys.stdout.buffer.write(dcgm.render_metrics(simulator.rows(names)))
        sys.stdout.flush()


# --- cloud ----------------------------------------------------------------------------------------------


def cloud(
    *,
    name: Name = "kgwe",
    kubeconfig: Path | None = None,
    launch_delay: float = 1.0,
    gpu_delay: float = 0.0,
    stock: list[str] | None = None,
    quota: list[str] | None = None,
    nodes_per_leaf: int = 16,
) -> int:
    """Run the simulated cloud until Ctrl-C: it answers the orders of kgwe autoscaler, and makes and removes nodes.

    Parameters
    ----------
    kubeconfig
        Kubeconfig of another cluster, instead of the local cluster --name.
    launch_delay
        Seconds from an order until its node joins.
    gpu_delay
        Seconds from then until the node offers GPUs.
    stock
        TYPE/ZONE/CAPACITY=COUNT, patterns allowed: instances there are at most. More orders get "no capacity".
    quota
        TYPE/ZONE/CAPACITY=COUNT, patterns allowed: instances that the account may have.
    nodes_per_leaf
        Nodes of one order that share a leaf.
    """
    logs.configure(level="info")
    config = kubeconfig or LocalCluster.attach(name).kubeconfig
    rules = CloudRules(
        launch_delay_s=launch_delay,
        gpu_delay_s=gpu_delay,
        stock=_read_counts("--stock", stock or ()),
        quota=_read_counts("--quota", quota or ()),
        nodes_per_leaf=nodes_per_leaf,
    )

    async def work() -> None:
        fleets = [models.load(each) for each in models.list_names()]
        async with KubeClient.connect(config, field_manager="kgwe-simulated-cloud") as client:
            await SimulatedCloud(client, fleets, rules).run()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(work())
    return 0


def _read_counts(option: str, texts: Sequence[str]) -> dict[str, int]:
    found = {}
    for text in texts:
        pattern, _, count = text.rpartition("=")
        if not pattern or not count.isdecimal():
            raise errors.Permanent(f"{option}: {text!r} is not TYPE/ZONE/CAPACITY=COUNT, such as p5.48xlarge/*/spot=4")
        found[pattern] = int(count)
    return found


# --- shared ---------------------------------------------------------------------------------------------


def _with_client(cluster: LocalCluster, work: Callable[[KubeClient], Awaitable[T]]) -> T:
    logs.configure(level="warning")

    async def run() -> T:
        async with KubeClient.connect(cluster.kubeconfig, field_manager="kgwe-fleet") as client:
            return await work(client)

    return asyncio.run(run())


def _format_table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _print(text: str) -> None:
    terminal.write(f"{text}\n")
    sys.stdout.flush()
