"""`kgwe mig`: runs the MIG controller, and lists the layouts of GPUs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import App

from kgwe import terminal
from kgwe.apps.mig import main as process
from kgwe.apps.mig import settings
from kgwe.cli.processes import flags  # noqa: TC001 - read by cyclopts when it runs
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kgwe.kube.api.kgwe.gpunode import GPUNode

app = App(
    name="mig",
    help="""Partition GPUs into MIG slices as MIGStrategies and waiting pods require.

Runs until SIGTERM or Ctrl-C. Of several replicas one is the leader, the others are on standby. The agents change the
layouts. Slices in use are never deleted, and nodes that NVIDIA's mig-manager manages are skipped.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe mig                                                  in a cluster, as its service account
  kgwe mig --kubeconfig "$(kgwe local kubeconfig --path)"   against a local cluster
  kgwe mig gpus                                             list current and desired layouts
  kgwe mig gpus a100-0000                                   of one node""",
)

_Row = tuple[str, str, str, str, str]
_HEADINGS: _Row = ("NODE", "GPU", "LAYOUT", "DESIRED", "PHASE")


@app.default
def mig(
    *,
    kubeconfig: flags.Kubeconfig = None,
    config: Path | None = None,
    metrics_bind_address: flags.MetricsBindAddress = None,
    leader_elect: flags.LeaderElect = None,
    log_level: flags.LogLevel = None,
) -> None:
    """Run the controller.

    Parameters
    ----------
    config
        Settings file (YAML). Each key can also be set as KGWE_MIG_<KEY>.
    """
    overrides = {"metrics_bind_address": metrics_bind_address, "leader_elect": leader_elect, "log_level": log_level}
    asyncio.run(process.serve(settings.load(config, overrides), kubeconfig))


@app.command(
    alias="cards",
    help_epilogue="""Examples:
  kgwe mig gpus                        all GPUs that support MIG
  kgwe mig gpus a100-0000 a100-0001    those of two nodes""",
)
def gpus(*nodes: str, kubeconfig: flags.Kubeconfig = None) -> None:
    """List the GPUs that support MIG, with their current layout, desired layout and progress.

    Parameters
    ----------
    nodes
        Only these nodes.
    """
    rows = [_HEADINGS, *asyncio.run(_list_rows(kubeconfig, frozenset(nodes)))]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        line = "  ".join([*(text.ljust(width) for text, width in zip(row[:4], widths, strict=True)), row[4]])
        terminal.write(f"{line.rstrip()}\n")


async def _list_rows(kubeconfig: Path | None, wanted: frozenset[str]) -> list[_Row]:
    async with KubeClient.connect(kubeconfig) as client:
        found = await client.list(resources.GPU_NODE)
    shown = [each for each in found if not wanted or each.metadata.name in wanted]
    return [row for each in sorted(shown, key=lambda each: each.metadata.name) for row in _format_row(each)]


def _format_row(obj: GPUNode) -> Iterator[_Row]:
    asked = {card.uuid: card.mig for card in obj.spec.cards}
    for device in obj.status.gpus:
        if not device.mig.capable:
            continue
        mig, layout = device.mig, asked.get(device.uuid)
        now = _format_layout([f"{each.profile}@{each.start}" for each in mig.instances], enabled=mig.enabled)
        desired = "-" if layout is None else _format_layout(layout.instances, enabled=layout.enabled)
        phase = f"{mig.phase}: {mig.message}" if mig.phase else "-"
        yield obj.metadata.name, str(device.index), now, desired, phase


def _format_layout(slices: Sequence[str], *, enabled: bool) -> str:
    return " ".join(slices) or ("no slices" if enabled else "whole GPU")
