"""`kgwe local fleet`, `fault` and `metrics`: simulated GPU nodes from the command line."""

from __future__ import annotations

import asyncio
import collections
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import msgspec
from cyclopts import App, Parameter

from kgwe.hardware.dcgm import metrics as dcgm
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient
from kgwe.local.cluster.cluster import LocalCluster
from kgwe.local.fleet import apply as fleet
from kgwe.local.fleet import exporter, faults, gpunodes, models
from kgwe.local.fleet.simulator import Simulator
from kgwe.local.host import progress
from kgwe.model.health.xids import look_up
from kgwe.model.simfleet import inventory
from kgwe.model.units import amounts
from kgwe.model.units.phrasing import counted
from kgwe.telemetry import http, logs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from kgwe.kube.api import core

T = TypeVar("T")

fleet_app = App(name="fleet", help="Simulated GPU nodes: bring them, look at them.", help_format="plaintext")
fault_app = App(
    name="fault",
    help="""Break simulated hardware, and mend it.

A fault is written into the node's API objects: it lasts until it is cleared, whatever restarts meanwhile.""",
    help_format="plaintext",
)

Name = Annotated[str, Parameter(name=["--name", "-n"], help="Which local cluster.")]
Output = Annotated[Literal["table", "json"], Parameter(name=["--output", "-o"], help="How to print it.")]


# --- fleet ----------------------------------------------------------------------------------------------


@fleet_app.command(
    help_epilogue="""Examples:
  kgwe local fleet apply mixed --nodes 64        64 nodes of the mixed fleet
  kgwe local fleet apply mixed --nodes 16        take the last 48 away again
  kgwe local fleet apply ./mine.yaml --nodes 8   a model of your own
  kgwe local fleet apply mixed --nodes 8 --dra   with ResourceSlices, as a DRA driver publishes them
  kgwe local fleet apply mixed --nodes 0         no simulated nodes"""
)
def apply(model: str, /, *, nodes: int, dra: bool = False, name: Name = "kgwe") -> int:
    """Make the cluster have exactly these simulated nodes; whatever is right already is left alone.

    Parameters
    ----------
    model
        A fleet model: the path of a file, or a name that `kgwe local fleet models` lists.
    nodes
        How many nodes.
    dra
        Publish a ResourceSlice for each node, so that its cards can be had by ResourceClaims too.
    """
    bring(LocalCluster.attach(name), model, nodes, dra=dra)
    return 0


def bring(cluster: LocalCluster, model: str, nodes: int, *, dra: bool = False) -> None:
    """Put a fleet on a running cluster and have its metrics served beside it."""
    described = models.load(model)

    async def work(client: KubeClient) -> fleet.Outcome:
        with progress.for_stream().step(f"Bringing up {counted(nodes, 'node')} of the {described.name} fleet") as step:
            return await fleet.apply_fleet(
                client, described, nodes, dra=dra, progress=lambda done, total: step.update(f"{done} of {total}")
            )

    outcome = _with_client(cluster, work)
    url = exporter.start(cluster)
    _say(f"{str(outcome).capitalize()}\n  GPU metrics: {url}/metrics")


@fleet_app.command(
    help_epilogue="""Examples:
  kgwe local fleet show              pools, their cards and what is broken
  kgwe local fleet show -o json      every node, for programs"""
)
def show(*, name: Name = "kgwe", output: Output = "table") -> int:
    """Show the simulated nodes by pool, and every fault."""
    cluster = LocalCluster.attach(name)

    async def read(client: KubeClient) -> tuple[list[core.Node], list[faults.NodeFaults]]:
        nodes = await client.list(resources.NODE, labelSelector=inventory.FLEET_LABEL)
        return nodes, await faults.list_faults(client) if nodes else []

    nodes, broken = _with_client(cluster, read)
    if output == "json":
        by_name = {fault.node: fault for fault in broken}
        _say(msgspec.json.encode([_node_facts(node, by_name.get(node.metadata.name)) for node in nodes]).decode())
        return 0
    if not nodes:
        _say("There are no simulated nodes.\nNext: `kgwe local fleet apply mixed --nodes 16`.")
        return 0
    _say("\n".join(_columns(_pool_rows(nodes))))
    for fault in broken:
        _say(f"  {fault.node}: {'; '.join(_fault_words(fault))}")
    return 0


@fleet_app.command(name="models")
def list_models() -> int:
    """List the fleet models that come with KGWE."""
    rows = [("MODEL", "WHAT")]
    rows += [(model, models.load(model).description) for model in models.names()]
    _say("\n".join(_columns(rows)))
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


def _node_facts(node: core.Node, broken: faults.NodeFaults | None) -> dict[str, object]:
    return {
        "name": node.metadata.name,
        "pool": node.metadata.labels.get("gpu-autoscaler.io/node-pool", ""),
        "ready": fleet.is_ready(node),
        "allocatable": {key: value for key, value in node.status.allocatable.items() if amounts.is_gpu(key)},
        "faults": _fault_words(broken) if broken else [],
    }


