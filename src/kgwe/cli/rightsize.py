"""`kgwe rightsize`: decisions on smaller GPU requests: status, explain, history and revert."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from cyclopts import App, Parameter

from kgwe import errors, terminal
from kgwe.kube.api import resources, timestamp
from kgwe.kube.api.kgwe import rightsizingdecision
from kgwe.kube.client.client import KubeClient
from kgwe.telemetry import logs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kgwe.kube.api.kgwe.rightsizingdecision import RightsizingDecision

app = App(
    name="rightsize",
    help="""Smaller GPU requests: what is decided in each namespace, why, and what was taken back.

A namespace opts in with the annotation kgwe.nvidia.io/rightsizing=shadow, canary or enforce. KGWE's optimizer decides.
A key is the owner of pods, their image and their number of GPUs.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe rightsize status                       all namespaces
  kgwe rightsize explain chat -n team-a       why pods of owner chat get what they get
  kgwe rightsize history -n team-a -o json
  kgwe rightsize revert Deployment/chat -n team-a""",
)

Kubeconfig = Annotated[Path | None, Parameter(env_var="KUBECONFIG")]
Namespace = Annotated[str | None, Parameter(name=["--namespace", "-n"])]
Output = Annotated[Literal["table", "json", "yaml"], Parameter(name=["--output", "-o"])]
_MANUAL = "Manual"


class Row(msgspec.Struct, frozen=True):
    """What is decided about one key."""

    namespace: str
    mode: str
    key: str
    state: str
    request: str
    reason: str


class Entry(msgspec.Struct, frozen=True):
    """One event of the history."""

    at: str
    namespace: str
    what: str
    key: str
    message: str


@app.command(help_epilogue="Examples:\n  kgwe rightsize status\n  kgwe rightsize status -n team-a -o yaml")
def status(*, namespace: Namespace = None, output: Output = "table", kubeconfig: Kubeconfig = None) -> int:
    """List all keys: decided, reverted, or kept as they are.

    Parameters
    ----------
    namespace
        Only this namespace. Default: all.
    output
        Output format.
    kubeconfig
        Path of the kubeconfig file.
    """
    found = _read(kubeconfig, namespace)
    for each in found:
        if each.spec.problem:
            terminal.write_error(f"kgwe: namespace {each.metadata.namespace}: {each.spec.problem}\n")
    rows = [row for each in found for row in list_rows(each)]
    _print(rows, output, "No namespace with right-sizing has pods with GPUs.\n")
    return 0


@app.command(
    help_epilogue="Examples:\n  kgwe rightsize explain chat -n team-a\n  kgwe rightsize explain Deployment/chat"
)
def explain(
    name: str, /, *, namespace: Namespace = None, output: Output = "table", kubeconfig: Kubeconfig = None
) -> int:
    """Say what is decided about an owner of pods, and why.

    Parameters
    ----------
    name
        NAME or KIND/NAME of the owner: a Deployment, Job, GPUWorkload, … .
    namespace
        Its namespace. Default: all.
    output
        Output format.
    kubeconfig
        Path of the kubeconfig file.
    """
    rows = [row for each in _read(kubeconfig, namespace) for row in list_rows(each) if is_meant(row.key, name)]
    if not rows:
        raise errors.NotFound(
            f"nothing is decided about {name}: it has no pods with GPUs, or its namespace has not opted in."
            " Run: kgwe rightsize status"
        )
    _print(rows, output, "")
    return 0


@app.command(help_epilogue="Examples:\n  kgwe rightsize history -n team-a\n  kgwe rightsize history -o json")
def history(*, namespace: Namespace = None, output: Output = "table", kubeconfig: Kubeconfig = None) -> int:
    """List what was decided, changed, removed and reverted, the oldest first.

    Parameters
    ----------
    namespace
        Only this namespace. Default: all.
    output
        Output format.
    kubeconfig
        Path of the kubeconfig file.
    """
    entries = [
        Entry(event.at, each.metadata.namespace, event.what, event.key, event.message)
        for each in _read(kubeconfig, namespace)
        for event in each.spec.history
    ]
    _print(sorted(entries, key=lambda entry: entry.at), output, "No events.\n")
    return 0


@app.command(help_epilogue="Examples:\n  kgwe rightsize revert Deployment/chat -n team-a")
def revert(name: str, /, *, namespace: Namespace = None, kubeconfig: Kubeconfig = None) -> int:
    """Give the pods of an owner their whole GPUs again, from the next pod on. Needs the rights of an administrator.

    Owners do the same for their own pods with the annotation kgwe.nvidia.io/optimize: "false".

    Parameters
    ----------
    name
        NAME or KIND/NAME of the owner.
    namespace
        Its namespace. Default: the namespace of the kubeconfig's context.
    kubeconfig
        Path of the kubeconfig file.
    """
    logs.configure(level="error")

    async def act() -> list[str]:
        async with KubeClient.connect(kubeconfig, field_manager="kgwe-rightsize") as client:
            where = namespace or client.namespace
            found = await get_decision(client, where)
            keys = [key for key in found.spec.decisions if is_meant(key, name)]
            if not keys:
                raise errors.NotFound(f"{name} has no smaller request in namespace {where}. Run: kgwe rightsize status")
            entry = {"reason": _MANUAL, "message": "reverted by kgwe rightsize", "at": timestamp.seconds()}
            body = {
                "metadata": {"resourceVersion": found.metadata.resourceVersion},
                "spec": {"decisions": dict.fromkeys(keys), "reverted": dict.fromkeys(keys, entry)},
            }
            await client.patch(resources.RIGHTSIZING_DECISION, rightsizingdecision.NAME, body, where)
            return keys

    for key in asyncio.run(act()):
        terminal.write(f"reverted: {key}\n")
    return 0


async def get_decision(client: KubeClient, namespace: str) -> RightsizingDecision:
    """Return what is decided in a namespace."""
    try:
        return await client.get(resources.RIGHTSIZING_DECISION, rightsizingdecision.NAME, namespace)
    except errors.NotFound:
        raise errors.NotFound(
            f"nothing is right-sized in namespace {namespace}, so there is nothing to revert. A namespace opts in with"
            " the annotation kgwe.nvidia.io/rightsizing. Run: kgwe rightsize status"
        ) from None


def is_meant(key: str, name: str) -> bool:
    """Whether a key is of the owner NAME or KIND/NAME; kinds may be written in lower case."""
    owner = key.partition(" ")[0]
    if "/" not in name:
        return owner.partition("/")[2] == name
    kind, _, own = name.partition("/")
    return owner.lower() == f"{kind.lower()}/{own}"


def list_rows(found: RightsizingDecision) -> list[Row]:
    """Return one row for each key of a namespace."""
    spec, namespace = found.spec, found.metadata.namespace
    rows = [
        Row(namespace, spec.mode, key, "smaller", f"1×{each.profile}" if each.profile else each.share, each.reason)
        for key, each in spec.decisions.items()
    ]
    rows += [
        Row(namespace, spec.mode, key, "reverted", "as asked", f"{each.reason}: {each.message}")
        for key, each in spec.reverted.items()
    ]
    rows += [
        Row(namespace, spec.mode, key, "kept", "as asked", why)
        for key, why in spec.refused.items()
        if key not in spec.reverted
    ]
    return sorted(rows, key=lambda row: row.key)


def _read(kubeconfig: Path | None, namespace: str | None) -> list[RightsizingDecision]:
    logs.configure(level="error")

    async def read() -> list[RightsizingDecision]:
        async with KubeClient.connect(kubeconfig, field_manager="kgwe-rightsize") as client:
            found = await client.list(resources.RIGHTSIZING_DECISION, namespace)
            return [each for each in found if each.metadata.name == rightsizingdecision.NAME]

    return asyncio.run(read())


def _print(rows: Sequence[Row] | Sequence[Entry], output: str, nothing: str) -> None:
    if output == "yaml":
        terminal.write(msgspec.yaml.encode(list(rows)).decode())
    elif output == "json":
        terminal.write(msgspec.json.format(msgspec.json.encode(list(rows))).decode() + "\n")
    elif not rows:
        terminal.write(nothing)
    else:
        table = [
            tuple(field.upper() for field in rows[0].__struct_fields__),
            *(msgspec.structs.astuple(each) for each in rows),
        ]
        terminal.write("".join(f"{line}\n" for line in _align(table)))


def _align(table: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    for line in table:
        yield "   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
