"""The text output of `kgwe agent`."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from kgwe.apps.agent.status import gpunode_status
from kgwe.model.units.phrasing import format_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kgwe.apps.discovery.fleet import Row
    from kgwe.kube.api.kgwe.gpunode import GPUDevice, GPUNodeStatus
    from kgwe.model.gpu.driver_data import Machine
    from kgwe.proto import agent_pb2 as pb

_UNKNOWN = "-"


def columns(rows: Iterable[Sequence[str]]) -> str:
    listed = list(rows)
    widths = [max(len(row[i]) for row in listed) for i in range(len(listed[0]))]
    lines = ("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in listed)
    return "\n".join(line.rstrip() for line in lines)


def machine(found: Machine, status: GPUNodeStatus) -> str:
    """Yield lines with the GPUs, their topology and the network adapters."""
    if not status.gpus:
        return f"Driver {status.driverVersion} found no GPUs."
    parts = [f"{format_count(len(status.gpus), 'GPU')}, driver {status.driverVersion}, CUDA {status.cudaVersion}"]
    cards = [
        ("GPU", "MODEL", "MEMORY", "BUS", "NUMA", "NVLINK", "MIG", "UUID"),
        *(_format_gpu(each) for each in status.gpus),
    ]
    parts.append(columns(cards))
    matrix = gpunode_status.build_wiring(found, status).matrix()
    names = [f"GPU{card.index}" for card in found.devices]
    parts.append(columns([("", *names), *((name, *row) for name, row in zip(names, matrix, strict=True))]))
    if status.nics:
        nics = [("NIC", "RATE", "NUMA")]
        nics += [
            (nic.name, _format_value(nic.gbitPerSecond or None, " Gbit/s"), _format_value(nic.numaNode))
            for nic in status.nics
        ]
        parts.append(columns(nics))
    if status.fabric:
        parts.append(f"NVLink domain {status.fabric.clique}")
    return "\n\n".join(parts)


def _format_gpu(card: GPUDevice) -> tuple[str, ...]:
    nvlink = card.nvlink
    links = _UNKNOWN if nvlink is None else f"v{nvlink.version} {nvlink.links}/{nvlink.maxLinks}"
    return (
        str(card.index),
        card.model,
        _format_value(card.memoryMiB or None, " MiB"),
        (card.pcie.busID if card.pcie else "") or _UNKNOWN,
        _format_value(card.numaNode),
        links + (" switch" if nvlink and nvlink.nvSwitch else ""),
        _format_mig(card),
        card.uuid,
    )


def _format_mig(card: GPUDevice) -> str:
    if not card.mig.capable:
        return _UNKNOWN
    if not card.mig.enabled:
        return "off"
    return ", ".join(f"{each.profile}@{each.start}" for each in card.mig.instances) or "enabled, no slices"


def _format_value(value: object, unit: str = "") -> str:
    return _UNKNOWN if value is None else f"{value}{unit}"


def pong(reply: pb.PingReply) -> str:
    driver = "ready" if reply.driver_ready else f"not ready: {reply.driver_message or reply.driver_reason}"
    lines = [f"{reply.node}: kgwe {reply.version}, up {reply.uptime_s:.0f} s, driver {driver}"]
    lines += [f"  {problem}" for problem in reply.problems]
    return "\n".join(lines)


def telemetry(message: pb.Telemetry) -> str:
    """Yield one sample, one line per GPU."""
    at = dt.datetime.fromtimestamp(message.unix_ms / 1000, dt.UTC)
    head = f"{message.node} {at:%H:%M:%S}" + (f" ({message.missed} missed)" if message.missed else "")
    rows: list[tuple[str, ...]] = [(head, "UTIL", "MEMORY", "POWER", "TEMP", "PROCESSES")]
    rows += [_format_reading(each) for each in message.readings]
    return columns(rows)


def _format_reading(reading: pb.Reading) -> tuple[str, ...]:
    return (
        reading.uuid + (" LOST" if reading.lost else ""),
        f"{reading.util:.0%}" if reading.HasField("util") else _UNKNOWN,
        _format_memory(reading),
        f"{reading.power_w:.0f} W" if reading.HasField("power_w") else _UNKNOWN,
        f"{reading.gpu_c} C" if reading.HasField("gpu_c") else _UNKNOWN,
        str(len(reading.processes)),
    )


def _format_memory(reading: pb.Reading) -> str:
    if not reading.HasField("memory_used_mib"):
        return _UNKNOWN
    total = f"/{reading.memory_total_mib}" if reading.HasField("memory_total_mib") else ""
    return f"{reading.memory_used_mib}{total} MiB"


def rows(found: Sequence[Row]) -> str:
    if not found:
        return (
            "There are no GPUNodes.\n"
            "Install the agent with deploy/agent.yaml, or run `kgwe local fleet apply mixed --nodes 16`."
        )
    table: list[tuple[str, ...]] = [("NODE", "GPUS", "HEALTHY", "MODEL", "FRESHNESS", "UPDATED", "REASON")]
    for row in found:
        status = row.status
        age = row.seen.age_s
        table.append(
            (
                row.name,
                str(status.gpuCount),
                str(status.healthyGPUs),
                status.model or _UNKNOWN,
                row.freshness,
                _UNKNOWN if age is None else f"{max(age, 0):.0f} s ago",
                row.why,
            )
        )
    return columns(table)
