"""`kgwe idle`: GPUs that are idle, and what KGWE does about them: list, keep and restore."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from cyclopts import App, Parameter

from kgwe import errors, terminal
from kgwe.cluster.suspension import idle_rows, named_owners
from kgwe.cluster.suspension.suspender import Outcome, Result, Suspender
from kgwe.kube.client.client import KubeClient
from kgwe.telemetry import logs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kgwe.cluster.suspension.idle_rows import IdleRow

app = App(
    name="idle",
    help="""Idle GPUs: list them, keep a workload from being suspended, and restore a suspended one.

Where a namespace has opted in, KGWE's optimizer suspends workloads whose GPUs are idle, after a notice and a grace
period. A suspended workload holds no GPUs. `restore` starts it again.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe idle list                              idle, kept and suspended workloads of all namespaces
  kgwe idle list -n research -o json
  kgwe idle keep notebook -n research --for 8h
  kgwe idle restore notebook -n research""",
)

Kubeconfig = Annotated[Path | None, Parameter(env_var="KUBECONFIG")]
Namespace = Annotated[str | None, Parameter(name=["--namespace", "-n"])]
Output = Annotated[Literal["text", "json", "yaml"], Parameter(name=["--output", "-o"])]

_HOURS = {"4h": 4, "8h": 8, "24h": 24}
_COLUMNS = ("NAMESPACE", "NAME", "KIND", "GPUS", "IDLE FOR", "STATE", "NEXT", "SAVING/H")
_HOUR_S, _MINUTE_S = 3600, 60


@app.command(
    name="list",
    help_epilogue="""Examples:
  kgwe idle list
  kgwe idle list -n research
  kgwe idle list -o yaml""",
)
def list_idle(
    *,
    namespace: Namespace = None,
    all_namespaces: Annotated[bool, Parameter(name=["--all-namespaces", "-A"], negative="")] = False,
    output: Output = "text",
    kubeconfig: Kubeconfig = None,
) -> int:
    """List workloads with idle GPUs, kept ones, and those that KGWE has suspended.

    Parameters
    ----------
    namespace
        Only this namespace. Default: all that you may read.
    all_namespaces
        All namespaces, which is the default.
    output
        Output format.
    kubeconfig
        Path of the kubeconfig file.
    """
    logs.configure(level="error")

    async def read() -> tuple[list[IdleRow], list[str]]:
        async with KubeClient.connect(kubeconfig, field_manager="kgwe-idle") as client:
            return await idle_rows.read_rows(client, None if all_namespaces else namespace, time.time())

    rows, hidden = asyncio.run(read())
    if hidden:
        terminal.write_error(f"kgwe: not listed, because you may not read them: {', '.join(hidden)}\n")
    terminal.write(print_rows(rows, output))
    return 0


@app.command(
    help_epilogue="""Examples:
  kgwe idle keep notebook -n research
  kgwe idle keep deployment/llm -n research --for 24h"""
)
def keep(
    name: str,
    /,
    *,
    namespace: Namespace = None,
    duration: Annotated[Literal["4h", "8h", "24h"], Parameter(name="--for")] = "4h",
    kubeconfig: Kubeconfig = None,
) -> int:
    """Keep a workload from being suspended for some hours. Sets the annotation kgwe.nvidia.io/keep-until.

    Parameters
    ----------
    name
        NAME or KIND/NAME of a GPUWorkload, Job, Deployment, StatefulSet, ReplicaSet, LeaderWorkerSet or Notebook, or
        the name of one of its pods.
    namespace
        Its namespace. Default: the namespace of the kubeconfig's context.
    duration
        How long.
    kubeconfig
        Path of the kubeconfig file.
    """
    logs.configure(level="error")

    async def act() -> Outcome:
        async with KubeClient.connect(kubeconfig, field_manager="kgwe-idle") as client:
            where = namespace or client.namespace
            owner = await named_owners.find_named(client, name, where)
            until_s = time.time() + _HOURS[duration] * _HOUR_S
            return await Suspender(client, "kgwe-idle").keep(owner.kind, where, owner.meta.name, until_s)

    return _report(asyncio.run(act()))


@app.command(
    help_epilogue="""Examples:
  kgwe idle restore notebook -n research
  kgwe idle restore gw/llm-training -n research"""
)
def restore(name: str, /, *, namespace: Namespace = None, kubeconfig: Kubeconfig = None) -> int:
    """Start a workload again that KGWE has suspended.

    Exit code 1 if KGWE has not suspended it, or if it has changed since. A GPUWorkload waits in the queue with its old
    position.

    Parameters
    ----------
    name
        NAME or KIND/NAME of the workload.
    namespace
        Its namespace. Default: the namespace of the kubeconfig's context.
    kubeconfig
        Path of the kubeconfig file.
    """
    logs.configure(level="error")

    async def act() -> Outcome:
        async with KubeClient.connect(kubeconfig, field_manager="kgwe-idle") as client:
            where = namespace or client.namespace
            owner = await named_owners.find_named(client, name, where, suspended=True)
            return await Suspender(client, "kgwe-idle").restore(owner.kind, where, owner.meta.name)

    return _report(asyncio.run(act()))


def _report(outcome: Outcome) -> int:
    """Print what was done; an error if nothing was."""
    if outcome.result is Result.REFUSED:
        raise errors.Permanent(outcome.message)
    terminal.write(f"{outcome.message}\n")
    return 0


def print_rows(rows: Iterable[IdleRow], output: str) -> str:
    """The rows as a table or in another format, wherever they come from."""
    listed = list(rows)
    if output == "yaml":
        return msgspec.yaml.encode(listed).decode()
    if output == "json":
        return msgspec.json.format(msgspec.json.encode(listed)).decode() + "\n"
    if not listed:
        return "No idle, kept or suspended workloads.\n"
    table = [_COLUMNS, *(_cells(row) for row in listed)]
    widths = [max(len(line[column]) for line in table) for column in range(len(_COLUMNS))]
    lines = ("   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in table)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _cells(row: IdleRow) -> tuple[str, ...]:
    saving = f"${row.saving_per_hour:.2f}" if row.saving_per_hour is not None else "-"
    idle_for = _print_duration(row.idle_for_seconds) if row.idle_for_seconds is not None else "-"
    return (row.namespace, row.name, row.kind, row.gpus or "-", idle_for, row.state, row.next or "-", saving)


def _print_duration(seconds: float) -> str:
    hours, rest = divmod(int(seconds), _HOUR_S)
    return f"{hours}h{rest // _MINUTE_S}m" if hours else f"{rest // _MINUTE_S}m"