def _fault_words(broken: faults.NodeFaults) -> list[str]:
    words = ["node down"] if broken.down else []
    for card in broken.cards:
        if isinstance(card, gpunodes.Xid):
            words.append(f"GPU {card.gpu}: XID {card.xid} ({look_up(card.xid).reason})")
        else:
            towards = "into the NVSwitch" if card.peer is None else f"to GPU {card.peer}"
            words.append(f"GPU {card.gpu}: {card.links} NVLink {towards} down")
    return [*words, f"taken back at {broken.spot_deadline}"] if broken.spot_deadline else words


# --- faults ---------------------------------------------------------------------------------------------


@fault_app.command(name="node-down")
def node_down(node: str, /, *, name: Name = "kgwe") -> int:
    """A node stops answering, and stays so until cleared."""
    _with_client(LocalCluster.attach(name), lambda client: faults.node_down(client, node))
    cluster = "" if name == "kgwe" else f" --name {name}"
    _say(f"Node {node} is down; `kgwe local fault clear {node}{cluster}` brings it back.")
    return 0


@fault_app.command(name="gpu-xid")
def gpu_xid(node: str, gpu: int, xid: int, /, *, name: Name = "kgwe") -> int:
    """The driver reports an XID error on a card: 79 fell off the bus, 48 double-bit error, 74 NVLink error.

    The card leaves service for XIDs that only a reset ends, not for those that are contained (63, 92, 94) or that an
    application causes (13, 31, 43, …).
    """
    health = _with_client(LocalCluster.attach(name), lambda client: faults.gpu_xid(client, node, gpu, xid))
    _say(f"GPU {gpu} of {node} is {health.state}: {health.reason} ({health.message}).")
    return 0


@fault_app.command(name="link-down")
def link_down(node: str, gpu: int, peer: int | None = None, /, *, links: int = 1, name: Name = "kgwe") -> int:
    """NVLinks of a card go down.

    Parameters
    ----------
    peer
        The card at the other end; leave it out where an NVSwitch joins the cards.
    links
        How many links.
    """
    nvlink = _with_client(
        LocalCluster.attach(name), lambda client: faults.link_down(client, node, gpu, peer, links=links)
    )
    _say(f"GPU {gpu} of {node} has {nvlink.links} of {nvlink.maxLinks} NVLinks ({nvlink.bandwidthGBps:g} GB/s).")
    return 0


@fault_app.command(name="spot-notice")
def spot_notice(node: str, /, *, after: int = faults.SPOT_NOTICE_S, name: Name = "kgwe") -> int:
    """The cloud announces that it takes a spot node back.

    Parameters
    ----------
    after
        Seconds until the node is gone.
    """
    deadline = _with_client(LocalCluster.attach(name), lambda client: faults.spot_notice(client, node, after_s=after))
    _say(f"Node {node} will be taken back at {deadline:%H:%M:%S} UTC.")
    return 0


@fault_app.command
def clear(node: str | None = None, /, *, name: Name = "kgwe") -> int:
    """Mend a node, or everything.

    Parameters
    ----------
    node
        Which node; all of them when left out.
    """
    mended = _with_client(LocalCluster.attach(name), lambda client: faults.clear(client, node))
    _say(f"Mended {', '.join(mended)}." if mended else "Nothing was broken.")
    return 0


@fault_app.command(name="list")
def list_faults(*, name: Name = "kgwe") -> int:
    """List everything that is broken."""
    broken = _with_client(LocalCluster.attach(name), faults.list_faults)
    lines = [f"{fault.node}: {'; '.join(_fault_words(fault))}" for fault in broken]
    _say("\n".join(lines) or "Nothing is broken.")
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
    """Serve the GPU metrics of the simulated fleet, in dcgm-exporter's format, and let its pods use their cards.

    `kgwe local up --fleet` and `kgwe local fleet apply` already run this beside the cluster.

    Parameters
    ----------
    listen
        Where to answer /metrics, /nodes/NAME/metrics and /targets (for Prometheus' http_sd_configs); port 0: any.
    kubeconfig
        Another cluster than the local one of that name.
    memory
        File in which to remember which pod has which card.
    once
        Print the metrics and stop.
    node
        With --once: of this node only.
    """
    logs.configure(level="warning" if once else "info")
    config = kubeconfig or LocalCluster.attach(name).kubeconfig

    async def work() -> None:
        async with KubeClient.connect(config, field_manager="kgwe-simulator") as client:
            if once:
                await _print_metrics(client, node)
                return
            await exporter.serve(client, http.Address.parse(listen), memory=memory, ready=_tell)

    def _tell(port: int) -> None:
        _say(f"Serving GPU metrics at http://{http.Address.parse(listen).host}:{port}/metrics")

    asyncio.run(work())
    return 0


async def _print_metrics(client: KubeClient, node: str | None) -> None:
    simulator = Simulator(client)
    async with simulator.watching():
        names = simulator.node_names() if node is None else [node]
        sys.stdout.buffer.write(dcgm.render_metrics(simulator.rows(names)))
        sys.stdout.flush()


# --- shared ---------------------------------------------------------------------------------------------


def _with_client(cluster: LocalCluster, work: Callable[[KubeClient], Awaitable[T]]) -> T:
    logs.configure(level="warning")

    async def run() -> T:
        async with KubeClient.connect(cluster.kubeconfig, field_manager="kgwe-fleet") as client:
            return await work(client)

    return asyncio.run(run())


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
