"""`kgwe local node`: one real node in a local cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from cyclopts import App, Parameter

from kgwe import terminal
from kgwe.local.cluster.cluster import LocalCluster
from kgwe.local.host import progress
from kgwe.local.node.node import RealNode
from kgwe.local.node.settings_files import BUSYBOX_IMAGE

if TYPE_CHECKING:
    from kgwe.local.node.node import NodeStatus

app = App(
    name="node",
    help="""Run one real node: kubelet, containerd, kube-proxy, CoreDNS and the agent on simulated GPUs.

It needs root, runc, iptables and the CNI plugins. Missing programs of Kubernetes and containerd are built once.
Everything runs in namespaces of its own, and `down` leaves nothing behind.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe local up && kgwe local node up      a control plane and one real node with 8 simulated H100
  kgwe local node up --model hgx-a100      another machine, see `kgwe local fleet models`
  kgwe local node load dist/kgwe.oci.tar   an image that pods can use then
  kgwe local node status
  kgwe local node down""",
)

Name = Annotated[str, Parameter(name=["--name", "-n"], help="Name of the local cluster.")]
Output = Annotated[Literal["table", "json"], Parameter(name=["--output", "-o"], help="Output format.")]


@app.command
def up(*, name: Name = "kgwe", model: str = "dgx-h100", dra: bool = False, agent_setting: tuple[str, ...] = ()) -> int:
    """Start the node, unless it already runs. It is ready when its GPUs are allocatable.

    Parameters
    ----------
    model
        Fleet model whose first machine the node has.
    dra
        Also offer the GPUs to ResourceClaims (dynamic resource allocation).
    agent_setting
        Setting of the agent, such as device_plugin_means=cdi. May be repeated.
    """
    settings = dict(each.partition("=")[::2] for each in agent_setting)
    node = RealNode(LocalCluster.attach(name))
    node.start(model, dra=dra, agent_settings=settings, progress=progress.for_stream())
    found = node.examine()
    terminal.write(
        f"{_describe(found)}\nImage for first pods: {BUSYBOX_IMAGE} (if busybox is static on this machine)\n"
    )
    return 0


@app.command
def down(*, name: Name = "kgwe") -> int:
    """Stop the node and remove its processes, mounts, links, control groups, files and API objects."""
    cluster = LocalCluster(name)
    with progress.for_stream().step("Stopping the real node"):
        stopped = RealNode(cluster).stop()
    terminal.write("The real node is removed.\n" if stopped else "There is no real node.\n")
    return 0


@app.command
def load(archive: Path, /, *, name: Name = "kgwe") -> int:
    """Load an image archive into the node, such as one of `kgwe image build`.

    Parameters
    ----------
    archive
        OCI layout or Docker archive, as a tar file.
    """
    node = RealNode(LocalCluster.attach(name))
    with progress.for_stream().step(f"Loading {archive}"):
        said = node.load_image(archive)
    terminal.write(f"{said}\n")
    return 0


@app.command
def status(*, name: Name = "kgwe", output: Output = "table") -> int:
    """Show the node and its programs. Exit code 0 if the node is ready, 1 otherwise."""
    found = RealNode(LocalCluster.attach(name)).examine()
    if output == "json":
        terminal.write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
    else:
        terminal.write(f"{_describe(found)}\n")
    return 0 if found.ready else 1


def _describe(found: NodeStatus) -> str:
    if not found.running:
        return "There is no real node. To start one: `kgwe local node up`."
    gpus = ", ".join(f"{key} {value}" for key, value in found.allocatable.items()) or "no GPUs"
    lines = [
        f"Node {found.name} at {found.address}: {'Ready' if found.ready else 'NotReady'}, {gpus}",
        f"  metrics of the agent: {found.metrics_url}",
    ]
    for each in found.programs:
        usage = f"pid {each.pid}, {each.rss_mib} MiB, {each.cpu_s} s CPU" if each.pid else "does not run"
        lines.append(f"  {each.name:12} {usage}")
    return "\n".join(lines)
