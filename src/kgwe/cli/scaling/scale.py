"""`kgwe scale`: what the autoscaler does, has done and would do."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from cyclopts import App, Parameter

from kgwe import errors, terminal
from kgwe.kube.api import resources, timestamp
from kgwe.kube.client import manifests
from kgwe.kube.client.client import Forbidden, KubeClient
from kgwe.telemetry import logs

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from kgwe.apps.autoscaler.preview import Preview
    from kgwe.cluster.offline import View
    from kgwe.kube.api import core
    from kgwe.kube.api.kgwe.autoscalingpolicy import AutoscalingPolicy, AutoscalingPolicyStatus

app = App(
    name="scale",
    help="""What the autoscaler does, has done and would do.

`status` and `history` show what the AutoscalingPolicies say. `plan` reads the cluster and shows what would be bought
now. `simulate` does so for workloads that do not exist. Nothing is bought or removed.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe scale status                        nodes, plans and problems of all policies
  kgwe scale history gpu-fleet -o json     what was done last
  kgwe scale plan                          what would be bought now
  kgwe scale simulate -f train.yaml        what would be bought for these workloads""",
)

Kubeconfig = Annotated[Path | None, Parameter(env_var="KUBECONFIG")]
Output = Annotated[Literal["table", "json", "yaml"], Parameter(name=["--output", "-o"])]

_MICROS = 1_000_000
_LEASE = "kgwe-autoscaler"
_NAMESPACE = "kgwe-system"


@app.command(
    help_epilogue="""Examples:
  kgwe scale status
  kgwe scale status gpu-fleet -o yaml"""
)
def status(name: str | None = None, *, output: Output = "table", kubeconfig: Kubeconfig = None) -> None:
    """Show the nodes, the plan and the problems of policies.

    Parameters
    ----------
    name
        Only this AutoscalingPolicy.
    output
        Output format.
    kubeconfig
        Path of the kubeconfig file.
    """
    policies = _read_policies(name, kubeconfig)
    if output != "table":
        _write([{"name": each.metadata.name, **msgspec.to_builtins(each.status)} for each in policies], output)
        return
    rows: list[tuple[str, ...]] = [
        ("POLICY", "NODES", "DESIRED", "SPOT", "PENDING PODS", "MONTHLY COST", "SAVED", "LAST ACTION")
    ]
    for each in policies:
        told = each.status
        rows.append(
            (
                each.metadata.name,
                *map(_number, (told.currentNodes, told.desiredNodes, told.spotNodes, told.pendingPods)),
                told.estimatedMonthlyCost or "unknown",
                told.estimatedMonthlySavings or "unknown",
                told.lastScaleAction or "none",
            )
        )
    terminal.write(_format(rows))
    for each in policies:
        terminal.write(_describe_status(each))
    if any(is_unreported(each) for each in policies):
        lease = asyncio.run(_read_lease(kubeconfig))
        terminal.write("".join(explain_silence(each, lease, time.time()) for each in policies if is_unreported(each)))


@app.command(
    help_epilogue="""Examples:
  kgwe scale history
  kgwe scale history gpu-fleet -o json"""
)
def history(name: str | None = None, *, output: Output = "table", kubeconfig: Kubeconfig = None) -> None:
    """Show what was done last: purchases, drains, removals and failed launches.

    Parameters
    ----------
    name
        Only this AutoscalingPolicy.
    output
        Output format.
    kubeconfig
        Path of the kubeconfig file.
    """
    found = [
        {"policy": policy.metadata.name, **msgspec.to_builtins(action)}
        for policy in _read_policies(name, kubeconfig)
        for action in policy.status.actions
    ]
    found.sort(key=lambda each: str(each["time"]), reverse=True)
    if output != "table":
        _write(found, output)
        return
    rows = [("TIME", "POLICY", "ACTION", "POOL", "NODES", "REASON")]
    rows += [
        (each["time"], each["policy"], each["action"], each.get("pool", ""), str(each.get("nodes", 0)),
         each.get("reason", ""))
        for each in found
    ]  # fmt: skip
    terminal.write(_format(rows))


@app.command(
    help_epilogue="""Examples:
  kgwe scale plan
  kgwe scale plan -o json --prices prices.yaml"""
)
def plan(*, prices: list[Path] | None = None, output: Output = "table", kubeconfig: Kubeconfig = None) -> None:
    """Show what would be bought now, from one reading of the cluster.

    Parameters
    ----------
    prices
        Price files (CSV or YAML); repeat it for several.
    output
        Output format.
    kubeconfig
        Path of the kubeconfig file.
    """
    _show(asyncio.run(_preview(kubeconfig, prices or []))[0], output)


@app.command(
    help_epilogue="""Examples:
  kgwe scale simulate -f train.yaml
  kgwe scale simulate -f train.yaml -f policy.yaml -o json"""
)
def simulate(
    *,
    file: Annotated[list[Path], Parameter(name=["--file", "-f"])],
    namespace: Annotated[str, Parameter(name=["--namespace", "-n"])] = "default",
    prices: list[Path] | None = None,
    output: Output = "table",
    kubeconfig: Kubeconfig = None,
) -> int:
    """Show what would be bought for workloads in files, as if they had waited long enough.

    Exit code 1 if nothing is bought for one of them.

    Parameters
    ----------
    file
        Manifests of GPUWorkloads, pods, Jobs, Deployments or gangs. An AutoscalingPolicy here replaces the stored one.
    namespace
        Namespace of workloads that name none.
    prices
        Price files (CSV or YAML); repeat it for several.
    output
        Output format.
    kubeconfig
        Path of the kubeconfig file.
    """
    documents = [document for path in file for document in manifests.load_manifests(path)]
    found, notes = asyncio.run(_preview(kubeconfig, prices or [], documents, namespace))
    _show(found, output)
    if output == "table":
        terminal.write(notes)
    return 1 if any(each.status.unmet for each in found) else 0


async def _preview(
    kubeconfig: Path | None, prices: Sequence[Path], documents: Sequence[dict[str, Any]] = (), namespace: str = ""
) -> tuple[list[Preview], str]:
    """Read the cluster and plan; `documents` are added first. Return also which of them start without a purchase."""
    from kgwe.apps.autoscaler.preview import preview_round  # noqa: PLC0415 - loads NumPy
    from kgwe.apps.whatif.manifests import Submitted  # noqa: PLC0415 - same
    from kgwe.cluster import offline  # noqa: PLC0415 - same
    from kgwe.store.ledger.price_files import load_book  # noqa: PLC0415 - same

    logs.configure(level="error")
    async with KubeClient.connect(kubeconfig, field_manager="kgwe-scale") as client:
        view = await offline.read(client)
        nodes = {each.metadata.name: each for each in await client.list(resources.NODE)}
        policies = {each.metadata.name: each for each in await client.list(resources.AUTOSCALING_POLICY)}
    now_s = time.time()
    work = []
    for document in documents:
        if document.get("kind") == resources.AUTOSCALING_POLICY.kind:
            policy = _convert_policy(document)
            policies[policy.metadata.name] = policy
        else:
            work.append(document)
    submitted = Submitted(view, namespace, timestamp.format_time(now_s))
    submitted.put(work)
    if not policies:
        raise errors.Permanent("the cluster has no AutoscalingPolicy; create one, or pass one with -f")
    found = preview_round(view, list(policies.values()), nodes, load_book(prices), now_s, at_once=bool(documents))
    return found, describe_free(view, found, submitted.uids)


def describe_free(view: View, found: Sequence[Preview], owners: Collection[str]) -> str:
    """Return which of these owners need no purchase, and which cannot be planned; a line each."""
    placed = frozenset[str]().union(*(each.placed for each in found))
    asks = [view.asks[owner] for owner in sorted(placed.intersection(owners))]
    free = [f"{each.namespace}/{each.name}: fits on the nodes that exist, so nothing is bought for it" for each in asks]
    known = [view.problems[owner] for owner in sorted(owners) if owner in view.problems]
    bad = [f"a workload of the files cannot be planned: {each}" for each in known]
    return "".join(f"{line}\n" for line in (*free, *bad))


def _convert_policy(document: dict[str, Any]) -> AutoscalingPolicy:
    try:
        return msgspec.convert(document, resources.AUTOSCALING_POLICY.type, strict=False)
    except msgspec.ValidationError as exc:
        raise errors.Permanent(f"AutoscalingPolicy {document['metadata'].get('name', '')}: {exc}") from exc


def _show(found: Sequence[Preview], output: str) -> None:
    if output != "table":
        _write(
            [
                {
                    "policy": each.policy.metadata.name,
                    "plan": msgspec.to_builtins(each.status.plan),
                    "choices": msgspec.to_builtins(each.status.choices),
                    "unmet": msgspec.to_builtins(each.status.unmet),
                    "blocked": msgspec.to_builtins(each.status.blocked),
                    "pricePerHour": f"{each.price_micro / _MICROS:.2f}",
                    "problems": [
                        one.message for one in each.status.conditions if one.status == "False" and one.message
                    ],
                }
                for each in found
            ],
            output,
        )
        return
    rows = [("POLICY", "POOL", "TYPE", "ZONE", "CAPACITY", "NODES", "PRICE/H", "FOR")]
    for each in found:
        rows += [
            (each.policy.metadata.name, one.pool, one.instanceType, one.zone, one.capacityType, str(one.count),
             one.pricePerHour, one.reason)
            for one in each.status.plan
        ]  # fmt: skip
    terminal.write(_format(rows) if len(rows) > 1 else "Nothing is bought.\n")
    for each in found:
        if each.status.plan:
            terminal.write(f"{each.policy.metadata.name}: {each.price_micro / _MICROS:.2f} per hour in all\n")
        terminal.write("".join(f"{line}\n" for line in _list_choices(each.policy.metadata.name, each.status)))
        terminal.write(_describe_unmet(each.status))
        problems = [one.message for one in each.status.conditions if one.type == "Ready" and one.status == "False"]
        for problem in problems:
            terminal.write(f"{each.policy.metadata.name}: {problem}\n")


def _read_policies(name: str | None, kubeconfig: Path | None) -> list[AutoscalingPolicy]:
    logs.configure(level="error")

    async def read() -> list[AutoscalingPolicy]:
        async with KubeClient.connect(kubeconfig, field_manager="kgwe-scale") as client:
            if name is not None:
                return [await client.get(resources.AUTOSCALING_POLICY, name)]
            return await client.list(resources.AUTOSCALING_POLICY)

    try:
        return sorted(asyncio.run(read()), key=lambda each: each.metadata.name)
    except errors.NotFound:
        raise errors.Permanent(f"no AutoscalingPolicy {name or ''}".rstrip()) from None


async def _read_lease(kubeconfig: Path | None) -> core.Lease | None:
    """Return the Lease of the autoscaler that leads; None if there is none, or if the user may not read it."""
    async with KubeClient.connect(kubeconfig, field_manager="kgwe-scale") as client:
        with contextlib.suppress(errors.NotFound, Forbidden):
            return await client.get(resources.LEASE, _LEASE, _NAMESPACE)
    return None


def is_unreported(policy: AutoscalingPolicy) -> bool:
    """Whether no autoscaler has written a status of the policy."""
    return not policy.status.observedGeneration and not policy.status.conditions


def explain_silence(policy: AutoscalingPolicy, lease: core.Lease | None, now_s: float) -> str:
    """Return why the status of a policy is unknown, and what to do."""
    name = policy.metadata.name
    if lease is None or not lease.spec.holderIdentity or lease.spec.renewTime is None:
        return f"{name}: unknown, because no autoscaler runs. Start `kgwe autoscaler` (docs/autoscaling.md).\n"
    holder = lease.spec.holderIdentity
    if timestamp.epoch_seconds(lease.spec.renewTime) + lease.spec.leaseDurationSeconds < now_s:
        return (
            f"{name}: unknown, because autoscaler {holder} stopped at {lease.spec.renewTime}."
            " Read its log and start it again.\n"
        )
    account = f"system:serviceaccount:{_NAMESPACE}:{_LEASE}"
    return (
        f"{name}: unknown, because autoscaler {holder} runs but has not reported."
        f" If that lasts, a right may be missing: search its log for `forbidden`,"
        " apply deploy/autoscaler.yaml again, and check with"
        f" `kubectl auth can-i update autoscalingpolicies --subresource=status --as={account}`.\n"
    )


def _describe_status(policy: AutoscalingPolicy) -> str:
    told, name = policy.status, policy.metadata.name
    lines = []
    if told.stages:
        lines.append(f"{name}: " + ", ".join(f"{each.nodes} {each.stage}" for each in told.stages))
    lines += [
        f"{name}: plans {each.count} × {each.instanceType} of {each.pool} for {each.reason}" for each in told.plan
    ]
    lines += _list_choices(name, told)
    lines += [
        f"{name}: {each.pool}/{each.instanceType}/{each.zone}/{each.capacityType} pauses until {each.until}:"
        f" {each.kind}: {each.message}"
        for each in told.blocked
    ]
    lines += [f"{name}: node {each.node} stays: {each.reason} {each.message}".rstrip() for each in told.kept]
    lines += [f"{name}: instance {each} is an orphan" for each in told.orphans]
    lines += [f"{name}: {each.message}" for each in told.conditions if each.type == "Ready" and each.message]
    return "".join(f"{line}\n" for line in lines) + _describe_unmet(told)


def _list_choices(name: str, told: AutoscalingPolicyStatus) -> list[str]:
    return [f"{name}: {each.choice} for {each.owner}: {each.reason}: {each.message}" for each in told.choices]


def _describe_unmet(told: Any) -> str:
    return "".join(f"nothing is bought for {each.owner}: {each.reason}: {each.message}\n" for each in told.unmet)


def _number(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def _format(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "".join(f"{line}\n" for line in lines)


def _write(value: Any, output: str) -> None:
    if output == "json":
        terminal.write(msgspec.json.format(msgspec.json.encode(value)).decode() + "\n")
    else:
        terminal.write(msgspec.yaml.encode(value).decode())
