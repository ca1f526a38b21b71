"""Conversions between descriptions of workloads and their messages. Absent values stay absent."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.model.usage.description import WorkloadDescription
from kgwe.proto import optimizer_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.message import Message

# Limits of one workload: a request with more is refused, so that no client can fill the memory.
_MAX_TEXT: Final = 4096
_MAX_ENTRIES: Final = 256
_MAX_PART: Final = 65_536
_MAX_PODS: Final = 1_000_000
_MAX_MILLI: Final = 1_000_000_000


def encode_workload(workload: WorkloadDescription) -> pb.Workload:
    return pb.Workload(
        namespace=workload.namespace,
        name=workload.name,
        owner_kind=workload.owner_kind,
        owner_name=workload.owner_name,
        image=workload.image,
        command=workload.command,
        labels=dict(workload.labels),
        environment=dict(workload.environment),
        workload_type=workload.workload_type,
        framework=workload.framework,
        pods=workload.pods,
        milli_gpus_per_pod=workload.milli_gpus,
        mig_profile=workload.mig_profile,
        gpu_model=workload.gpu_model,
        user=workload.user,
        declared_duration_s=workload.declared_s,
        submitted_s=workload.submitted_s,
        model_parameters_billions=workload.model_billions,
        uid=workload.uid,
    )


def decode_workload(message: pb.Workload, now_s: float) -> WorkloadDescription:
    """Return the workload of a request; raise Permanent with the field that is out of range."""
    _check_sizes(message)
    declared = message.declared_duration_s if message.HasField("declared_duration_s") else None
    billions = message.model_parameters_billions if message.HasField("model_parameters_billions") else None
    for name, value in (("declared_duration_s", declared), ("model_parameters_billions", billions)):
        if value is not None and not 0 < value < math.inf:
            raise errors.Permanent(f"{name} must be a positive number, not {value}")
    if not 0 <= message.submitted_s < math.inf:
        raise errors.Permanent(f"submitted_s must be a Unix time, not {message.submitted_s}")
    return WorkloadDescription(
        namespace=message.namespace,
        name=message.name,
        owner_kind=message.owner_kind,
        owner_name=message.owner_name,
        image=message.image,
        command=tuple(message.command),
        labels=dict(message.labels),
        environment=dict(message.environment),
        workload_type=message.workload_type,
        framework=message.framework,
        pods=max(message.pods, 1),
        milli_gpus=message.milli_gpus_per_pod,
        mig_profile=message.mig_profile,
        gpu_model=message.gpu_model,
        user=message.user or message.namespace,
        declared_s=declared,
        submitted_s=message.submitted_s or now_s,
        model_billions=billions,
        uid=message.uid,
    )


def check_texts(message: Message, limit: int = _MAX_TEXT) -> None:
    """Raise Permanent if a text field of a request is too long. Lists and maps have limits of their own."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING and not field.is_repeated and len(value) > limit:
            raise errors.Permanent(f"{field.name} has {len(value)} characters; the most is {limit}")


def _check_sizes(message: pb.Workload) -> None:
    check_texts(message)
    parts = {
        "command": message.command,
        "labels": (*message.labels.keys(), *message.labels.values()),
        "environment": (*message.environment.keys(), *message.environment.values()),
    }
    for name, values in parts.items():
        if sum(map(len, values)) > _MAX_PART:
            raise errors.Permanent(f"{name} is longer than {_MAX_PART} characters")
    entries: Mapping[str, int] = {
        "command": len(message.command),
        "labels": len(message.labels),
        "environment": len(message.environment),
    }
    for name, count in entries.items():
        if count > _MAX_ENTRIES:
            raise errors.Permanent(f"{name} has {count} entries; the most is {_MAX_ENTRIES}")
    if message.pods > _MAX_PODS or message.milli_gpus_per_pod > _MAX_MILLI:
        raise errors.Permanent(f"{message.pods} pods of {message.milli_gpus_per_pod} thousandths of a GPU are too many")
