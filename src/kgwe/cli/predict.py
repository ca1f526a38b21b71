"""`kgwe predict`: run time, memory and cost of workloads before they are submitted."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from cyclopts import App, Parameter

from kgwe import errors, terminal
from kgwe.cli import optimizer_access
from kgwe.cli.optimizer_access import Address, Certificates  # noqa: TC001 - read by cyclopts when it runs
from kgwe.kube.client import manifests
from kgwe.model.units import phrasing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.model.usage.description import WorkloadDescription
    from kgwe.proto import optimizer_pb2 as pb

app = App(
    name="predict",
    help="""Predict run time, GPU memory and cost of the workloads in a file.

Predictions come from the history of the same work: same owner, image, command and requested GPUs. Without history the
answer is "unknown". Each prediction names its three largest reasons.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe predict -f examples/finetune.yaml
  kgwe predict -f train.yaml -n ml-team -o json
  kgwe predict demand                              GPUs in use in 1, 6 and 24 hours, by GPU model""",
)


@app.default
def predict(
    *,
    file: Annotated[Path, Parameter(name=["--file", "-f"])],
    namespace: Annotated[str, Parameter(name=["--namespace", "-n"])] = "default",
    output: Annotated[Literal["text", "json", "yaml"], Parameter(name=["--output", "-o"])] = "text",
    optimizer: Address = optimizer_access.DEFAULT_ADDRESS,
    certificates: Certificates = None,
) -> int:
    """Predict.

    Parameters
    ----------
    file
        Manifests of GPUWorkloads, pods, Jobs, CronJobs, Deployments or StatefulSets.
    namespace
        Namespace of workloads that do not name one.
    output
        Output format.
    """
    from kgwe.apps.optimizer.manifests import describe_manifest  # noqa: PLC0415 - the overview does without it

    now_s = time.time()
    workloads = [describe_manifest(each, namespace, now_s) for each in manifests.load_manifests(file)]
    if not workloads:
        raise errors.Permanent(f"{file} has no manifests")
    found = asyncio.run(_ask(optimizer, certificates, workloads))
    answer = [describe_prediction(workload, each) for workload, each in zip(workloads, found, strict=True)]
    terminal.write(_format(answer) if output == "text" else _encode(answer, output))
    return 0


@app.command
def demand(
    *,
    model: str = "",
    output: Annotated[Literal["text", "json", "yaml"], Parameter(name=["--output", "-o"])] = "text",
    optimizer: Address = optimizer_access.DEFAULT_ADDRESS,
    certificates: Certificates = None,
) -> int:
    """Forecast how many GPUs of each model will be in use in 1, 6 and 24 hours.

    The optimizer records GPUs in use by the hour. A forecast needs two weeks of them; before that it is unknown.

    Parameters
    ----------
    model
        Only this GPU model, such as A100-SXM4-80GB.
    output
        Output format.
    """
    answer = describe_demand(asyncio.run(_ask_demand(optimizer, certificates, model)))
    terminal.write(format_demand(answer) if output == "text" else _encode(answer, output))
    return 0


async def _ask_demand(address: str, certificates: Path | None, model: str) -> pb.DemandReply:
    from kgwe.optimizerapi.client import OptimizerClient  # noqa: PLC0415 - loads gRPC
    from kgwe.optimizerapi.connect import make_access  # noqa: PLC0415

    try:
        async with OptimizerClient(make_access(address, certificates)) as client:
            await optimizer_access.check_cluster(client, address)
            return await client.predict_demand(model)
    except errors.Transient as exc:
        raise optimizer_access.explain_unreachable(exc) from exc


def describe_demand(found: pb.DemandReply) -> list[dict[str, Any]]:
    """Return the forecasts as plain values; unknown values are null."""
    return [
        {
            "gpuModel": each.gpu_model,
            "gpus": each.gpus if each.HasField("gpus") else None,
            "recordedHours": each.recorded_hours,
            "forecasts": [
                {
                    "hoursAhead": one.hours_ahead,
                    "known": one.is_known,
                    "gpus": one.gpus if one.HasField("gpus") else None,
                    "lower": one.lower if one.HasField("lower") else None,
                    "upper": one.upper if one.HasField("upper") else None,
                    "coverage": one.coverage,
                    "reasons": list(one.reasoning),
                }
                for one in each.forecasts
            ],
        }
        for each in found.models
    ]


def format_demand(answer: Sequence[dict[str, Any]]) -> str:
    """Return the forecasts as text."""
    if not answer:
        return "No GPUs were in use since the optimizer records them.\n"
    lines = []
    for each in answer:
        now = "unknown" if each["gpus"] is None else f"{each['gpus']:.1f} GPUs"
        lines.append(f"{each['gpuModel']}: {now} in use, {each['recordedHours']} hours recorded.")
        for one in each["forecasts"]:
            text = (
                f"{one['gpus']:.1f} GPUs ({one['coverage']:.0%} between {one['lower']:.1f} and {one['upper']:.1f})"
                if one["known"]
                else f"unknown: {'; '.join(one['reasons'])}"
            )
            lines.append(f"  in {one['hoursAhead']:>2} h   {text}")
        lines.append("")
    return "\n".join(lines)


async def _ask(
    address: str, certificates: Path | None, workloads: Sequence[WorkloadDescription]
) -> Sequence[pb.Prediction]:
    from kgwe.optimizerapi import messages  # noqa: PLC0415 - loads gRPC
    from kgwe.optimizerapi.client import OptimizerClient  # noqa: PLC0415
    from kgwe.optimizerapi.connect import make_access  # noqa: PLC0415

    try:
        async with OptimizerClient(make_access(address, certificates)) as client:
            await optimizer_access.check_cluster(client, address)
            return await client.predict([messages.encode_workload(each) for each in workloads])
    except errors.Transient as exc:
        raise optimizer_access.explain_unreachable(exc) from exc


def describe_prediction(workload: WorkloadDescription, found: pb.Prediction) -> dict[str, Any]:
    """Return a prediction as plain values; unknown values are null."""

    def read(name: str) -> Any:
        return getattr(found, name) if found.HasField(name) else None

    return {
        "namespace": workload.namespace,
        "name": workload.name,
        "known": found.is_known,
        "runs": found.runs,
        "expectedDurationSeconds": read("expected_duration_seconds"),
        "durationLowerSeconds": read("duration_lower_seconds"),
        "durationUpperSeconds": read("duration_upper_seconds"),
        "coverage": found.coverage,
        "recommendedGPUs": read("recommended_gpus"),
        "recommendedMemoryGB": read("recommended_memory_gb"),
        "expectedUtilization": read("expected_utilization"),
        "estimatedCostPerHour": read("estimated_cost_per_hour"),
        "recommendedMIGProfile": found.recommended_mig_profile or None,
        "preallocatesMemory": found.preallocates_memory,
        "preferNVLink": found.prefer_nvlink,
        "confidence": found.confidence,
        "fingerprint": found.fingerprint,
        "reasons": list(found.reasoning),
    }


def _format(answer: Sequence[dict[str, Any]]) -> str:
    return "\n".join(line for each in answer for line in (*_format_one(each), ""))


def _format_one(each: dict[str, Any]) -> list[str]:
    title = f"{each['namespace']}/{each['name']}"
    if not each["known"]:
        return [f"{title}: unknown.", *(f"  {reason}" for reason in each["reasons"])]
    lines = [f"{title}: {phrasing.format_count(each['runs'], 'earlier run')}."]
    if each["expectedDurationSeconds"] is not None:
        lower, middle, upper = (
            phrasing.format_duration(each[name])
            for name in ("durationLowerSeconds", "expectedDurationSeconds", "durationUpperSeconds")
        )
        lines.append(f"  Run time       {middle} ({each['coverage']:.0%} between {lower} and {upper})")
    if each["recommendedMemoryGB"] is not None:
        lines.append(f"  GPU memory     {each['recommendedMemoryGB']:.1f} GB per GPU")
    elif each["preallocatesMemory"]:
        lines.append("  GPU memory     unknown: it takes all memory at its start")
    if each["expectedUtilization"] is not None:
        lines.append(f"  GPU activity   {each['expectedUtilization']:.0%}")
    if each["recommendedMIGProfile"]:
        lines.append(f"  MIG profile    {each['recommendedMIGProfile']} would be enough")
    if each["estimatedCostPerHour"] is not None:
        lines.append(f"  Cost           ${each['estimatedCostPerHour']:.2f} per hour")
    lines.append(f"  Confidence     {each['confidence']:.0%}")
    lines += [f"  Because        {reason}" for reason in each["reasons"]]
    return lines


def _encode(answer: Any, output: str) -> str:
    if output == "yaml":
        return msgspec.yaml.encode(answer).decode()
    return msgspec.json.format(msgspec.json.encode(answer)).decode() + "\n"
