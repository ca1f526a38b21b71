"""`kgwe optimize`: pods that waste GPUs, and what would save money."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from cyclopts import App, Parameter

from kgwe import errors, terminal
from kgwe.cli import optimizer_access
from kgwe.cli.optimizer_access import Address, Certificates  # noqa: TC001 - read by cyclopts when it runs
from kgwe.model.units import quantity

if TYPE_CHECKING:
    from kgwe.proto import optimizer_pb2 as pb

app = App(
    name="optimize",
    help="""List pods that waste GPUs, with a recommendation for each.

The optimizer judges all GPU pods every 30 seconds on the last ten minutes. A pod whose usage is not known has no
finding. Savings are those of one recommendation per pod, so they add up.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe optimize                           all namespaces
  kgwe optimize -n ml-team                one namespace
  kgwe optimize --min-waste-score 80      only the worst
  kgwe optimize --lookback 24h            judge the last day
  kgwe optimize -o json                   for scripts""",
)

_HEADINGS = ("NAMESPACE", "POD", "STATE", "WASTE SCORE", "GPU UTIL", "MEM UTIL", "MONTHLY COST", "RECOMMENDATION")
_HOURS_PER_MONTH = 730
_MAX_LOOKBACK_S = 7 * 86400


@app.default
def optimize(
    *,
    namespace: Annotated[str, Parameter(name=["--namespace", "-n"])] = "",
    all_namespaces: Annotated[bool, Parameter(name=["--all-namespaces", "-A"], negative="")] = False,
    min_waste_score: float = 50.0,
    lookback: str = "",
    output: Annotated[Literal["text", "json", "yaml"], Parameter(name=["--output", "-o"])] = "text",
    optimizer: Address = optimizer_access.DEFAULT_ADDRESS,
    certificates: Certificates = None,
) -> int:
    """List findings.

    Parameters
    ----------
    namespace
        Only this namespace.
    all_namespaces
        All namespaces, which is the default.
    min_waste_score
        Only pods with at least this waste score, from 0 to 100. Imbalances have no score and are always listed.
    lookback
        Judge this much time before now, such as 30m or 24h. A number is minutes. Default: the last judgement.
    output
        Output format.
    """
    if not 0 <= min_waste_score <= 100:  # noqa: PLR2004 - a percentage
        raise errors.Permanent(f"--min-waste-score {min_waste_score:g}: expected a number from 0 to 100")
    request = ("" if all_namespaces else namespace, min_waste_score, _parse_lookback(lookback))
    reply = asyncio.run(_ask(optimizer, certificates, request))
    terminal.write(_format(reply) if output == "text" else _encode(describe_reply(reply), output))
    return 0


def _parse_lookback(text: str) -> float:
    if not text:
        return 0.0
    try:
        seconds = quantity.parse_duration(f"{text}m" if text.isdigit() else text)
    except (ValueError, errors.KgweError) as exc:
        raise errors.Permanent(f"--lookback {text!r}: expected a duration such as 30m or 24h") from exc
    if not 0 < seconds <= _MAX_LOOKBACK_S:
        raise errors.Permanent(f"--lookback {text!r}: expected at most 7 days, which is how long minutes are stored")
    return seconds


async def _ask(address: str, certificates: Path | None, request: tuple[str, float, float]) -> pb.FindingsReply:
    from kgwe.optimizerapi.client import OptimizerClient  # noqa: PLC0415 - loads gRPC
    from kgwe.optimizerapi.connect import make_access  # noqa: PLC0415

    try:
        async with OptimizerClient(make_access(address, certificates)) as client:
            await optimizer_access.check_cluster(client, address)
            return await client.list_findings(*request)
    except errors.Transient as exc:
        raise optimizer_access.explain_unreachable(exc) from exc


def describe_reply(reply: pb.FindingsReply) -> dict[str, Any]:
    """Return the findings as plain values; unknown values are null."""
    return {
        "judgedAt": reply.judged_s if reply.HasField("judged_s") else None,
        "sourceProblem": reply.source_problem or None,
        "findings": [_describe_finding(each) for each in reply.findings],
        "monthlySavings": sum(
            each.recommendation.saving_per_hour * _HOURS_PER_MONTH
            for each in reply.findings
            if each.recommendation.HasField("saving_per_hour")
        ),
    }


def _describe_finding(each: pb.Finding) -> dict[str, Any]:
    advice = each.recommendation
    return {
        "namespace": each.namespace,
        "pod": each.pod,
        "owner": f"{each.owner_kind}/{each.owner_name}" if each.owner_kind else None,
        "state": each.state,
        "wasteScore": each.waste_score if each.HasField("waste_score") else None,
        "gpuUtilization": each.activity if each.HasField("activity") else None,
        "memoryUtilization": each.memory if each.HasField("memory") else None,
        "gpus": each.gpus,
        "monthlyCost": each.cost_per_hour * _HOURS_PER_MONTH if each.HasField("cost_per_hour") else None,
        "reasons": list(each.reasoning),
        "recommendation": {
            "action": advice.action,
            "target": advice.target or None,
            "monthlySaving": advice.saving_per_hour * _HOURS_PER_MONTH if advice.HasField("saving_per_hour") else None,
            "confidence": advice.confidence,
            "feasible": advice.is_feasible if advice.HasField("is_feasible") else None,
            "reasons": list(advice.reasoning),
        },
    }


def _format(reply: pb.FindingsReply) -> str:
    lines = []
    if reply.source_problem:
        lines.append(f"Usage data is incomplete: {reply.source_problem}")
    if not reply.HasField("judged_s"):
        return "\n".join([*lines, "Pods have not been judged yet: the optimizer needs ten minutes of usage.", ""])
    found = describe_reply(reply)
    rows = [_HEADINGS, *(_format_row(each) for each in found["findings"])]
    if len(rows) == 1:
        known = "No pod is known to waste GPUs."
        later = "Pods are judged after they have run for a whole window (10 minutes, in the demo one)."
        return "\n".join([*lines, known, later, ""])
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS) - 1)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append("   ".join([*cells, row[-1]]).rstrip())
    lines += ["", f"Recommendations would save {_format_money(found['monthlySavings'])} per month.", ""]
    return "\n".join(lines)


def _format_row(each: dict[str, Any]) -> tuple[str, ...]:
    advice = each["recommendation"]
    words = advice["target"] or "-"
    if advice["monthlySaving"]:
        words += f" (saves {_format_money(advice['monthlySaving'])})"
    return (
        each["namespace"],
        each["pod"],
        each["state"],
        _format_number(each["wasteScore"], ""),
        _format_number(None if each["gpuUtilization"] is None else 100 * each["gpuUtilization"], "%"),
        _format_number(None if each["memoryUtilization"] is None else 100 * each["memoryUtilization"], "%"),
        _format_money(each["monthlyCost"]),
        words,
    )


def _format_number(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.0f}{unit}"


def _format_money(value: float | None) -> str:
    return "-" if value is None else f"${value:,.0f}"


def _encode(answer: Any, output: str) -> str:
    if output == "yaml":
        return msgspec.yaml.encode(answer).decode()
    return msgspec.json.format(msgspec.json.encode(answer)).decode() + "\n"
